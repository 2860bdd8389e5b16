"""Costs of placements: the published figures, and definitions written out a second time, slowly."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.cost.placement import latency_s, placement_cost
from automap_models.formats.planning_graphs import read_placement

EXPERTS = {
    "LayerGraphs_bert24_inference": ("bert24_inference", 20.08),
    "LayerGraphs_bert24_training": ("bert24_training", 49.40),
    "LayerGraphs_resnet50_inference": ("resnet50_inference", 43.92),
    "LayerGraphs_resnet50_training": ("resnet50_inference", 112.11),  # backward nodes follow their colour
}
ONE_DEVICE_MS = {
    "LayerGraphs_bert24_inference": 92.41,
    "LayerGraphs_bert24_training": 217.81,
    "LayerGraphs_resnet50_inference": 201.45,
    "LayerGraphs_resnet50_training": 462.38,
    "OperatorGraphs_bert_l-3_inference": 49.35,
    "OperatorGraphs_bert_l-3_training": 122.99,
}
GREEDY_LATENCY_MS = {
    "LayerGraphs_bert24_inference": 100.22,
    "LayerGraphs_resnet50_inference": 4197.06,
    "OperatorGraphs_bert_l-3_inference": 416.20,
}
DIGITS_MS = 0.005 + 1e-9
"""The tables have two digits after the point."""


@pytest.fixture(scope="module")
def graphs(shared_data: Path) -> Path:
    return shared_data / "placement_graphs"


@pytest.mark.parametrize("name", EXPERTS)
def test_an_expert_split_costs_what_the_paper_says(name: str, graphs: Path) -> None:
    split, value_ms = EXPERTS[name]
    problem = PlacementProblem.create(read_placement(graphs / f"throughput-inputs_{name}.json"))
    document = json.loads((graphs / f"human-experts_{split}_expert.json").read_text())
    device_of_class = {}
    for device, held in enumerate([*document["fpgas"], *document["cpus"]]):
        for node in held["nodes"]:
            device_of_class[problem.graph.classes[problem.graph.ids.index(node)]] = device
    plan = PlacementPlan("expert", np.array([device_of_class[c] for c in problem.graph.classes]))
    cost = placement_cost(problem, plan)
    assert cost.feasible
    assert cost.value_s * 1e3 == pytest.approx(value_ms, abs=DIGITS_MS)


@pytest.mark.parametrize("name", ONE_DEVICE_MS)
def test_one_device_costs_what_the_paper_says(name: str, graphs: Path) -> None:
    problem = PlacementProblem.create(read_placement(graphs / f"throughput-inputs_{name}.json"))
    plan = PlacementPlan("single", np.zeros(len(problem.graph), dtype=np.int64))
    assert placement_cost(problem, plan).value_s * 1e3 == pytest.approx(ONE_DEVICE_MS[name], abs=DIGITS_MS)


@pytest.mark.parametrize("name", GREEDY_LATENCY_MS)
def test_the_greedy_split_takes_as_long_as_the_paper_says(name: str, graphs: Path) -> None:
    """Blocks in topological order, depth first, fill one accelerator after the other; the rest goes to the CPUs."""
    problem = PlacementProblem.create(read_placement(graphs / f"latency-inputs_{name}.json"), objective="latency")
    graph = problem.graph
    assignment = np.full(len(graph), problem.accelerators)
    device, used = 0, 0.0
    for block in _blocks_depth_first(graph):
        needed = float(graph.memory_bytes[block].sum())
        if used + needed > problem.memory_bytes:
            device, used = device + 1, 0.0
        if device < problem.accelerators:
            assignment[block] = device
            used += needed
    cost = placement_cost(problem, PlacementPlan("greedy", assignment))
    assert cost.feasible
    assert cost.value_s * 1e3 == pytest.approx(GREEDY_LATENCY_MS[name], abs=DIGITS_MS)


def _blocks_depth_first(graph: PlacementGraph) -> list[list[int]]:
    """Strongly connected classes as lists of nodes, each after all that it reads, the latest ready one first."""
    total = int(graph.classes.max()) + 1
    ends = graph.classes[graph.edges]
    edges = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(total, total))
    _, block_of_class = connected_components(edges, connection="strong")
    blocks: dict[int, list[int]] = {}
    for node, colour in enumerate(graph.classes):
        blocks.setdefault(int(block_of_class[colour]), []).append(node)
    after: dict[int, list[int]] = {block: [] for block in blocks}
    for a, b in block_of_class[ends].tolist():
        if a != b:
            after[a].append(b)
    waits_for = {block: sum(others.count(block) for others in after.values()) for block in blocks}
    ready = [block for block in blocks if not waits_for[block]]
    order = []
    while ready:
        block = ready.pop()
        order.append(blocks[block])
        for other in after[block]:
            waits_for[other] -= 1
            if not waits_for[other]:
                ready.append(other)
    return order


@st.composite
def problems(draw: st.DrawFn, objective: str = "throughput") -> PlacementProblem:
    """Small random problems with whole numbers as times, so that sums are exact."""
    n = draw(st.integers(1, 7))
    pairs = list(itertools.combinations(range(n), 2))
    edges = sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []
    training = objective == "throughput" and draw(st.booleans())
    first_backward = draw(st.integers(1, n)) if training else n

    def numbers(least: int = 0) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(least, 9), min_size=n, max_size=n)), dtype=float)

    readers = {a for a, _ in edges}
    graph = PlacementGraph(
        ids=tuple(range(10, 10 + n)),
        names=("",) * n,
        accelerator_s=numbers(),
        cpu_s=numbers(),
        memory_bytes=numbers(),
        transfer_s=numbers() * np.array([i in readers for i in range(n)]),
        output_bytes=np.zeros(n),
        supported=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        backward=np.arange(n) >= first_backward,
        classes=np.array(draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        accelerators=draw(st.integers(0, 3)),
        cpus=draw(st.integers(1, 2)),
        accelerator_bytes=float(draw(st.integers(0, 30))),
    )
    if objective == "latency":
        return PlacementProblem.create(graph, objective="latency", pieces=draw(st.integers(1, 3)))
    return PlacementProblem.create(
        graph, communication=draw(st.sampled_from(["sum", "max"])), split_passes=draw(st.booleans())
    )


def draw_plan(data: st.DataObject, problem: PlacementProblem) -> PlacementPlan:
    n = len(problem.graph)
    devices = data.draw(st.lists(st.integers(0, problem.devices - 1), min_size=n, max_size=n))
    if problem.objective == "throughput":
        return PlacementPlan("drawn", np.array(devices))
    pieces = data.draw(st.lists(st.integers(0, problem.pieces - 1), min_size=n, max_size=n))
    return PlacementPlan("drawn", np.array(devices), np.array(pieces))


def subgraph_times(problem: PlacementProblem, held: set[int], passes: set[bool]) -> tuple[float, float]:
    """Compute and transfers of a subgraph on an accelerator straight from the definition, of the passes named."""
    graph = problem.graph
    compute = sum(graph.accelerator_s[v] for v in held if bool(graph.backward[v]) in passes)
    crossing = {u for u, v in graph.edges.tolist() if (u in held) != (v in held)}
    return compute, sum(graph.transfer_s[u] for u in crossing if bool(graph.backward[u]) in passes)


def load(problem: PlacementProblem, plan: PlacementPlan, device: int, passes: set[bool]) -> float:
    held = set(np.flatnonzero(plan.assignment == device).tolist())
    if device >= problem.accelerators:
        return sum(problem.graph.cpu_s[v] for v in held if bool(problem.graph.backward[v]) in passes)
    times = subgraph_times(problem, held, passes)
    return max(times) if problem.communication == "max" else sum(times)


@given(problems(), st.data())
def test_throughput_is_what_the_definition_says(problem: PlacementProblem, data: st.DataObject) -> None:
    plan = draw_plan(data, problem)
    devices = range(problem.devices)
    forward, backward = ([load(problem, plan, d, {only}) for d in devices] for only in (False, True))
    whole = [load(problem, plan, d, {False, True}) for d in devices]
    loads = np.add(forward, backward) if problem.split_passes else whole
    value = max(forward) + max(backward) if problem.split_passes else max(whole)
    cost = placement_cost(problem, plan)
    assert cost.loads_s.tolist() == list(loads)
    assert cost.value_s == value
    assert cost.feasible == brute_force_valid(problem, plan)


@given(problems("latency"), st.data())
def test_latency_is_what_a_simulation_job_by_job_says(problem: PlacementProblem, data: st.DataObject) -> None:
    plan = draw_plan(data, problem)
    cost, simulated = placement_cost(problem, plan), simulate(problem, plan)
    assert cost.value_s == latency_s(problem, plan) == simulated
    assert cost.feasible == (simulated < math.inf and brute_force_valid(problem, plan))


def simulate(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Whenever a job can start it does, at the latest of what it waits for; stuck jobs make it infinite."""
    graph = problem.graph
    assert plan.pieces is not None
    nodes: dict[tuple[str, int, int], set[int]] = {}
    for v in range(len(graph)):
        device = int(plan.assignment[v])
        job = ("piece", device, int(plan.pieces[v])) if device < problem.accelerators else ("cpu", device, v)
        nodes.setdefault(job, set()).add(v)
    done: dict[int, float] = {}
    free = [0.0] * problem.accelerators
    waiting = sorted(nodes)
    while waiting:
        for job in waiting:
            kind, device, piece = job
            inputs = {u for u, v in graph.edges.tolist() if v in nodes[job] and u not in nodes[job]}
            turn = not any(other[:2] == (kind, device) and other[2] < piece for other in waiting)
            if inputs <= set(done) and (kind == "cpu" or turn):
                break
        else:
            return math.inf
        start = max([0.0, *(done[u] for u in inputs)])
        if kind == "cpu":
            finish = start + graph.cpu_s[piece]
        else:
            finish = max(start, free[device]) + sum(subgraph_times(problem, nodes[job], {False, True}))
            free[device] = finish
        done.update(dict.fromkeys(nodes[job], finish))
        waiting.remove(job)
    return max(done.values())


