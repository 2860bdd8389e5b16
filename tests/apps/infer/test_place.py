"""`automap place` as its users see it: what it prints and writes, and what one line a mistake costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.infer.app import place as main
from automap_models.planners.registry import planner_names
from automap_models.resources import zoo_dir
from automap_models.user_code import call_factory

PNG, WIDTH = b"\x89PNG\r\n", 100

JAX_MODEL = """
import jax
import jax.numpy as jnp

print("hello from the user's module")


def loss(params, x):
    for name, kernel in params.items():
        with jax.named_scope(name):
            x = jnp.tanh(x @ kernel)
    return (x**2).mean()


def make_step(batch=8):
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    of = jax.ShapeDtypeStruct
    return step, ({f"dense_{i}": of((256, 256), "float32") for i in range(6)}, of((batch, 256), "float32"))
"""


def document(operators: int = 6, **changes: Any) -> dict[str, Any]:
    """Operators in a row, forward and backward, 10 ms each on an accelerator and 100 ms on a CPU."""
    numbers = range(1, operators + 1)
    forward = [{"id": i, "isBackwardNode": 0, "colorClass": i, "name": f"layer {i}"} for i in numbers]
    backward = [{"id": 10 + i, "isBackwardNode": 1, "colorClass": i} for i in numbers]
    common = {"supportedOnFpga": 1, "cpuLatency": 100, "fpgaLatency": 10, "size": 1e9}
    line = [*numbers, *(10 + i for i in reversed(numbers))]
    return {
        "maxSizePerFPGA": 6e9,
        "maxFPGAs": 3,
        "maxCPUs": 1,
        "nodes": [{**common, **node} for node in (*forward, *backward)],
        "edges": [{"sourceId": a, "destId": b, "cost": 1} for a, b in pairwise(line)],
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a training graph, its forward pass alone and a user's JAX module."""
    monkeypatch.chdir(tmp_path)
    whole = document()
    Path("line.json").write_text(json.dumps(whole), encoding="utf-8")
    forward = {
        "nodes": [node for node in whole["nodes"] if not node["isBackwardNode"]],
        "edges": [edge for edge in whole["edges"] if max(edge["sourceId"], edge["destId"]) < 10],
    }
    Path("forward.json").write_text(json.dumps(whole | forward), encoding="utf-8")
    Path("their_layers.py").write_text(JAX_MODEL, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("their_layers", None)


@pytest.fixture
def refused(folder: Path, refuses: Callable[..., Callable[..., str]]) -> Callable[..., str]:
    """Run the command in the folder and require that it refuses, in the line that is returned."""
    return refuses(main, "automap place")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def placed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed(capsys, *arguments, "--json"))
    return document


def test_a_placement_is_printed_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "line.json", "--planner", "local-search", "--devices", "7", "--memory", "20e9")
    for word in ("line on 7 accelerators with 20.0 GB and 1 CPU", "device", "transfer", "layer 1", "speed-up", "idle"):
        assert word in out
    assert max(map(len, out.splitlines())) <= WIDTH
    assert sorted(path.name for path in folder.glob("*.json")) == ["forward.json", "line.json"]


def test_json_is_the_only_thing_on_stdout_and_the_same_as_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = placed(capsys, "line.json", "--planner", "ideals", "--out", "placement.json", "--plot", "p.png")
    assert plan == json.loads((folder / "placement.json").read_text(encoding="utf-8"))
    assert (plan["schema"], plan["kind"], plan["objective"], plan["accelerators"]) == (1, "placement", "throughput", 3)
    assert plan["value"] == max(plan["loads_s"])
    assert set(plan["assignment"]) == {str(i) for i in (*range(1, 7), *range(11, 17))}
    assert all(plan["assignment"][str(i)] == plan["assignment"][str(10 + i)] for i in range(1, 7))
    assert (folder / "p.png").read_bytes().startswith(PNG)


