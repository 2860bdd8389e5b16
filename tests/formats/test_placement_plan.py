"""placement.json: what is written is read back, and a file that contradicts itself is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from automap_models.core.placement import PlacementPlan, PlacementProblem, PlacementResult
from automap_models.core.result import Bound, Result
from automap_models.core.step_devices import StepDevices
from automap_models.cost.placement import gap, placement_cost
from automap_models.errors import BadInput
from automap_models.formats.atomic import json_text
from automap_models.formats.placement_plan import NetworkDocument, placement_document, read_placement_plan
from automap_models.formats.planning_graphs import parse_placement

DOCUMENT = {
    "maxSizePerFPGA": 100,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 10, "fpgaLatency": i, "isBackwardNode": 0, "size": 20}
        for i in (1, 2, 3)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 5}, {"sourceId": 2, "destId": 3, "cost": 6}],
}
GRAPH = parse_placement(json.dumps(DOCUMENT).encode(), where="g.json", model="g")


def throughput_result() -> PlacementResult:
    """Nodes 1 and 2 on accelerator 0, node 3 on accelerator 1: loads 1 + 2 + 6 and 3 + 6 ms."""
    problem = PlacementProblem.create(GRAPH)
    plan = PlacementPlan("by hand", np.array([0, 0, 1]))
    facts = {"one_device_s": 0.006, "seed": 3, "time_limit_s": 9.0}
    bound = Bound(0.006, "relaxation")
    return Result(problem, plan, placement_cost(problem, plan), "feasible", bound, facts=facts, taken_s=0.25)


def latency_result() -> PlacementResult:
    """One subgraph, then a node on a CPU, then another subgraph of the same accelerator."""
    problem = PlacementProblem.create(GRAPH, objective="latency", pieces=2)
    plan = PlacementPlan("by hand", np.array([0, 2, 0]), np.array([0, 0, 1]))
    return Result(problem, plan, placement_cost(problem, plan), "optimal", taken_s=0.25)


def test_the_document_says_what_the_plan_is_worth() -> None:
    document = placement_document(throughput_result())
    expected = {
        "schema": 1,
        "kind": "placement",
        "model": "g",
        "planner": "by hand",
        "objective": "throughput",
        "value": pytest.approx(0.009),
        "bound": 0.006,
        "gap": pytest.approx(0.5),
        "status": "feasible",
        "loads_s": pytest.approx([0.009, 0.009, 0.0]),
        "memory_bytes": [40.0, 20.0, 0.0],
        "assignment": {"1": 0, "2": 0, "3": 1},
        "pieces": None,
        "seconds": 0.25,
    }
    assert {key: document[key] for key in expected} == expected
    assert document["provenance"]["seed"] == 3


@pytest.mark.parametrize("result", [throughput_result(), latency_result()], ids=["throughput", "latency"])
def test_what_is_written_is_read_back(result: PlacementResult, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json_text(placement_document(result)), "utf-8")
    again = read_placement_plan(tmp_path / "p.json", lambda _: GRAPH)
    again = replace(again, facts=result.facts, taken_s=result.taken_s)
    assert placement_document(again) == placement_document(result)
    assert json.loads((tmp_path / "p.json").read_text()) == placement_document(result)


def test_a_file_has_the_rules_by_which_devices_run() -> None:
    network = replace(StepDevices.equal(2, 1, 1e9, 1.0, 2.0), order="arrival", turns=False)
    again = NetworkDocument.from_devices(network).network()
    assert (again.order, again.turns) == ("arrival", False)
    older = NetworkDocument.from_devices(network).builtins()
    del older["order"], older["turns"]
    rules = msgspec.convert(older, NetworkDocument).network()
    assert (rules.order, rules.turns) == ("path", True)


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


REFUSED = [
    (_set("colour", to="red"), r"the document has the unknown key 'colour'"),
    (_set("schema", to=2), r"p\.json: \$\.schema is 2, not 1"),
    (_set("kind", to="pipeline"), r"\$\.kind is 'pipeline', not placement; automap infer, or .* reads it with `plan`"),
    (_set("provenance", "graph_fingerprint", to="0" * 64), r"belongs to another graph than g"),
    (_set("accelerators", to=10**12), r"1000000000000 devices"),
    (_set("cpus", to=-1), r"-1 devices"),
    (_set("pieces_per_accelerator", to=10**9), r"1000000000 subgraphs"),
    (_set("objective", to="speed"), r"\$\.objective is 'speed', not latency or step or throughput"),
    (_set("accelerator_bytes", to="much"), r"\$\.accelerator_bytes is 'much', not a number"),
    (_set("assignment", "9", to=0), r"\$\.assignment: there is no node with id 9"),
    (_drop("assignment", "3"), r"\$\.assignment\.3 is missing"),
    (_set("assignment", "3", to=1.5), r"\$\.assignment\.3 is 1\.5, not a whole number"),
    (_set("assignment", "3", to=10**30), rf"\$\.assignment\.3 is {10**30}, not a whole number ≤ 9007199254740992"),
    (_set("assignment", "3", to=7), r"node 3 is on a device outside 0\.\.2"),
    (_set("assignment", "3", to=0), r"\$\.value is 0\.009.*, not 0\.006.* as its assignment makes it"),
    (_set("assignment", to=[0, 0, 1]), r"\$\.assignment is \[0, 0, 1\], not a mapping of keys to values"),
    (_set("value", to=0.008), r"\$\.value is 0\.008, not 0\.009.* as its assignment makes it"),
    (_set("loads_s", 0, to=0.008), r"loads_s is .*, not \[0\.009.*, 0\.009.*, 0\.0\] as its assignment makes it"),
    (_set("memory_bytes", to=[40.0]), r"memory_bytes is \[40\.0\], not \[40\.0, 20\.0, 0\.0\]"),
    (_set("memory_bytes", to=None), r"\$\.memory_bytes is None, not a list"),
    (_set("bound", to=1.0), r"bound is 1\.0, not a lower bound of value"),
    (_set("status", to="perfect"), r"\$\.status is 'perfect', not feasible or optimal"),
    (_set("accelerator_bytes", to=30.0), r"device 0 needs 4e-08 GB, an accelerator has 3e-08 GB"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_file_that_is_wrong_is_refused_in_one_sentence(
    spoil: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    document = placement_document(throughput_result())
    spoil(document)
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match=message) as refusal:
        read_placement_plan(tmp_path / "p.json", lambda _: GRAPH)
    assert "\n" not in str(refusal.value)


def test_a_bound_of_zero_leaves_no_gap() -> None:
    result = throughput_result()
    assert gap(result) == pytest.approx(0.5)
    assert gap(replace(result, bound=Bound(0.0, "relaxation"))) is None
    assert gap(replace(result, bound=None)) is None
