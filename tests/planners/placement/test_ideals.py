"""Planners over ideals: the published optima, every contiguous placement of small graphs, limits, mistakes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from automap_models.core.dag import depth_first_order
from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.result import Bound
from automap_models.cost.placement import placement_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.planning_graphs import parse_placement, read_placement
from automap_models.planners.base import Deadline
from automap_models.planners.placement.ideal_search import TooManyIdeals, ideal_lattice, line_lattice
from automap_models.planners.placement.ideals import IdealsConfig, IdealsPlanner, plan_along_line
from automap_models.planners.registry import make_planner

# ms: Tarnawski et al. (NeurIPS 2020), their program's values with and without -linearize.
PUBLISHED_MS = {
    "LayerGraphs_bert24_inference": (17.79, 17.79),
    "LayerGraphs_bert24_training": (41.75, 41.75),
    "LayerGraphs_resnet50_inference": (33.77, 33.77),
    "LayerGraphs_resnet50_training": (78.63, 78.65),
    "OperatorGraphs_bert_l-3_inference": (27.92, 27.92),
    "OperatorGraphs_bert_l-3_training": (65.30, 65.30),
}

Document = dict[str, Any]


def _document(nodes: list[Document], edges: list[tuple[int, int]], costs: list[float], **devices: float) -> Document:
    plain = {"supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 8.0, "isBackwardNode": 0, "size": 1.0}
    return {
        **{"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 0, **devices},
        "nodes": [{**plain, "id": i, **node} for i, node in enumerate(nodes)],
        "edges": [{"sourceId": a, "destId": b, "cost": costs[a]} for a, b in edges],
    }


def _problem(document: Document, **overrides: Any) -> PlacementProblem:
    return PlacementProblem.create(
        parse_placement(json.dumps(document).encode(), where="g.json", model="g"), **overrides
    )


def _published(name: str, shared_data: Path) -> PlacementProblem:
    return PlacementProblem.create(read_placement(shared_data / "placement_graphs" / f"throughput-inputs_{name}.json"))


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_the_published_optima_are_met(name: str, shared_data: Path) -> None:
    problem = _published(name, shared_data)
    result = make_planner("ideals", kind="placement").solve(problem)
    cost = placement_cost(problem, result.required_plan())
    assert cost.feasible
    assert cost.value_s * 1e3 == pytest.approx(PUBLISHED_MS[name][0], abs=0.005)
    assert (result.status, result.bound) == ("optimal", Bound(cost.value_s, "exact"))


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_the_published_linearised_values_are_met(name: str, shared_data: Path) -> None:
    problem = _published(name, shared_data)
    plan = plan_along_line(problem)
    assert plan is not None
    cost = placement_cost(problem, plan)
    assert cost.feasible
    assert cost.value_s * 1e3 == pytest.approx(PUBLISHED_MS[name][1], abs=0.005)


def test_sets_that_depend_on_each_other_both_ways_are_not_contiguous() -> None:
    """0 → 1 and 2 → 3 of 1, 3, 4 and 6 ms: {0, 3} and {1, 2} would take 7 ms, but each waits for the other."""
    nodes = [{"fpgaLatency": ms} for ms in (1.0, 3.0, 4.0, 6.0)]
    problem = _problem(_document(nodes, [(0, 1), (2, 3)], [0.0] * 4))
    assert placement_cost(problem, IdealsPlanner().plan(problem)).value_s == pytest.approx(8e-3)
    assert placement_cost(problem, PlacementPlan("", np.array([0, 1, 1, 0]))).value_s == pytest.approx(7e-3)


@st.composite
def _small(draw: st.DrawFn, split: bool) -> PlacementProblem:
    """Up to 7 nodes, with everything that a problem can have and a good chance that it decides."""
    n = draw(st.integers(1, 7))
    forward = draw(st.integers(1, n)) if draw(st.booleans()) or split else n
    nodes = []
    for i in range(n):
        ms = draw(st.sampled_from([0.0, 1.0, 2.0, 3.5, 7.0]))
        colour = draw(st.sampled_from([{}, {}, {"colorClass": 0}, {"colorClass": 1}, {"colorClass": 2}]))
        nodes.append(
            {
                "fpgaLatency": ms,
                "cpuLatency": ms * draw(st.sampled_from([1.0, 2.0, 5.0])),
                "size": float(draw(st.integers(0, 4))),
                "supportedOnFpga": int(draw(st.integers(0, 9)) > 0),
                "isBackwardNode": int(i >= forward),
                **colour,
            }
        )
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw(st.integers(0, 2)) == 0]
    costs = [draw(st.sampled_from([0.0, 0.25, 1.0, 4.0])) for _ in range(n)]
    document = _document(
        nodes,
        edges,
        costs,
        maxFPGAs=draw(st.integers(0, 3)),
        maxCPUs=draw(st.integers(0, 2)),
        maxSizePerFPGA=float(draw(st.integers(3, 20))),
    )
    try:
        return _problem(document, communication=draw(st.sampled_from(["sum", "max"])), split_passes=split)
    except (BadInput, Infeasible):  # no device at all, or none for some node
        assume(False)
        raise


def _order(problem: PlacementProblem) -> set[tuple[int, int]]:
    """Pairs of classes that a contiguous placement keeps in order, straight from the definition."""
    graph = problem.graph
    with_forward = {c for c, backward in zip(graph.classes.tolist(), graph.backward, strict=True) if not backward}
    order = set()
    for a, b in graph.edges.tolist():
        first, second = int(graph.classes[a]), int(graph.classes[b])
        if not graph.backward[a] and not graph.backward[b]:
            order.add((first, second))
        elif graph.backward[a] and not {first, second} <= with_forward:
            order.add((second, first))
    return order


def _best_contiguous_s(problem: PlacementProblem) -> float:
    """Over every assignment of classes to devices, and every numbering of these; infinite where none fits."""
    graph, order, best = problem.graph, _order(problem), np.inf
    classes = int(graph.classes.max()) + 1
    for devices in itertools.product(range(problem.devices), repeat=classes):
        used = sorted(set(devices))
        ranks = (dict(zip(used, rank, strict=True)) for rank in itertools.permutations(range(len(used))))
        if not any(all(rank[devices[a]] <= rank[devices[b]] for a, b in order) for rank in ranks):
            continue
        assignment = np.array(devices, dtype=np.int64)[graph.classes]
        if PlacementPlan("brute force", assignment).check_valid(problem)[0]:
            best = min(best, placement_cost(problem, PlacementPlan("", assignment)).value_s)
    return best


def _compare(problem: PlacementProblem) -> None:
    assume(problem.devices ** (int(problem.graph.classes.max()) + 1) <= 1500)
    best_s = _best_contiguous_s(problem)
    if np.isinf(best_s):
        assert IdealsPlanner().solve(problem).plan is None
        assert plan_along_line(problem) is None
        return
    result = IdealsPlanner().solve(problem)
    plan = result.required_plan()
    assert plan.check_valid(problem) == (True, "")
    assert result.status == "optimal"
    assert result.bound is not None
    assert result.bound.value == placement_cost(problem, plan).value_s == pytest.approx(best_s, rel=1e-8, abs=1e-15)


@given(_small(split=False))
def test_no_contiguous_placement_of_a_small_graph_is_better(problem: PlacementProblem) -> None:
    _compare(problem)


@given(_small(split=True))
def test_nor_where_each_pass_has_its_own_slowest_device(problem: PlacementProblem) -> None:
    _compare(problem)


@given(_small(split=False))
def test_a_line_loses_little_and_never_wins(problem: PlacementProblem) -> None:
    plan = plan_along_line(problem)
    if plan is None:
        return
    assert plan.check_valid(problem) == (True, "")
    best_s = IdealsPlanner().solve(problem).cost.value_s
    assert placement_cost(problem, plan).value_s >= best_s * (1 - 1e-8)


@st.composite
def _dags(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    n = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(n) for b in range(n) if a < b and draw(st.integers(0, 2)) == 0]
    numbers = draw(st.permutations(range(n)))
    return n, np.array([(numbers[a], numbers[b]) for a, b in pairs], dtype=np.int64).reshape(-1, 2)


@given(_dags())
def test_a_lattice_has_the_sets_closed_under_predecessors(dag: tuple[int, np.ndarray]) -> None:
    n, edges = dag
    closed = {
        frozenset(nodes)
        for size in range(n + 1)
        for nodes in itertools.combinations(range(n), size)
        if all(a in nodes or b not in nodes for a, b in edges.tolist())
    }
    lattice = ideal_lattice(n, edges, limit=len(closed))
    sets = [frozenset(lattice.nodes_of(i).tolist()) for i in range(len(lattice))]
    assert set(sets) == closed
    assert len(sets) == len(closed)
    assert sorted(sets, key=len) == sets
    steps = {
        (i, int(lattice.node[step]), int(lattice.larger[step]))
        for i in range(len(lattice))
        for step in range(lattice.first[i], lattice.first[i + 1])
    }
    number = {nodes: i for i, nodes in enumerate(sets)}
    assert steps == {
        (number[s], v, number[s | {v}]) for s in sets for v in range(n) if v not in s and s | {v} in closed
    }
    np.testing.assert_allclose(lattice.sums(2.0 ** np.arange(n)), [sum(2.0**v for v in nodes) for nodes in sets])
    with pytest.raises(TooManyIdeals):
        ideal_lattice(n, edges, limit=len(closed) - 1)


def test_a_lattice_of_more_nodes_than_a_machine_word_has_bits_is_counted_right() -> None:
    """Two chains of 99 nodes side by side have 100 × 100 ideals."""
    edges = [(i, i + 1) for i in range(98)] + [(i, i + 1) for i in range(99, 197)]
    lattice = ideal_lattice(198, np.array(edges, dtype=np.int64), limit=10_000)
    assert len(lattice) == 100 * 100
    assert lattice.nodes_of(len(lattice) - 1).size == 198


@given(_dags())
def test_a_line_respects_every_edge(dag: tuple[int, np.ndarray]) -> None:
    n, edges = dag
    line = depth_first_order([sorted(edges[edges[:, 0] == node, 1].tolist()) for node in range(n)])
    assert sorted(line) == list(range(n))
    assert all(line.index(a) < line.index(b) for a, b in edges.tolist())
    lattice = line_lattice(np.array(line))
    assert [lattice.nodes_of(i).tolist() for i in range(len(lattice))] == [line[:i] for i in range(n + 1)]


def _wide(branches: int, length: int = 3, **options: Any) -> PlacementProblem:
    nodes = [{"fpgaLatency": 1.0 + i % 5} for i in range(branches * length)]
    edges = [(b * length + i, b * length + i + 1) for b in range(branches) for i in range(length - 1)]
    return _problem(_document(nodes, edges, [0.5] * len(nodes), maxFPGAs=3), **options)


def test_with_too_many_ideals_it_is_the_best_placement_along_a_line() -> None:
    planner = IdealsPlanner(IdealsConfig(most_ideals=4**6))
    assert planner.solve(_wide(6)).status == "optimal"  # 6 chains of 3 nodes have 4^6 ideals
    problem = _wide(7)
    result, line = planner.solve(problem), plan_along_line(problem)
    assert line is not None
    assert result.required_plan().assignment.tolist() == line.assignment.tolist()
    assert (result.status, result.bound) == ("feasible", None)
    assert "too many ideals" in result.notes[0]


def test_memory_for_the_tables_bounds_ideals_and_units() -> None:
    assert IdealsPlanner(IdealsConfig(table_bytes=10_000)).solve(_wide(6)).status == "feasible"
    assert IdealsPlanner(IdealsConfig(table_bytes=4000)).solve(_wide(6)).status == "stopped"


@pytest.mark.parametrize("split", [False, True])
def test_a_search_that_is_stopped_gives_the_best_along_the_line_and_a_bound(split: bool) -> None:
    problem = _wide(5, split_passes=split)
    stopped = IdealsPlanner().solve(problem, deadline=Deadline(0.0))
    assert stopped.status == "feasible"
    line = plan_along_line(problem)
    assert line is not None
    line_s = placement_cost(problem, line).value_s
    assert stopped.cost.value_s == line_s
    best_s = IdealsPlanner().solve(problem).cost.value_s
    assert stopped.bound is not None
    assert stopped.bound.proof == "relaxation"
    assert 0 < stopped.bound.value <= best_s <= line_s


def test_where_bytes_of_idle_operators_matter_they_stay_apart_unless_there_are_too_many_ideals() -> None:
    """Node 0, idle, does not fit beside its neighbour 1: 0 | 1, 2 is possible, and the best. 0, 1 | 2 is not."""
    nodes = [{"fpgaLatency": 0.0, "cpuLatency": 0.0, "size": 2.0}, {"size": 2.0}, {"size": 1.0}]
    problem = _problem(_document(nodes, [(0, 1), (1, 2)], [1.0] * 3, maxSizePerFPGA=3.0))
    result = IdealsPlanner().solve(problem)
    assert result.required_plan().assignment.tolist() == [0, 1, 1]
    assert result.status == "optimal"
    with pytest.raises(Infeasible, match="no contiguous placement was found"):
        IdealsPlanner(IdealsConfig(most_ideals=3)).plan(problem)


def test_more_devices_than_operators_are_left_idle() -> None:
    problem = _problem(_document([{}, {}], [(0, 1)], [0.0, 0.0]), accelerators=4096, cpus=4096)
    plan = IdealsPlanner().plan(problem)
    assert plan.assignment.tolist() == [0, 1]