def test_every_planner_can_be_asked_for_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a line of three operators the best is one of each on each device: 20 ms and up to 4 transfers of 1 ms."""
    Path("short.json").write_text(json.dumps(document(operators=3)), encoding="utf-8")
    split = {"fpgas": [{"nodes": [node]} for node in (1, 2, 3)], "cpus": []}
    Path("split.json").write_text(json.dumps(split), encoding="utf-8")
    for planner in planner_names("placement"):
        more = ("--split", "split.json") if planner == "expert" else ()
        plan = placed(capsys, "short.json", "--planner", planner, "--time-limit", "2", "--memory", "20e9", *more)
        objective = "step" if planner in ("metis", "m-etf", "learned") else "throughput"
        assert (plan["planner"], plan["objective"]) == (planner, objective)
        assert plan["value"] >= 0.024 * (1 - 1e-9)
        assert plan["bound"] is None or plan["bound"] <= plan["value"] * (1 + 1e-9)


def test_a_planner_of_steps_has_no_other_objective(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["line.json", "--planner", "learned", "--objective", "throughput"]) == 2
    assert "--planner learned: is for steps only; give --objective step, or none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("graph", "objective", "planner"), [("line", "throughput", "ideals"), ("forward", "latency", "milp")]
)
def test_each_objective_has_a_planner_of_its_own(
    graph: str, objective: str, planner: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = placed(capsys, f"{graph}.json", "--objective", objective, "--time-limit", "60")
    assert (plan["planner"], plan["status"]) == (planner, "optimal")


def test_help_names_every_planner(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    listed = re.search(r"--planner NAME (.*?) --split", text)
    assert listed is not None
    names = [part.split()[0] for part in listed.group(1).split(", ")]
    assert sorted(names) == sorted(planner_names("placement"))


@pytest.mark.parametrize("planner", ["milp", "local-search"])
def test_a_sample_s_latency_is_what_the_model_says(
    planner: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All six operators on one accelerator are as fast as anything can be: nothing is sent."""
    plan = placed(capsys, "forward.json", "--objective", "latency", "--planner", planner)
    assert plan["value"] == pytest.approx(0.06)
    assert "latency" in printed(capsys, "forward.json", "--objective", "latency", "--planner", planner)


