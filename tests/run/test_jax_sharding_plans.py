"""Plans of automap search run on JAX: on the devices of their mesh, one batch a step, as one process computes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jax")

from automap_models.formats.plan import written_plan
from automap_models.formats.sharding_plan import SHARDING_DOCUMENTS
from automap_models.infer.app import main

MODEL = """
import jax
import jax.numpy as jnp


def make_step(batch=64, width=256, depth=1):
    def loss(params, data):
        x = data["x"]
        for name, layer in params.items():
            with jax.named_scope(name):
                x = jnp.tanh(x @ layer["w1"]) @ layer["w2"] + x
        return jnp.mean((x - data["y"]) ** 2)

    def step(params, data):
        value, gradients = jax.value_and_grad(loss)(params, data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    shape = jax.ShapeDtypeStruct
    layer = {"w1": shape((width, 4 * width), jnp.float32), "w2": shape((4 * width, width), jnp.float32)}
    data = {name: shape((batch, width), jnp.float32) for name in ("x", "y")}
    return step, ({f"block_{i}": layer for i in range(depth)}, data)


def narrower():
    return make_step(width=128)
"""
CLUSTER = {"name": "four", "nodes": 1, "devices_per_node": 4, "intra": 1e14, "inter": 1e13, "memory": 4e9}
"""Links so fast that partitioning pays."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("sharded_step.py").write_text(MODEL, encoding="utf-8")
    Path("four.yaml").write_text(json.dumps(CLUSTER), encoding="utf-8")
    return tmp_path


def search(*arguments: str) -> None:
    command = ["search", *arguments, "sharded_step:make_step", "--topo", "four.yaml", "--out", "plan.json"]
    assert main(command) == 0


def run(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["run", "plan.json", "sharded_step:make_step", "--check", "--steps", "1", "--warmup", "0"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [("opp", "--mesh", "data=2,model=2"), ("opp", "--mesh", "4", "--objective", "count"), ("adp", "--mesh", "4")],
)
def test_a_plan_of_either_kind_or_both_trains_as_one_process_and_reduces_what_it_says(
    arguments: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(*arguments)
    plan = written_plan("plan.json", *SHARDING_DOCUMENTS)
    assert plan.stages[0].device_count == 4
    printed = run(capsys)
    assert "4 × cpu" in printed
    assert "check as on one process" in printed
    reduced = re.search(r"all-reduce (\S+ \S+) a device; by the plan it is (\S+ \S+)", printed)
    assert reduced is not None
    assert reduced[1] == reduced[2]
    assert ("nothing is predicted" in printed) == ("count" in arguments)


def test_another_model_and_zero_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search("opp", "--mesh", "4")

    def refused(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["run", "plan.json", *arguments]) == 2
        return capsys.readouterr().err

    assert "was made for another model than sharded_step:narrower" in refused("sharded_step:narrower")
    assert "--zero: ZeRO-3 is what torch's replicas share" in refused("sharded_step:make_step", "--zero", "3")


def test_a_document_that_is_no_plan_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.json").write_text('{"kind": "tactic", "schema": 1}', encoding="utf-8")
    assert main(["run", "plan.json", "sharded_step:make_step"]) == 2
    assert "$.kind is 'tactic'" in capsys.readouterr().err
