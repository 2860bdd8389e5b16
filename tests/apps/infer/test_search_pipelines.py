"""automap search pp: plans of a profile and of a model, what is written, and failures in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from automap_models.formats.files import read_profile
from automap_models.formats.staged_plan import read_plan
from automap_models.infer.app import search as main

VGG = str(Path(__file__).resolve().parents[3] / "examples" / "vgg19_v100.npz")
FACTORY = """
import jax
import jax.numpy as jnp


def make_step(batch=2):
    def loss(params, x):
        for name, kernel in params.items():
            with jax.named_scope(name):
                x = jnp.tanh(x @ kernel)
        return (x**2).mean()

    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    of = jax.ShapeDtypeStruct
    return step, ({f"layer_{i}": of((32, 32), "float32") for i in range(6)}, of((batch, 32), "float32"))
"""


def search(*arguments: str) -> int:
    return main(["pp", VGG, "--topo", "B", "--episodes", "90", *arguments])


def test_a_plan_is_printed_written_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert search("--out", str(out), "--seed", "3") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("3 stages × ")
    assert "the best plan of" in printed and "on the grid" in printed
    result = read_plan(out, read_profile(VGG))
    problem, plan = result.problem, result.required_plan()
    assert (plan.planner, plan.stages, problem.granularity) == ("online", 3, 128)
    assert json.loads(out.read_text())["provenance"]["seed"] == 3


def test_the_offline_policys_plan_is_a_warm_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from automap_models.infer.app import infer

    start = tmp_path / "policy.json"
    arguments = [VGG, "--topo", "B", "--stages", "3", "--planner", "policy"]
    assert infer([*arguments, "--objective", "length", "--out", str(start)]) == 0
    capsys.readouterr()
    assert search("--warm-start", str(start), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["length_s"] <= json.loads(start.read_text())["length_s"] * (1 + 1e-9)
    assert search("--warm-start", str(start), "--stages", "2") == 2
    assert "has stages 3, not 2" in capsys.readouterr().err


def test_the_offline_policys_plan_is_a_warm_start_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    from automap_models.core.cluster import Cluster
    from automap_models.core.staged import StagedProblem
    from automap_models.cost.staged import plan_cost
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.planners.registry import make_planner

    cluster: Cluster = read_cluster("B")
    problem = StagedProblem(read_profile(VGG), cluster, 3)
    assert search("--warm-start", "policy", "--json") == 0
    length_s = json.loads(capsys.readouterr().out)["length_s"]
    assert length_s <= plan_cost(problem, make_planner("policy").plan(problem)).length_s * (1 + 1e-9)


def test_a_factorys_model_is_traced_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    (tmp_path / "small_models.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = [
        "pp",
        "small_models:make_step",
        "--topo",
        "A",
        "--batch",
        "4",
        "--episodes",
        "48",
        "--out",
        "plan.json",
    ]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 stages × " in printed and "layer_" in printed
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert (len(plan["stages"]), plan["provenance"]["seed"]) == (2, 0)
    assert main(["pp", "small_models:make_step", "--topo", "A", "--sequence", "4"]) == 2
    assert "sequence" in capsys.readouterr().err


def test_training_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert search("--plot", str(tmp_path / "training.png")) == 0
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--agent", "x"), 2, "'x' is neither a known agent nor a file; choose from default, paper"),
        (("--batch", "3"), 2, "--batch: does not apply"),
        (("--stages", "1"), 2, "'1' is no whole number ≥ 2"),
        (("--stages", "99"), 2, "99 stages on the 24 device(s)"),
        (("--episodes", "0"), 2, "'0' is no whole number ≥ 1"),
        (("--state-factor", "1000"), 3, "none of the plans of 3 stages fits"),
        (("--warm-start", "missing.json"), 2, "missing.json: cannot be read"),
        (("--out", VGG), 2, "is an input, too"),
        (("--plot", "training.gif"), 2, "no kind of picture ends in '.gif'"),
    ],
)
def test_mistakes_cost_one_line(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(*arguments) == code
    message = capsys.readouterr().err.strip()
    assert words in message and "\n" not in message