def test_devices_and_memory_can_be_other_than_the_graph_s(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--planner", "local-search", "--devices", "6", "--cpus", "0", "--memory", "2e9", "--seed", "5")
    plan = placed(capsys, "line.json", *arguments)
    assert (plan["accelerators"], plan["cpus"], plan["accelerator_bytes"]) == (6, 0, 2e9)
    assert sorted(plan["assignment"].values()) == [d for d in range(6) for _ in range(2)]
    assert plan["provenance"]["seed"] == 5
    assert plan["baselines"]["one_device_s"] is None
    assert plan == placed(capsys, "line.json", *arguments) | {"seconds": plan["seconds"]}


def test_options_of_the_cost_model_change_the_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = ("line.json", "--planner", "local-search", "--memory", "20e9")
    both, most = placed(capsys, *free), placed(capsys, *free, "--communication", "max")
    split = placed(capsys, *free, "--split-passes")
    assert both["value"] == max(np.add(both["compute_s"], both["transfer_s"]))
    assert most["value"] == max(np.maximum(most["compute_s"], most["transfer_s"]))
    assert split["split_passes"]
    assert split["value"] >= both["value"]


def test_an_expert_s_split_is_taken_from_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = [[1, 2], [3, 4], [5, 6]]
    split = {"fpgas": [{"nodes": nodes} for nodes in held], "cpus": [{"nodes": []}], "maxLoad": -1}
    Path("split.json").write_text(json.dumps(split), encoding="utf-8")
    plan = placed(capsys, "line.json", "--planner", "expert", "--split", "split.json")
    assert plan["loads_s"] == pytest.approx([0.042, 0.044, 0.042, 0.0])
    assert [plan["assignment"][str(node)] for nodes in held for node in nodes] == [0, 0, 1, 1, 2, 2]


def test_a_placement_read_back_is_costed_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = placed(capsys, "line.json", "--planner", "ideals", "--devices", "2", "--out", "p.json")
    again = placed(capsys, "line.json", "--plan", "p.json")
    for key in ("planner", "accelerators", "value", "assignment", "loads_s", "status"):
        assert again[key] == first[key]
    assert "costed again" in " ".join(again["notes"])


def test_a_model_is_traced_contracted_and_placed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    arguments = ("their_layers:make_step", "--batch", "1024", "--devices", "3", "--planner", "local-search")
    assert main([*arguments, "--nodes", "12", "--link", "1e12", "--json", "--out", "p.json"]) == 0
    out, err = capsys.readouterr()
    assert "hello from the user's module" in err
    plan = json.loads(out)
    assert 6 <= len(plan["assignment"]) <= 12
    assert set(plan["assignment"].values()) == {0, 1, 2}
    assert plan["value"] < 0.6 * plan["baselines"]["one_device_s"]
    assert (
        main(["their_layers:make_step", "--batch", "1024", "--nodes", "12", "--link", "1e12", "--plan", "p.json"]) == 0
    )


def test_an_hlo_file_of_inference_is_placed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jax = pytest.importorskip("jax")
    _, arguments = call_factory("their_layers:make_step")
    text = jax.jit(sys.modules["their_layers"].loss).lower(*arguments).as_text(debug_info=True)
    Path("loss.mlir").write_text(text, encoding="utf-8")
    capsys.readouterr()
    plan = placed(
        capsys, "loss.mlir", "--devices", "1", "--cpus", "1", "--objective", "latency", "--planner", "local-search"
    )
    assert plan["objective"] == "latency"
    assert plan["value"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json"], "none.json: cannot be read"),
        (
            ["bert47", "--devices", "2"],
            "bert47: is neither a file nor a known model; did you mean bert48, bert-base, ",
        ),
        (["vgg19"], "--devices: a model brings no devices"),
        (["their_layers.py"], "their_layers.py: is Python source"),
        (["line.json", "--planner", "magic"], "unknown planner 'magic'; choose from "),
        (["line.json", "--nodes", "20"], "--nodes: does not apply: line.json "),
        (["line.json", "--batch", "20"], "--batch: does not apply: line.json "),
        (["line.json", "--devices", "1e3"], "--devices: '1e3' is no whole number"),
        (["line.json", "--devices", "99999999"], "--devices: 99999999 devices; give 0 to 4,096"),
        (["line.json", "--memory", "nan"], "--memory: nan bytes"),
        (["line.json", "--time-limit", "0"], "--time-limit: 0 seconds"),
        (["line.json", "--time-limit", "inf"], "--time-limit: inf seconds"),
        (["line.json", "--finetune", "-3"], "--finetune: -3 seconds"),
        (["line.json", "--objective", "latency"], "line: has a backward pass"),
        (["line.json", "--planner", "ideals", "--split", "s.json"], "--split: is for --planner expert"),
        (["line.json", "--planner", "expert", "--split", "s.json"], "s.json: cannot be read"),
        (["line.json", "--pieces", "2"], "--pieces: 2 subgraphs a device; they are for latency only"),
        (["line.json", "--out", "line.json"], "line.json for the placement: is an input, too"),
        (["line.json", "--out", "nowhere/p.json"], "nowhere/p.json: there is no folder"),
        (["line.json", "--plot", "p.gif"], "p.gif: no kind of picture ends in '.gif'"),
        (["line.json", "--out", "p.png", "--plot", "p.png"], "p.png for the plot: is where the placement goes, too"),
        (["line.json", "--plan", "line.json"], "line.json: the document has the unknown key"),
        (["line.json", "--plan", "p.json", "--seed", "1"], "--seed: the placement read has its own"),
        (["line.json", "--plan", "p.json", "--seed", "0"], "--seed: the placement read has its own"),
        (["line.json", "--plan", "p.json", "--cpus", "0"], "--cpus: the placement read has its own"),
    ],
)
def test_a_mistake_costs_one_line(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    planner = () if "--plan" in arguments else ("--planner", "local-search")
    assert message in refused(*planner, *arguments)


def test_files_that_are_no_graphs_are_refused(folder: Path, refused: Callable[..., str]) -> None:
    np.savez("profile.npz", C=np.ones(3))
    Path("other.json").write_text('{"nodes": []}', encoding="utf-8")
    Path("cycle.json").write_text(
        json.dumps(document() | {"edges": [*document()["edges"], {"sourceId": 3, "destId": 1, "cost": 1}]}), "utf-8"
    )
    Path("unknown.json").write_text(
        json.dumps(document() | {"edges": [{"sourceId": 3, "destId": 99, "cost": 1}]}), "utf-8"
    )
    Path("unsupported.json").write_text(
        json.dumps(document(maxCPUs=0) | {"nodes": [{**document()["nodes"][0], "supportedOnFpga": 0}], "edges": []}),
        "utf-8",
    )
    for name, message in (
        ("profile.npz", "give device-placement JSON, an HLO file or a model"),
        ("other.json", "is no device-placement graph: it has no maxFPGAs"),
        ("cycle.json", "the edges form a cycle, 1 → 2 → 3 → 1"),
        ("unknown.json", "edges[0]: there is no node with id 99"),
        ("unsupported.json", "no device supports node 1 (layer 1)"),
    ):
        assert message in refused(name, "--planner", "ideals")


@pytest.mark.parametrize("objective", ["throughput", "step"])
def test_what_fits_nowhere_is_infeasible(objective: str, refused: Callable[..., str]) -> None:
    """12 GB of operators, 2 GB a class, on two accelerators of 4 GB; of 6 GB each would hold three classes."""
    arguments = ("line.json", "--devices", "2", "--cpus", "0", "--objective", objective)
    planner = "local-search" if objective == "throughput" else "learned"
    sentence = refused(*arguments, "--memory", "4e9", "--planner", planner, code=3)
    assert "nothing fits below 6 GB for each" in sentence
    assert "try 6 GB for each accelerator, with which there is one" in sentence
    alone = refused(*arguments, "--memory", "1e9", code=3)
    assert "line: nodes 1, 11, which must share a device, need 2 GB" in alone
    assert "at least 2 GB (--memory)" in alone


def test_a_step_s_devices_and_policy_must_be_usable(refused: Callable[..., str]) -> None:
    """Two islands of devices without a link between them; a policy of pipelines, of another version, and no policy."""
    islands = "nodes: 1\ndevices_per_node: 4\nintra: 10 GB/s\ninter: 1 GB/s\nmemory: 32 GB\n"
    links = "links: [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]\n"
    Path("islands.yaml").write_text(islands + links, encoding="utf-8")
    step = ("line.json", "--objective", "step")
    assert "there is no link from 0 to 2" in refused(*step, "--devices", "islands.yaml")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(zoo_dir() / "placer.onnx"))
    onnx.helper.set_model_props(model, {"kind": "placer", "version": "99"})
    onnx.save(model, "new.onnx")
    assert "is a policy of version 99, this program reads version 2" in refused(*step, "--policy", "new.onnx")
    assert "is no policy that places" in refused(*step, "--policy", str(zoo_dir() / "pipeline.onnx"))
    assert "no such policy file" in refused(*step, "--policy", "none.onnx")
    assert "cannot be read as an ONNX model" in refused(*step, "--policy", "line.json")
    cycle = json.dumps(document() | {"edges": [*document()["edges"], {"sourceId": 3, "destId": 1, "cost": 1}]})
    Path("cycle.json").write_text(cycle, encoding="utf-8")
    assert "the edges form a cycle, 1 → 2 → 3 → 1" in refused("cycle.json", "--objective", "step")


