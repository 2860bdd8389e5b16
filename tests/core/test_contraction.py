"""Contraction of placement problems, worked out by hand, and what it must not change."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.contraction import Contraction, contract
from automap_models.core.dag import find_cycle
from automap_models.core.placement import PlacementPlan, PlacementProblem, device_memory_bytes
from automap_models.cost.placement import placement_cost
from automap_models.formats.planning_graphs import parse_placement


def _problem(nodes: list[dict[str, Any]], edges: list[tuple[int, int]], memory: float = 1e9) -> PlacementProblem:
    """Nodes numbered from 0 that take 1 ms and a byte unless they say otherwise; the transfer from node i, i + 1 ms."""
    document = {
        "maxSizePerFPGA": memory,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": i,
                "supportedOnFpga": 1,
                "fpgaLatency": 1.0,
                "cpuLatency": 8.0,
                "isBackwardNode": 0,
                "size": 1.0,
                **n,
            }
            for i, n in enumerate(nodes)
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": a + 1.0} for a, b in edges],
    }
    return PlacementProblem.create(parse_placement(json.dumps(document).encode(), where="g.json", model="g"))


IDLE = {"fpgaLatency": 0.0, "cpuLatency": 0.0}
BACKWARD = {"isBackwardNode": 1}


def _nets(units: Contraction) -> dict[tuple[int, ...], tuple[int, float]]:
    """Units of each net → its pass and ms."""
    ends = zip(units.net_start[:-1], units.net_start[1:], strict=True)
    members = [tuple(units.net_units[a:b].tolist()) for a, b in ends]
    facts = zip(units.net_pass.tolist(), (units.net_s * 1e3).round(9).tolist(), strict=True)
    return dict(zip(members, facts, strict=True))


def test_a_training_chain_is_a_chain_of_units() -> None:
    """0 → 1 → 2 forward, 5 → 4 → 3 backward, i and i + 3 of one class; 1 feeds 2 and 4."""
    nodes = [{"colorClass": i} for i in range(3)] + [{"colorClass": i, **BACKWARD} for i in range(3)]
    units = contract(_problem(nodes, [(0, 1), (1, 2), (1, 4), (2, 5), (5, 4), (4, 3)]))
    assert units.unit_of.tolist() == [0, 1, 2, 0, 1, 2]
    assert units.order.tolist() == [[0, 1], [1, 2]]
    np.testing.assert_allclose(units.accelerator_s, np.full((2, 3), 1e-3))
    np.testing.assert_allclose(units.cpu_s, np.full((2, 3), 8e-3))
    assert units.memory_bytes.tolist() == [2, 2, 2]
    # 0 → 1 and 1 → 2 forward; 5 → 4 and 4 → 3 backward join units 1, 2 and 0, 1. 1 → 4 and 2 → 5 cross nothing.
    ends = list(zip(units.net_start[:-1].tolist(), units.net_start[1:].tolist(), strict=True))
    nets = [
        (kind, tuple(units.net_units[a:b].tolist()), round(s * 1e3, 9))
        for kind, (a, b), s in zip(units.net_pass.tolist(), ends, units.net_s.tolist(), strict=True)
    ]
    assert sorted(nets) == [(0, (0, 1), 1.0), (0, (1, 2), 2.0), (1, (0, 1), 5.0), (1, (1, 2), 6.0)]


def test_an_output_with_several_readers_is_one_net() -> None:
    units = contract(_problem([{}] * 4, [(0, 1), (0, 2), (0, 3)]))
    assert _nets(units) == {(0, 1, 2, 3): (0, 1.0)}


def test_classes_that_wait_for_each_other_are_fused() -> None:
    """0 → 1 → 2 with 0 and 2 in one class: no device can hold 0 and 2 without 1 and be contiguous."""
    units = contract(_problem([{"colorClass": 7}, {}, {"colorClass": 7}, {}], [(0, 1), (1, 2), (2, 3)]))
    assert units.unit_of.tolist() == [0, 0, 0, 1]
    assert units.order.tolist() == [[0, 1]]
    assert _nets(units) == {(0, 1): (0, 3.0)}


def test_a_backward_class_without_forward_nodes_is_ordered_by_its_backward_edges() -> None:
    """0 → 1 forward; 2 (of 1's class) → 3 (alone) → 4 (of 0's class) backward: 3 lies between them, mirrored."""
    nodes = [
        {"colorClass": 0},
        {"colorClass": 1},
        {"colorClass": 1, **BACKWARD},
        BACKWARD,
        {"colorClass": 0, **BACKWARD},
    ]
    units = contract(_problem(nodes, [(0, 1), (2, 3), (3, 4)]))
    assert units.unit_of.tolist() == [0, 1, 1, 2, 0]
    assert units.order.tolist() == [[0, 1], [0, 2], [2, 1]]


def test_backward_edges_between_classes_with_forward_nodes_order_nothing() -> None:
    nodes = [{"colorClass": 0}, {"colorClass": 1}, {"colorClass": 0, **BACKWARD}, {"colorClass": 1, **BACKWARD}]
    assert contract(_problem(nodes, [(2, 3)])).order.size == 0


def test_idle_operators_join_their_only_neighbour_one_after_the_other() -> None:
    """0 → 1 → 2 → 3 with 0 and 1 idle: 0 joins 1, then both join 2; 4 is idle but has two neighbours."""
    units = contract(_problem([IDLE, IDLE, {}, {}, IDLE], [(0, 1), (1, 2), (2, 3), (2, 4), (3, 4)]))
    assert units.unit_of.tolist() == [0, 0, 0, 1, 2]
    assert units.lossless


def test_an_idle_operator_for_cpus_only_does_not_take_its_neighbour_off_the_accelerators() -> None:
    units = contract(_problem([{**IDLE, "supportedOnFpga": 0}, {}], [(0, 1)]))
    assert units.supported.tolist() == [False, True]


def test_bytes_of_idle_operators_matter_where_memory_is_scarce() -> None:
    nodes, edges = [{**IDLE, "size": 6.0}, {"size": 5.0}], [(0, 1)]
    assert contract(_problem(nodes, edges, memory=11)).lossless
    scarce = _problem(nodes, edges, memory=10)
    assert not contract(scarce).lossless
    assert len(contract(scarce)) == 1
    kept = contract(scarce, lossless=True)
    assert kept.lossless
    assert len(kept) == 2


@st.composite
def _problems(draw: st.DrawFn) -> PlacementProblem:
    n = draw(st.integers(2, 12))
    forward = draw(st.integers(1, n))
    nodes = []
    for i in range(n):
        node = draw(st.sampled_from([{}, IDLE, {"supportedOnFpga": 0}, {"fpgaLatency": 3.0, "size": 4.0}]))
        colour = draw(st.sampled_from([{}, {}, {"colorClass": 0}, {"colorClass": 1}, {"colorClass": 2}]))
        nodes.append({**node, **colour, **(BACKWARD if i >= forward else {})})
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw(st.integers(0, 3)) == 0]
    return _problem(nodes, edges, memory=draw(st.sampled_from([4.0, 8.0, 1e9])))


@given(_problems(), st.booleans(), st.randoms(use_true_random=False))
def test_units_say_what_their_nodes_say(problem: PlacementProblem, lossless: bool, random: Any) -> None:
    """Order acyclic, classes whole, and for any placement of units the same memory and the same loads."""
    units = contract(problem, lossless=lossless)
    m, graph = len(units), problem.graph
    assert units.lossless or not lossless
    successors: list[list[int]] = [[] for _ in range(m)]
    for a, b in units.order.tolist():
        successors[a].append(b)
    assert find_cycle(successors) is None
    for of_class in map(graph.classes.__eq__, set(graph.classes.tolist())):
        assert len(set(units.unit_of[of_class].tolist())) == 1
    devices = np.array([random.randrange(problem.devices) for _ in range(m)])
    assignment = units.expand(devices)
    memory = np.bincount(devices, weights=units.memory_bytes, minlength=problem.devices)
    np.testing.assert_array_equal(memory, device_memory_bytes(problem, assignment))
    loads = []
    for device in range(problem.devices):
        held = devices == device
        load = float((units.accelerator_s if device < problem.accelerators else units.cpu_s)[:, held].sum())
        for net in range(units.net_s.size):
            some = held[units.net_units[units.net_start[net] : units.net_start[net + 1]]]
            load += float(units.net_s[net]) * (device < problem.accelerators and some.any() and not some.all())
        loads.append(load)
    np.testing.assert_allclose(max(loads), placement_cost(problem, PlacementPlan("", assignment)).value_s, rtol=1e-12)
    supported = PlacementPlan("units", assignment).check_valid(problem)[0]
    fits = (memory[: problem.accelerators] <= problem.memory_bytes).all()
    assert supported == bool(fits and units.supported[devices < problem.accelerators].all())
