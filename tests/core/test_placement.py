"""Placement problems that make no sense, and plans that do not solve theirs: each named in one sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.errors import BadInput, Infeasible


def chain(**changes: Any) -> PlacementGraph:
    """Nodes 10 → 11 → 12 → 13 of 1, 2, 3 and 4 bytes on two accelerators of 6 bytes and one CPU."""
    graph = PlacementGraph(
        ids=(10, 11, 12, 13),
        names=("", "MatMul", "", ""),
        accelerator_s=np.ones(4),
        cpu_s=np.ones(4),
        memory_bytes=np.arange(1.0, 5.0),
        transfer_s=np.ones(4),
        output_bytes=np.ones(4),
        supported=np.ones(4, dtype=np.bool_),
        backward=np.zeros(4, dtype=np.bool_),
        classes=np.arange(4),
        edges=np.array([[0, 1], [1, 2], [2, 3]]),
        accelerators=2,
        cpus=1,
        accelerator_bytes=6.0,
        meta={"model": "chain"},
    )
    return replace(graph, **changes)


UNSUPPORTED = np.array([True, False, True, True])
TWO_APART = np.array([0, 1, 0, 2])


@pytest.mark.parametrize(
    ("graph", "overrides", "message"),
    [
        ({}, {"accelerators": -1}, r"`accelerators`: -1 devices; give 0 to 4,096"),
        ({}, {"accelerators": 10**9}, r"`accelerators`: 1000000000 devices"),
        ({}, {"cpus": 10**400}, r"`cpus`: 10+ devices"),
        ({}, {"accelerators": 0, "cpus": 0}, r"`accelerators`: there is no device to place anything on"),
        ({}, {"memory_bytes": math.nan}, r"`memory_bytes`: nan bytes"),
        ({}, {"memory_bytes": math.inf}, r"`memory_bytes`: inf bytes"),
        ({}, {"memory_bytes": -1.0}, r"`memory_bytes`: -1\.0 bytes"),
        ({}, {"objective": "latency", "pieces": 0}, r"`pieces`: 0 subgraphs"),
        ({}, {"objective": "latency", "pieces": 10**9}, r"`pieces`: 1000000000 subgraphs a device; give 1 to 64"),
        ({}, {"pieces": 2}, r"`pieces`: 2 subgraphs a device; they are for latency only"),
        ({}, {"objective": "speed"}, r"`objective`: is 'speed'; choose from throughput, latency"),
        ({}, {"communication": "min"}, r"`communication`: is 'min'; choose from sum, max"),
        ({}, {"objective": "latency", "communication": "max"}, r"`communication='max'`: is for throughput"),
        ({}, {"objective": "latency", "split_passes": True}, r"`split_passes`: is for throughput"),
        (
            {"backward": np.array([False, False, True, True])},
            {"objective": "latency"},
            r"chain: has a backward pass, but latency is that of one sample's inference",
        ),
        ({"edges": np.array([[0, 1], [1, 2], [2, 1]])}, {}, r"chain: the edges form a cycle, 11 → 12 → 11"),
        (
            {"supported": UNSUPPORTED},
            {"cpus": 0},
            r"chain: no device supports node 11 \(MatMul\): it does not run on accelerators, and there is no CPU; "
            r"give at least one CPU with `cpus`",
        ),
    ],
)
def test_a_problem_without_sense_is_refused(graph: dict[str, Any], overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        PlacementProblem.create(chain(**graph), **overrides)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("graph", "overrides", "message"),
    [
        (
            {},
            {"cpus": 0, "memory_bytes": 2.5},
            r"chain: node 12 needs 3e-09 GB, an accelerator has 2\.5e-09 GB, and there is no CPU; "
            r"give accelerators with at least 4e-09 GB",
        ),
        (
            {"classes": np.array([0, 1, 2, 0])},
            {"cpus": 0, "memory_bytes": 4.5},
            r"chain: nodes 10, 13, which must share a device, need 5e-09 GB, an accelerator has 4\.5e-09 GB",
        ),
    ],
)
def test_what_fits_no_device_alone_is_infeasible(
    graph: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(Infeasible, match=message):
        PlacementProblem.create(chain(**graph), **overrides)


def test_with_a_cpu_there_is_a_place_for_everything() -> None:
    problem = PlacementProblem.create(chain(supported=UNSUPPORTED, classes=TWO_APART), memory_bytes=3.5)
    # 11 is not supported, 10 and 12 take 4 bytes together, 13 takes 4
    assert problem.may_accelerate.tolist() == [False, False, False, False]
    assert PlacementProblem.create(chain(supported=UNSUPPORTED, classes=TWO_APART)).may_accelerate.tolist() == [
        True,
        False,
        True,
        True,
    ]


def test_a_class_is_supported_only_as_a_whole() -> None:
    problem = PlacementProblem.create(chain(supported=UNSUPPORTED, classes=np.array([0, 0, 1, 1])))
    assert problem.class_supported.tolist() == [False, False, True, True]
    assert problem.class_memory_bytes.tolist() == [3.0, 3.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("graph", "assignment", "reason"),
    [
        ({}, [0, 0, 0, 1], ""),
        ({}, [2, 2, 2, 2], ""),
        ({}, [0, 0, 0], "assignment has shape (3,) instead of (4,)"),
        ({}, [0, 0, 0, 3], "node 13 is on a device outside 0..2"),
        ({}, [0, -1, 0, 1], "node 11 (MatMul) is on a device outside 0..2"),
        ({"supported": UNSUPPORTED}, [0, 0, 0, 1], "node 11 (MatMul) is on an accelerator, which does not support it"),
        ({"supported": UNSUPPORTED}, [0, 2, 0, 1], ""),
        ({"classes": TWO_APART}, [0, 0, 1, 1], "node 12 is on another device than its class"),
        ({}, [0, 1, 1, 1], "device 1 needs 9e-09 GB, an accelerator has 6e-09 GB"),
    ],
)
def test_a_plan_says_why_it_does_not_solve_its_problem(
    graph: dict[str, Any], assignment: list[int], reason: str
) -> None:
    plan = PlacementPlan("by hand", np.array(assignment))
    assert plan.check_valid(PlacementProblem.create(chain(**graph))) == (not reason, reason)


@pytest.mark.parametrize(
    ("assignment", "pieces", "q", "reason"),
    [
        ([0, 0, 1, 1], None, 1, ""),
        ([0, 2, 0, 2], None, 1, "subgraph 0 of device 0 is not contiguous or waits for one that waits for it"),
        ([0, 2, 0, 2], [0, 0, 1, 0], 2, ""),
        ([0, 2, 0, 2], [1, 0, 0, 0], 2, "subgraph 0 of device 0 is not contiguous or waits for one that waits for it"),
        ([0, 2, 0, 2], [0, 0, 2, 0], 2, "node 12 is in subgraph 2 outside 0..1"),
        ([0, 2, 0, 2], [0, 7, 1, 7], 2, ""),
        ([0, 1, 0, 1], None, 1, "subgraph 0 of device 0 is not contiguous or waits for one that waits for it"),
    ],
)
def test_subgraphs_must_be_able_to_run(assignment: list[int], pieces: list[int] | None, q: int, reason: str) -> None:
    problem = PlacementProblem.create(chain(accelerator_bytes=10.0), objective="latency", pieces=q)
    plan = PlacementPlan("by hand", np.array(assignment), None if pieces is None else np.array(pieces))
    assert plan.check_valid(problem) == (not reason, reason)


def test_two_contiguous_subgraphs_may_still_wait_for_each_other() -> None:
    # 10 → 11 and 12 → 13, with {10, 13} on one accelerator and {11, 12} on the other
    graph = chain(edges=np.array([[0, 1], [2, 3]]))
    problem = PlacementProblem.create(graph, objective="latency")
    ok, reason = PlacementPlan("by hand", np.array([0, 1, 1, 0])).check_valid(problem)
    assert not ok
    assert "waits for" in reason
    assert PlacementPlan("by hand", np.array([0, 1, 1, 0])).check_valid(PlacementProblem.create(graph))[0]


def test_a_throughput_plan_has_no_subgraphs() -> None:
    plan = PlacementPlan("by hand", np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64))
    assert plan.check_valid(PlacementProblem.create(chain(accelerator_bytes=10.0))) == (
        False,
        "subgraphs are for latency only",
    )


def test_a_fingerprint_changes_with_every_figure() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"ids": (10, 11, 12, 14)},
        {"cpu_s": np.full(4, 2.0)},
        {"transfer_s": np.full(4, 2.0)},
        {"classes": TWO_APART},
        {"edges": np.array([[0, 1], [1, 2]])},
    ]
    assert len({chain(**change).fingerprint for change in changes}) == len(changes)
    assert chain().fingerprint == chain(names=("a", "b", "c", "d")).fingerprint