def test_a_graph_without_types_of_operations_says_what_the_policy_sees(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = placed(capsys, "line.json", "--objective", "step", "--devices", "2")["notes"]
    assert any("all are embedded as unknown to the policy" in note for note in notes)


def test_ctrl_c_still_belongs_to_python_after_cp_sat(folder: Path) -> None:
    """CP-SAT takes the signal for itself and left it to kill the process without a word in all that came after."""
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from automap_models.infer.app import place as main
assert main(["line.json", "--planner", "milp", "--time-limit", "1"]) == 0
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("caught")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["caught"]), done.stderr


def test_a_step_is_placed_on_a_cluster_and_read_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster's devices are in the file; the file costs what it says."""
    cluster = "nodes: 1\ndevices_per_node: 3\nintra: 10 GB/s\ninter: 1 GB/s\nmemory: 32 GB\n"
    (folder / "three.yaml").write_text(cluster)
    options = ("--objective", "step", "--devices", "three.yaml", "--planner", "learned", "--out", "p.json")
    value = placed(capsys, "line.json", *options)
    assert value["objective"] == "step"
    assert value["network"]["names"] == ["0", "1", "2"]
    assert any("the best baseline, " in note for note in value["notes"])
    assert placed(capsys, "line.json", "--plan", "p.json")["value"] == pytest.approx(value["value"])


