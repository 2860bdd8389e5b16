"""Local search and experts' splits against published values, brute force, and the one definition of their cost."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.contraction import contract
from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.cost.placement import latency_s, placement_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.planning_graphs import parse_placement, read_placement
from automap_models.planners.base import Planner
from automap_models.planners.placement.expert import ExpertConfig, ExpertPlanner
from automap_models.planners.placement.ideals import IdealsPlanner
from automap_models.planners.placement.latency_search import filled_in_order, topological_orders
from automap_models.planners.placement.local_search import Loads
from automap_models.planners.registry import make_planner

THROUGHPUT = "throughput-inputs_LayerGraphs_"
BERT_L3 = "throughput-inputs_OperatorGraphs_bert_l-3_"

# ms: Tarnawski et al. (NeurIPS 2020) and the authors' programs on their inputs.
LOCAL_SEARCH_MS = {
    f"{THROUGHPUT}bert24_inference": 17.78,
    f"{THROUGHPUT}bert24_training": 39.94,
    f"{THROUGHPUT}resnet50_inference": 35.89,
    f"{BERT_L3}inference": 27.57,
}
NON_CONTIGUOUS_OPTIMUM_MS = {  # proven
    f"{THROUGHPUT}bert24_inference": 17.715,
    f"{THROUGHPUT}bert24_training": 39.79,
    f"{BERT_L3}inference": 21.91,
}
EXPERT_MS = {"bert24_inference": 20.08, "bert24_training": 49.40, "resnet50_inference": 43.92}
GREEDY_LATENCY_MS = {
    "latency-inputs_LayerGraphs_bert24_inference": 100.22,
    "latency-inputs_OperatorGraphs_bert_l-3_inference": 416.20,
    "latency-inputs_LayerGraphs_resnet50_inference": 4197.06,
}


def published(shared_data: Path, name: str, **overrides: Any) -> PlacementProblem:
    graph = read_placement(shared_data / "placement_graphs" / f"{name}.json")
    return PlacementProblem.create(graph, **overrides)


def value_ms(problem: PlacementProblem, seed: int = 0) -> float:
    result = local_search(seed).solve(problem)
    cost = placement_cost(problem, result.required_plan())
    assert cost.feasible
    assert result.cost.value_s == cost.value_s
    return cost.value_s * 1e3


def local_search(seed: int) -> Planner[PlacementProblem, PlacementPlan, Any]:
    return make_planner("local-search", kind="placement", seed=seed)


def drawn_graph(seed: int, nodes: int, *, training: bool = False, supported: float = 1.0) -> PlacementGraph:
    """A random graph of two devices' worth of memory, some nodes in common classes."""
    random = np.random.default_rng(seed)
    edges = [(a, b) for a in range(nodes) for b in range(a + 1, nodes) if random.random() < 2.0 / nodes]
    cost = random.random(nodes)
    backward = np.arange(nodes) >= nodes // 2 if training else np.zeros(nodes, dtype=bool)
    document = {
        "maxSizePerFPGA": nodes / 2.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": 10 + i,
                "supportedOnFpga": int(random.random() < supported),
                "cpuLatency": 10 * t,
                "fpgaLatency": t,
                "isBackwardNode": int(backward[i]),
                "size": float(random.random()),
                "colorClass": int(random.integers(2 * nodes)),
            }
            for i, t in enumerate(random.random(nodes).tolist())
        ],
        "edges": [{"sourceId": 10 + a, "destId": 10 + b, "cost": float(cost[a])} for a, b in edges],
    }
    return parse_placement(json.dumps(document).encode(), where="drawn", model="drawn")


@pytest.mark.parametrize("name", LOCAL_SEARCH_MS)
def test_local_search_is_no_worse_than_published(name: str, shared_data: Path) -> None:
    assert value_ms(published(shared_data, name)) <= LOCAL_SEARCH_MS[name] + 0.005


