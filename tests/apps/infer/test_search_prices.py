"""automap search by price: plans on one axis and two, verified by XLA on devices of this host, and bad input."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax

from automap_models.formats.sharding_plan import read_sharding_plan
from automap_models.infer.app import search as main

MODELS = '''
import jax
import jax.numpy as jnp
from automap_models.workloads.sizes import BertConfig
from automap_models.workloads.sizes import T5Config
from automap_models.workloads.training import training_step
from automap_models.workloads.convolutional import VggConfig


def t5(batch=8):
    config = T5Config(width=32, heads=4, head_width=8, feed_forward=64, layers=2, vocabulary=48)
    return training_step("t5", config, (batch, 12), "float32")


def bert(batch=8):
    config = BertConfig(width=32, heads=4, layers=2, vocabulary=48, positions=12)
    return training_step("bert", config, (batch, 12), "float32")


def vgg(batch=8):
    config = VggConfig(blocks=((8, 1), (16, 2)), width=64, classes=16, image=16)
    return training_step("vgg", config, (batch,), "float32")


def mlp(batch=2048, width=4096):
    """Two dense layers, large enough to be worth a launch."""
    def step(params, x):
        def loss(params):
            return jnp.square(jax.nn.relu(x @ params["wi"]) @ params["wo"]).mean()

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    return step, ({"wi": f32(1024, width), "wo": f32(width, 1024)}, f32(batch, 1024))


def wider(batch=2048):
    return mlp(batch, width=8192)


def untrainable(batch=8):
    return (lambda params, x: x), ({}, jax.ShapeDtypeStruct((batch, 4), "float32"))
'''
PARTITIONED = {
    "bert": {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0},
    "vgg": {"fc1": 1, "fc2": 0, "predictions": 1},
}
"""Model → the dimension of the kernels that a mesh axis partitions (Megatron-LM; one weird trick).

T5's are verified by explanation/sharding-cost.md."""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of factories, to be followed by one's name."""
    name = f"models_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return f"{name}:"


@pytest.fixture
def slow_start(tmp_path: Path) -> list[str]:
    """Devices without launch times, on which small models partition as large ones do."""
    file = tmp_path / "device.yaml"
    file.write_text(
        "name: ideal\nmatrix: {float32: 1e10}\nvector: 1e10\nbandwidth: 1e12\n"
        "step: {product_efficiency: 1, half_size: 0, attention_efficiency: 1, bandwidth_efficiency: 1, launch_s: 0,\n"
        "       intra_efficiency: 1, inter_efficiency: 1, overlap: 0}\n"
    )
    return ["--device", str(file)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the command prints of a plan of `mlp` on four devices, and the file that it writes."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "models_to_plan.py").write_text(MODELS)
    text, plan = io.StringIO(), folder / "plan.json"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        assert main(["opp", "models_to_plan:mlp", "--topo", "A", "--mesh", "4", "--out", str(plan)]) == 0
    return text.getvalue(), plan.read_text()


@pytest.fixture
def plan_file(planned: tuple[str, str], tmp_path: Path) -> Path:
    """A copy of that file, which a test may change."""
    path = tmp_path / "plan.json"
    path.write_text(planned[1])
    return path


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON that a command prints."""
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_fastest_step_of_two_dense_layers_is_megatrons(planned: tuple[str, str], plan_file: Path) -> None:
    text, written = planned
    assert re.search(r"wi +1 +\[1024, 4096/4\] +1", text)
    assert re.search(r"wo +1 +\[4096/4, 1024\] +0", text)
    assert "no plan on this mesh without resharding is faster" in text
    assert "no reshard" in text
    document = json.loads(written)
    assert (document["kind"], document["objective"], document["mesh"]) == ("operator", "time", {"model": 4})
    price = document["price"]
    assert price["activation_bytes"] == {"model": 4 * 2048 * 1024}
    assert price["time_s"] == pytest.approx(price["compute_s"] + sum(price["all_reduce_s"].values()))
    assert document["price_optimality"] == {"bound": pytest.approx(price["time_s"]), "proof": "exact", "gap": 0.0}
    assert document["baselines"]["replicated"]["time_s"] > price["time_s"]
    leaves = {"wi": jax.ShapeDtypeStruct((1024, 4096), "float32"), "wo": jax.ShapeDtypeStruct((4096, 1024), "float32")}
    P = jax.sharding.PartitionSpec
    expected = {"wi": P(None, "model"), "wo": P("model")}
    assert read_sharding_plan(plan_file).partition_specs(leaves) == expected