def brute_force_valid(problem: PlacementProblem, plan: PlacementPlan) -> bool:
    """Support, classes and memory, node by node."""
    graph, assignment = problem.graph, plan.assignment.tolist()
    pairs = itertools.combinations(range(len(graph)), 2)
    accelerators = range(problem.accelerators)
    return (
        all(graph.supported[v] or assignment[v] >= problem.accelerators for v in range(len(graph)))
        and all(assignment[a] == assignment[b] for a, b in pairs if graph.classes[a] == graph.classes[b])
        and all(
            sum(m for m, d in zip(graph.memory_bytes, assignment, strict=True) if d == device) <= problem.memory_bytes
            for device in accelerators
        )
    )


def test_a_subgraph_between_two_others_of_its_accelerator_costs_two_transfers_each_way() -> None:
    #   0 ─ 1 ─ 2 with 0 and 2 on the second of two accelerators, 1 on a CPU; times 2, 8, 4; transfers 1 each
    graph = PlacementGraph(
        ids=(0, 1, 2),
        names=("", "", ""),
        accelerator_s=np.array([2.0, 1.0, 4.0]),
        cpu_s=np.array([9.0, 8.0, 9.0]),
        memory_bytes=np.ones(3),
        transfer_s=np.array([1.0, 1.0, 0.0]),
        output_bytes=np.zeros(3),
        supported=np.ones(3, dtype=bool),
        backward=np.zeros(3, dtype=bool),
        classes=np.arange(3),
        edges=np.array([[0, 1], [1, 2]]),
        accelerators=2,
        cpus=1,
        accelerator_bytes=3.0,
    )
    apart = PlacementPlan("by hand", np.array([1, 2, 1]), np.array([0, 0, 1]))
    problem = PlacementProblem.create(graph, objective="latency", pieces=2)
    cost = placement_cost(problem, apart)
    assert cost.value_s == (2 + 1) + 8 + (1 + 4)
    assert cost.transfer_s.tolist() == [0.0, 2.0, 0.0]
    assert cost.loads_s.tolist() == [0.0, 2 + 4 + 2, 8]
    together = PlacementPlan("by hand", np.array([1, 2, 1]))
    assert placement_cost(PlacementProblem.create(graph, objective="latency"), together).value_s == math.inf