@pytest.mark.parametrize("name", NON_CONTIGUOUS_OPTIMUM_MS)
def test_local_search_finds_the_proven_optimum_and_nothing_below_it(name: str, shared_data: Path) -> None:
    best = NON_CONTIGUOUS_OPTIMUM_MS[name]
    values = [value_ms(published(shared_data, name), seed) for seed in range(3)]
    assert min(values) == pytest.approx(best, abs=0.006)
    assert min(values) >= best - 0.006


@pytest.mark.parametrize("name", EXPERT_MS)
def test_an_expert_s_split_costs_what_was_published(name: str, shared_data: Path) -> None:
    problem = published(shared_data, f"{THROUGHPUT}{name}")
    split = shared_data / "placement_graphs" / f"human-experts_{name}_expert.json"
    plan = ExpertPlanner(ExpertConfig(split)).plan(problem)
    assert placement_cost(problem, plan).value_s * 1e3 == pytest.approx(EXPERT_MS[name], abs=0.005)


def test_an_inference_split_takes_the_backward_nodes_along(shared_data: Path) -> None:
    problem = published(shared_data, f"{THROUGHPUT}resnet50_training")
    split = shared_data / "placement_graphs" / "human-experts_resnet50_inference_expert.json"
    plan = ExpertPlanner(ExpertConfig(split)).plan(problem)
    assert placement_cost(problem, plan).value_s * 1e3 == pytest.approx(112.11, abs=0.005)


@pytest.mark.parametrize("name", GREEDY_LATENCY_MS)
def test_the_greedy_placement_for_latency_is_the_published_one_in_one_of_its_orders(
    name: str, shared_data: Path
) -> None:
    problem = published(shared_data, name, objective="latency")
    units = contract(problem)
    values = []
    for order in topological_orders(units):
        device = filled_in_order(problem, units, order)
        assert device is not None
        values.append(latency_s(problem, PlacementPlan("", units.expand(device))) * 1e3)
    expected = GREEDY_LATENCY_MS[name]
    assert any(value == pytest.approx(expected, abs=0.006) for value in values)
    assert min(values) <= expected + 0.006


def test_the_best_split_for_throughput_has_the_latency_published_for_bert24(shared_data: Path) -> None:
    problem = published(shared_data, "latency-inputs_LayerGraphs_bert24_inference", objective="latency")
    split = IdealsPlanner().plan(replace(problem, objective="throughput"))
    assert latency_s(problem, split) * 1e3 == pytest.approx(108.03, abs=0.005)


def test_local_search_shortens_the_latency_of_the_published_programs(shared_data: Path) -> None:
    best_ms = {"LayerGraphs_bert24": 100.22, "LayerGraphs_resnet50": 1443.79, "OperatorGraphs_bert_l-3": 408.47}
    for name, best in best_ms.items():
        problem = published(shared_data, f"latency-inputs_{name}_inference", objective="latency")
        assert value_ms(problem) <= best + 0.005