def test_the_times_of_a_step_are_those_of_the_kind_that_the_cluster_is_made_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Placements on H100 had the times of V100, unless --accelerator sentence otherwise."""
    pytest.importorskip("jax")
    cluster = "nodes: 1\ndevices_per_node: 1\nintra: 10 GB/s\ninter: 1 GB/s\nmemory: 32 GB\ndevice: h100\n"
    (folder / "one.yaml").write_text(cluster)
    (folder / "silent.yaml").write_text(cluster.replace("device: h100", ""))
    model = ("their_layers:make_step", "--batch", "1024", "--objective", "step", "--planner", "expert")
    assert main((*model, "--devices", "1", "--json")) == 0
    capsys.readouterr()  # the user's module greets when it is imported
    named = placed(capsys, *model, "--devices", "one.yaml", "--out", "p.json")
    assert named["network"]["kinds"] == ["h100"]
    h100 = placed(capsys, *model, "--devices", "silent.yaml", "--accelerator", "h100")
    v100 = placed(capsys, *model, "--devices", "silent.yaml")
    assert named["value"] == pytest.approx(h100["value"])
    assert named["value"] < 0.9 * v100["value"]
    assert placed(capsys, *model[:3], "--plan", "p.json")["value"] == named["value"]


def test_a_placed_step_runs_on_devices_of_this_host_and_gives_what_one_device_gives(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    model = ("their_layers:make_step", "--objective", "step", "--devices", "3", "--planner", "expert")
    assert main((*model, "--verify", "--out", "p.json")) == 0
    capsys.readouterr()
    document = json.loads(Path("p.json").read_text(encoding="utf-8"))
    ran = document["verified"]
    assert ran["equal"] and ran["devices"] == len(set(document["assignment"].values())) == 3
    assert ran["moved"] > 0
    assert '"equal": true' in printed(capsys, "their_layers:make_step", "--plan", "p.json", "--verify", "--json")


def test_what_cannot_be_verified_is_refused(refused: Callable[..., str]) -> None:
    step = ("--objective", "step", "--planner", "expert")
    assert "line.json is a profile" in refused("line.json", "--verify", *step)
    assert "--verify: is for --objective step" in refused("vgg19", "--verify", "--devices", "2", "--planner", "ideals")


def test_what_a_step_does_not_have_is_refused(refused: Callable[..., str]) -> None:
    assert "a cluster is for --objective step" in refused("line.json", "--devices", "C")
    assert "is for --planner learned" in refused("line.json", "--finetune", "1")
    assert "is for --planner learned" in refused(
        "line.json", "--objective", "step", "--planner", "metis", "--finetune", "1"
    )
    assert "is the cluster's" in refused("line.json", "--objective", "step", "--devices", "C", "--memory", "1 GB")