def test_a_plan_of_two_axes_is_written_read_and_priced_again(
    models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    command = ["opp", f"{models}mlp", "--topo", "A"]
    first = printed([*command, "--mesh", "data=2,model=4", "--out", str(out)], capsys)
    assert first["kind"] == "hybrid"
    plan = read_sharding_plan(out)
    leaves = {"0": {"wi": jax.ShapeDtypeStruct((1024, 4096), "float32")}}
    assert plan.partition_specs(leaves["0"]) == {"wi": jax.sharding.PartitionSpec(None, "model")}
    again = printed([*command, "--plan", str(out)], capsys)
    assert again["price"] == first["price"]
    assert again["price_optimality"] is None


def test_less_memory_is_never_faster_than_the_fastest(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["opp", f"{models}mlp", "--topo", "A", "--mesh", "data=2,model=4", "--objective"]
    fast, small = (printed([*command, objective], capsys)["price"] for objective in ("time", "memory"))
    assert fast["time_s"] <= small["time_s"]
    assert small["memory_bytes"] <= fast["memory_bytes"]


@pytest.mark.parametrize("model", PARTITIONED)
def test_xla_computes_the_same_with_the_plan_and_reduces_as_many_bytes_as_estimated(
    model: str, models: str, slow_start: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ["--rules", "paper" if model == "vgg" else "shardy"]
    mesh = ["--mesh", "data=2,model=4"]
    document = printed(["opp", models + model, "--topo", "A", *mesh, *rules, *slow_start, "--verify"], capsys)
    dims = {name: one["dim"] for name, one in document["plans"]["model"]["variables"].items()}
    for name, dim in dims.items():
        *_, parent, leaf = name.split("/")
        if leaf == "kernel" and parent in PARTITIONED[model]:
            assert dim == PARTITIONED[model][parent]
    assert {one["dim"] for one in document["plans"]["data"]["variables"].values()} == {0}
    verified = document["verified"]
    assert verified["equal"]
    assert max(verified["loss"], verified["arrays"]) <= 1e-4
    for collectives in verified["collectives"].values():
        assert set(collectives["by_kind"]) == {"all-reduce"}
        assert collectives["bytes"] == pytest.approx(collectives["estimated_bytes"], rel=0.01)


def test_a_plan_that_no_longer_fits_its_module_is_refused(
    models: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opp", f"{models}wider", "--topo", "A", "--plan", str(plan_file)]) == 2
    error = capsys.readouterr().err
    assert "has no parameter" in error
    assert "plan again for this model and cluster" in error
    assert main(["opp", f"{models}mlp", "--topo", "B", "--plan", str(plan_file)]) == 2
    assert "nodes is 2, but cluster B has 3" in capsys.readouterr().err


def test_a_plan_in_conflict_is_refused(models: str, plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan_file.read_text())
    document["variables"]["params/wo" if "params/wo" in document["variables"] else "wo"]["dim"] = 1
    plan_file.write_text(json.dumps(document))
    assert main(["opp", f"{models}mlp", "--topo", "A", "--plan", str(plan_file)]) == 2
    assert "cannot both be partitioned" in capsys.readouterr().err


WRONG = {
    "a mesh that divides nothing": (["--mesh", "model=7"], "no dimension can be partitioned by 7"),
    "a data axis that divides nothing": (["--mesh", "data=7,model=2"], "dimension 0 of"),
    "an axis of another name": (["--mesh", "rows=2"], "neither a number of devices nor axes such as data=2,model=4"),
    "an axis twice": (["--mesh", "data=2,data=2"], "neither a number"),
    "an axis of one": (["--mesh", "data=1,model=4"], "give 2 to 16"),
    "too many devices": (["--mesh", "data=8,model=4"], "32 devices, cluster A has 16"),
    "a huge axis": (["--mesh", "data=99999999999999999999"], "has more than"),
    "two axes to count along": (["--mesh", "data=2,model=4", "--objective", "count"], "along one axis"),
    "an agent for prices": (["--objective", "time", "--planner", "agent"], "--planner: means nothing for"),
    "groups of prices": (["--objective", "memory", "--show-groups"], "--show-groups: means nothing for"),
    "a count to verify": (["--objective", "count", "--verify"], "--verify: means nothing for"),
    "an unknown objective": (["--objective", "money"], "invalid choice: 'money'"),
    "an unknown device": (["--device", "abacus"], "abacus"),
    "no such plan": (["--plan", "nowhere.json"], "nowhere.json"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_costs_one_line(wrong: str, models: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[wrong]
    assert main(["opp", f"{models}mlp", "--topo", "A", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_file_of_hlo_cannot_be_run(tmp_path: Path, models: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.txt"
    step = jax.jit(lambda params, x: jax.grad(lambda p: (x @ p["w"]).sum())(params))
    given = {"w": jax.ShapeDtypeStruct((8, 8), "float32")}, jax.ShapeDtypeStruct((8, 8), "float32")
    file.write_text(step.lower(*given).as_text("hlo", debug_info=True))
    assert main(["opp", str(file), "--topo", "A", "--mesh", "2", "--verify", "--trainable", "params*"]) == 2
    assert "give a model or a factory to run" in capsys.readouterr().err


def test_a_model_without_trainable_variables_is_refused(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opp", f"{models}untrainable", "--topo", "A"]) == 2
    assert "trainable parameters, has no arrays" in capsys.readouterr().err


def test_dynamic_shapes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.mlir"
    file.write_text(
        "module {\n  func.func public @main(%params: tensor<?x4xf32>) -> tensor<?x4xf32> {\n"
        "    %0 = stablehlo.add %params, %params : tensor<?x4xf32>\n    return %0 : tensor<?x4xf32>\n  }\n}\n"
    )
    assert main(["opp", str(file), "--topo", "A"]) == 2
    out, err = capsys.readouterr()
    assert "dynamic" in err
    assert (out, err.count("\n")) == ("", 1)


def test_what_fits_no_memory_is_infeasible(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topo = tmp_path / "small.yaml"
    topo.write_text("{nodes: 1, devices_per_node: 8, intra: 1.0e+9, inter: 1.0e+9, memory: 1.0e+6, name: small}\n")
    assert main(["opp", f"{models}mlp", "--topo", str(topo)]) == 3
    assert "or more on each device, cluster small has 0.0 GB" in capsys.readouterr().err