@given(seed=st.integers(0, 10**6), training=st.booleans(), split=st.booleans(), overlap=st.booleans())
@settings(max_examples=15)
def test_what_a_move_is_said_to_lead_to_is_what_it_leads_to(
    seed: int, training: bool, split: bool, overlap: bool
) -> None:
    graph = drawn_graph(seed, 12, training=training, supported=0.8)
    problem = PlacementProblem.create(
        graph, accelerators=3, split_passes=split, communication="max" if overlap else "sum", memory_bytes=2.0
    )
    units = contract(problem)
    random = np.random.default_rng(seed)
    start = random.integers(0, problem.devices, len(units))
    for unit, device in itertools.product(range(len(units)), range(problem.devices)):
        loads = Loads(problem, units, start)
        only = np.zeros((len(units), problem.devices), dtype=bool)
        only[unit, device] = True
        move = loads.best_move(only)
        if device == start[unit]:
            assert move is None
            continue
        assert move is not None
        loads.move(unit, device)
        exact = loads.score()
        assert move[2].value_s == pytest.approx(exact.value_s, rel=1e-9)
        assert move[2].excess == pytest.approx(exact.excess, rel=1e-6, abs=1e-8)
        assert move[2].unevenness == pytest.approx(exact.unevenness, rel=1e-9)
        assignment = units.expand(loads.device)
        assert exact.value_s == pytest.approx(placement_cost(problem, PlacementPlan("", assignment)).value_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_local_search_finds_the_optimum_of_small_graphs(seed: int) -> None:
    """Brute force over all placements of the units."""
    problem = PlacementProblem.create(drawn_graph(seed, 8), memory_bytes=3.0)
    units = contract(problem)
    values = [
        cost.value_s
        for devices in itertools.product(range(problem.devices), repeat=len(units))
        if (cost := placement_cost(problem, PlacementPlan("", units.expand(np.array(devices))))).feasible
    ]
    assert value_ms(problem) == pytest.approx(1e3 * min(values), rel=1e-9)


@given(seed=st.integers(0, 10**6), objective=st.sampled_from(("throughput", "latency")))
@settings(max_examples=10)
def test_every_plan_is_valid_or_refused(seed: int, objective: str) -> None:
    graph = drawn_graph(seed, 14, supported=0.8)
    problem = PlacementProblem.create(graph, objective=objective, memory_bytes=4.0)
    try:
        plan = local_search(seed).plan(problem)
    except Infeasible:
        return
    assert plan.planner == "local-search"
    assert plan.check_valid(problem) == (True, "")
    again = local_search(seed).plan(problem)
    np.testing.assert_array_equal(plan.assignment, again.assignment)


def test_a_memory_that_forces_it_spreads_the_model() -> None:
    graph = drawn_graph(3, 12)
    total = float(graph.memory_bytes.sum())
    problem = PlacementProblem.create(graph, accelerators=3, cpus=0, memory_bytes=0.6 * total)
    assert np.unique(local_search(0).plan(problem).assignment).size > 1


def test_too_little_memory_is_infeasible_not_an_answer() -> None:
    graph = drawn_graph(3, 12)
    largest = float(np.bincount(graph.classes, weights=graph.memory_bytes).max())
    problem = PlacementProblem.create(graph, accelerators=1, cpus=0, memory_bytes=1.01 * largest)
    with pytest.raises(Infeasible, match="GB"):
        local_search(0).plan(problem)


def test_an_expert_without_a_split_places_steps_only() -> None:
    with pytest.raises(BadInput, match="reads a split from a file"):
        ExpertPlanner().plan(PlacementProblem.create(drawn_graph(0, 6)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fpgas": [{"nodes": [10, 99]}]}, "node 99 is not in the graph"),
        ({"fpgas": [{"nodes": [10, 10]}]}, "node 10 is placed twice"),
        ({"fpgas": [{"nodes": [10]}]}, "is not placed"),
        ({"fpgas": [{"nodes": []}] * 5 + [{"nodes": [10]}]}, "more fpgas than the 2"),
        ({"fpgas": 3}, "not a list"),
        ({}, "fpgas is missing"),
    ],
)
def test_a_split_that_is_none_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    problem = PlacementProblem.create(drawn_graph(0, 6))
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"cpus": [], **change}), encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        ExpertPlanner(ExpertConfig(path)).plan(problem)


def test_a_split_that_needs_more_memory_is_infeasible_and_one_that_parts_a_class_is_wrong(tmp_path: Path) -> None:
    graph, path = drawn_graph(0, 6), tmp_path / "split.json"
    path.write_text(json.dumps({"fpgas": [{"nodes": list(graph.ids)}], "cpus": []}), encoding="utf-8")
    with pytest.raises(Infeasible, match="device 0 needs"):
        ExpertPlanner(ExpertConfig(path)).plan(PlacementProblem.create(graph, memory_bytes=0.1))
    apart = replace(graph, classes=np.zeros(6, dtype=np.int64))
    path.write_text(json.dumps({"fpgas": [{"nodes": [10]}, {"nodes": [11, 12, 13, 14, 15]}], "cpus": []}), "utf-8")
    with pytest.raises(BadInput, match="on another device than its class"):
        ExpertPlanner(ExpertConfig(path)).plan(PlacementProblem.create(apart, memory_bytes=100.0))
