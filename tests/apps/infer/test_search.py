"""automap search opp and adp: plans of a model's own step, and failures in one line."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp

from automap_models.formats.sharding_plan import read_sharding_plan
from automap_models.infer.app import search as main

MODEL = '''
import jax
import jax.numpy as jnp


def make_step(batch=8):
    """A hidden layer of 16, three classes."""
    def step(params, x):
        def loss(params):
            with jax.named_scope("loss"):
                return jnp.square(jax.nn.relu(x @ params["wi"]) @ params["wo"]).mean()

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    return step, ({"wi": f32(6, 16), "wo": f32(16, 3)}, f32(batch, 6))
'''


COUNT = ("--objective", "count")
PROOF = ("--planner", "milp", *COUNT)
"""Where the plan is not the point: the agent that plans by default takes seconds."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a factory in a module of its own."""
    name = f"model_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return f"{name}:make_step"


def test_opp_finds_megatrons_plan_for_two_layers_and_writes_it(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert main(["opp", model, "--topo", "A", "--mesh", "4", *COUNT, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"wi +1 +\[6, 16/4\] +1", printed)
    assert re.search(r"wo +1 +\[16/4, 3\] +0", printed)
    assert "2 of 2 trainable parameters partitioned" in printed
    assert "no reshard" in printed
    plan = read_sharding_plan(out)
    leaves = {"wi": jax.ShapeDtypeStruct((6, 16), jnp.float32), "wo": jax.ShapeDtypeStruct((16, 3), jnp.float32)}
    P = jax.sharding.PartitionSpec
    assert plan.partition_specs(leaves) == {"wi": P(None, "model"), "wo": P("model")}


def test_adp_finds_the_batch(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adp", model, "--topo", "A", "--mesh", "8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "data"
    assert [variable["dim"] for variable in document["variables"].values()] == [0]
    assert all(argument["dim"] == -1 for argument in document["arguments"].values())


def test_groups_are_printed_and_in_the_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opp", model, "--topo", "A", "--mesh", "2", "--show-groups", *PROOF]) == 0
    assert "linkage group of" in capsys.readouterr().out
    assert main(["opp", model, "--topo", "A", "--mesh", "2", "--show-groups", *PROOF, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["linkage_groups"]
    assert groups == [
        {"variable": "params/wi", "dim": 0, "partition": [1, 2], "replicate": 1},
        {"variable": "params/wi", "dim": 1, "partition": [2, 2], "replicate": 2},
        {"variable": "params/wo", "dim": 0, "partition": [2, 2], "replicate": 2},
        {"variable": "params/wo", "dim": 1, "partition": None, "replicate": 1},
    ]


def test_the_axis_is_all_devices_by_default(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opp", model, "--topo", "A", *PROOF, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 16


def test_an_hlo_file_is_planned_like_its_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from automap_models import workloads

    step = workloads.from_factory(model)
    file = tmp_path / "step.txt"
    file.write_text(jax.jit(step.function).lower(*step.arguments).as_text("hlo", debug_info=True))
    assert main(["opp", str(file), "--topo", "A", "--mesh", "4", *PROOF, "--json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main(["opp", model, "--topo", "A", "--mesh", "4", *PROOF, "--json"]) == 0
    assert from_file["variables"] == json.loads(capsys.readouterr().out)["variables"]


WRONG = {
    "nothing": ([], "required: COMMAND; see automap search --help"),
    "an unknown search": (["app", "vgg19", "--topo", "A"], "invalid choice: 'app'"),
    "no cluster": (["opp", "vgg19"], "--topo"),
    "an unknown cluster": (["opp", "vgg19", "--topo", "Z"], "'Z' is neither a known cluster"),
    "an unknown model": (["opp", "vgg91", "--topo", "A"], "did you mean vgg19"),
    "no number": (["opp", "vgg19", "--topo", "A", "--mesh", "x"], "neither a number"),
    "a mesh of none": (["opp", "vgg19", "--topo", "A", "--mesh", "0"], "neither a number"),
    "a mesh of one": (["opp", "MODEL", "--topo", "A", "--mesh", "1"], "give 2 to 16"),
    "a mesh beyond the cluster": (["opp", "MODEL", "--topo", "A", "--mesh", "17"], "give 2 to 16"),
    "a mesh that divides nothing": (["opp", "MODEL", "--topo", "A", "--mesh", "7"], "by a divisor of"),
    "unknown rules": (["opp", "vgg19", "--topo", "A", "--rules", "strict"], "paper, shardy"),
    "an unknown planner": (["opp", "vgg19", "--topo", "A", "--planner", "magic"], "choose from"),
    "tokens of images": (["opp", "vgg19", "--topo", "A", "--sequence", "9"], "reads images"),
    "patterns for a model": (["opp", "vgg19", "--topo", "A", "--trainable", "x"], "does not apply"),
    "a plan nowhere": (["opp", "vgg19", "--topo", "A", "--out", "no/such/folder/x"], "no folder"),
    "abbreviations": (["opp", "vgg19", "--topo", "A", "--show"], "unrecognized arguments: --show"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_costs_one_line(wrong: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[wrong]
    assert main([model if argument == "MODEL" else argument for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_profile_has_no_operations_to_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("node1 -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=1, ...")
    assert main(["opp", str(file), "--topo", "A"]) == 2
    assert "is a profile, without operations" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "reader"), [("pipeline", "automap infer"), ("placement", "automap place")])
def test_a_plan_is_no_profile_and_the_command_that_reads_it_is_named(
    kind: str, reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"schema": 1, "kind": kind, "planner": "exact", "cuts": []}))
    assert main(["opp", str(file), "--topo", "A"]) == 2
    message = capsys.readouterr().err
    assert f"{file}: is a plan, not a model; give the model that it was made for; {reader}" in message
    assert "reads it with --plan" in message


def test_the_input_is_not_overwritten(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.hlo"
    file.write_text("HloModule x")
    assert main(["opp", str(file), "--topo", "A", "--out", str(file)]) == 2
    assert "is an input, too" in capsys.readouterr().err


# --- the learning agent ------------------------------------------------------------------------------------------


def test_the_agent_s_plan_carries_its_episodes_seed_and_the_proven_optimum(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opp", model, "--topo", "A", "--mesh", "4", "--seed", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["planner"] == "agent"
    assert document["episodes"] > 0
    assert not document["interrupted"]
    assert document["provenance"]["seed"] == 3
    assert document["optimality"] == {"bound": 2.0, "proof": "exact", "gap": 0.0}


@pytest.mark.parametrize("search", ["opp", "adp"])
def test_the_other_planner_plans(search: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([search, model, "--topo", "A", "--mesh", "2", *PROOF]) == 0
    assert "plan by milp" in capsys.readouterr().out


def test_a_search_is_drawn(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "search.png"
    arguments = ["opp", model, "--topo", "A", "--mesh", "4", "--episodes", "32", "--plot", str(picture)]
    assert main(arguments) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "plot: " in capsys.readouterr().out


def test_ctrl_c_returns_the_best_plan_so_far(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from automap_models.infer.reports import text
    from automap_models.planners.base import Progress

    def interrupting(news: Progress) -> None:
        if news.what.startswith("episode"):
            raise KeyboardInterrupt

    monkeypatch.setattr(text, "watching", lambda **_: nullcontext(interrupting))
    out = tmp_path / "plan.json"
    assert main(["opp", model, "--topo", "A", "--mesh", "4", *COUNT, "--out", str(out)]) == 0
    assert "interrupted after 16 episodes: the best plan until then" in " ".join(capsys.readouterr().out.split())
    assert json.loads(out.read_text())["interrupted"]


MISPLACED = {
    "a seed for a proof": (["--planner", "milp", "--seed", "1"], "--seed: the planner milp has no use for it"),
    "a planner that was given up": (["--planner", "greedy"], "choose from agent, milp"),
    "episodes of a proof": (["--planner", "milp", "--episodes", "9"], "has no use for it"),
    "a picture of no search": (["--planner", "milp", "--plot", "x.png"], "has no use for it"),
    "an unknown agent": (["--agent", "nobody"], "choose from paper"),
    "no episodes": (["--episodes", "0"], "no whole number ≥ 1"),
    "a negative seed": (["--seed", "-1"], "no whole number ≥ 0"),
    "no picture": (["--plot", "x.txt"], "no kind of picture"),
    "one file for two": (["--plot", "x.png", "--out", "x.png"], "x.png for the plot: is where the plan goes, too"),
}


@pytest.mark.parametrize("wrong", MISPLACED)
def test_what_means_nothing_to_a_planner_is_refused_before_the_model_is_traced(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = MISPLACED[wrong]
    assert main(["opp", "t5_11b", "--topo", "C", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())
