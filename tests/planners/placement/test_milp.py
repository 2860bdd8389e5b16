"""Integer programs against brute force over all placements of small graphs, and against published values."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.cost.placement import placement_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.planning_graphs import parse_placement, read_placement
from automap_models.planners.base import NEVER, SILENT, Deadline
from automap_models.planners.placement.ideals import IdealsPlanner
from automap_models.planners.placement.latency_program import latency_program
from automap_models.planners.placement.milp import Incumbent, MilpPlanner
from automap_models.planners.placement.program import Answer, Program, in_ticks, memory_steps, solve_program

LIMIT_S = 20.0
"""More than any of the small problems takes."""


def graph_of(
    accelerator_ms: list[float], edges: list[tuple[int, int]], *, accelerators: int = 2, cpus: int = 0, **more: Any
) -> PlacementGraph:
    """A graph of nodes 0, 1, …; `more` holds a list for each other key of a node, and `transfer_ms`."""
    transfer_ms = more.pop("transfer_ms", [0.0] * len(accelerator_ms))
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 10 * t, "fpgaLatency": t, "isBackwardNode": 0}
        | {key: values[i] for key, values in more.items()}
        for i, t in enumerate(accelerator_ms)
    ]
    document = {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": accelerators,
        "maxCPUs": cpus,
        "nodes": nodes,
        "edges": [{"sourceId": a, "destId": b, "cost": transfer_ms[a]} for a, b in edges],
    }
    return parse_placement(json.dumps(document).encode(), where="g.json", model="g")


def random_graph(seed: int, n: int, *, training: bool = False) -> PlacementGraph:
    """A graph of n nodes, some in common classes, some for CPUs only; times of one order of magnitude."""
    random = np.random.default_rng(seed)
    backward = np.arange(n) >= n // 2 + 1 if training else np.zeros(n, dtype=bool)
    cpus = int(random.integers(0, 2))
    accelerator = random.integers(1, 9, n).astype(float)
    return graph_of(
        accelerator.tolist(),
        [(a, b) for a in range(n) for b in range(a + 1, n) if random.random() < 0.4],
        cpus=cpus,
        cpuLatency=(accelerator * random.uniform(0.5, 3, n)).tolist(),
        transfer_ms=random.uniform(0, 2, n).tolist(),
        supportedOnFpga=[int(not cpus or random.random() < 0.8) for _ in range(n)],
        isBackwardNode=backward.astype(int).tolist(),
        size=random.integers(0, 5, n).astype(float).tolist(),
        colorClass=random.integers(0, 2 * n, n).tolist(),
    )


def plans_of(problem: PlacementProblem) -> Iterator[PlacementPlan]:
    """Every assignment, with every choice of subgraphs, valid or not."""
    n = len(problem.graph)
    jobs = [(d, r) for d in range(problem.accelerators) for r in range(problem.pieces)]
    jobs += [(d, 0) for d in range(problem.accelerators, problem.devices)]
    for chosen in itertools.product(jobs, repeat=n):
        device, piece = np.array(chosen).T
        yield PlacementPlan("brute force", device, piece if problem.pieces > 1 else None)


def best_s(problem: PlacementProblem) -> float:
    """The smallest value of a valid placement; infinite if there is none."""
    costs = (placement_cost(problem, plan) for plan in plans_of(problem))
    return min((cost.value_s for cost in costs if cost.feasible), default=math.inf)


def solved_s(problem: PlacementProblem) -> float:
    """The planner's value; its plan must be valid and proven."""
    result = MilpPlanner().solve(problem, deadline=Deadline(LIMIT_S))
    if result.status == "infeasible":
        return math.inf
    plan = result.required_plan()
    cost = placement_cost(problem, plan)
    assert cost.feasible
    assert result.cost.value_s == cost.value_s
    assert (plan.planner, result.status) == ("milp", "optimal")
    assert result.bound is not None
    assert result.bound.value <= cost.value_s
    return cost.value_s


def memory_of(graph: PlacementGraph, seed: int) -> float:
    """Enough for all, or so little that it matters."""
    return 1e9 if seed % 3 == 0 else max(4.0, 0.6 * float(graph.memory_bytes.sum()))


@pytest.mark.parametrize("seed", range(8))
def test_throughput_is_that_of_the_best_of_all_placements(seed: int) -> None:
    graph = random_graph(seed, 6, training=seed % 2 == 1)
    more: dict[str, Any] = {"communication": "max" if seed % 4 == 2 else "sum", "split_passes": seed % 4 == 3}
    try:
        problem = PlacementProblem.create(graph, memory_bytes=memory_of(graph, seed), **more)
    except Infeasible:  # a class needs more than one accelerator has
        problem = PlacementProblem.create(graph, **more)
    assert solved_s(problem) == pytest.approx(best_s(problem), rel=2e-6)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_latency_is_that_of_the_best_of_all_placements(seed: int, pieces: int) -> None:
    graph = random_graph(seed, 6 if pieces == 1 else 5)
    more: dict[str, Any] = {"objective": "latency", "pieces": pieces}
    try:
        problem = PlacementProblem.create(graph, memory_bytes=memory_of(graph, seed), cpus=seed % 2, **more)
    except (BadInput, Infeasible):
        problem = PlacementProblem.create(graph, cpus=1, **more)
    assert solved_s(problem) == pytest.approx(best_s(problem), rel=2e-6)


def test_devices_may_wait_for_each_other() -> None:
    """0→1 and 2→3: {0, 3} and {1, 2} are contiguous, each of them, but wait for each other; none of `ideals` does."""
    problem = PlacementProblem.create(graph_of([1.0, 3.0, 4.0, 6.0], [(0, 1), (2, 3)]))
    assert solved_s(problem) == pytest.approx(7e-3)
    assert IdealsPlanner().solve(problem).cost.value_s == pytest.approx(8e-3)


def test_a_second_subgraph_lets_an_accelerator_wait_for_a_cpu() -> None:
    """0 → 1 → 2 with 1 for the CPU only: one subgraph of one accelerator cannot hold both 0 and 2."""
    graph = graph_of(
        [1.0, 1.0, 1.0], [(0, 1), (1, 2)], accelerators=1, cpus=1, supportedOnFpga=[1, 0, 1], cpuLatency=[9.0, 2.0, 9.0]
    )
    one = PlacementProblem.create(graph, objective="latency")
    two = PlacementProblem.create(graph, objective="latency", pieces=2)
    assert solved_s(one) == pytest.approx(12e-3)
    assert solved_s(two) == pytest.approx(4e-3)


def test_what_does_not_fit_is_proven_not_to_fit() -> None:
    graph = graph_of([1.0] * 3, [(0, 1), (1, 2)], size=[2.0, 2.0, 2.0])
    result = MilpPlanner().solve(PlacementProblem.create(graph, memory_bytes=3.0), deadline=Deadline(LIMIT_S))
    assert (result.status, result.plan, result.cost, result.bound) == ("infeasible", None, None, None)
    with pytest.raises(Infeasible, match="no placement fits the memory: that is proven"):
        result.required_plan()


def test_times_of_zero_are_solved() -> None:
    assert solved_s(PlacementProblem.create(graph_of([0.0, 0.0], [(0, 1)]))) == 0.0
    assert solved_s(PlacementProblem.create(graph_of([0.0, 0.0], [(0, 1)]), objective="latency")) == 0.0


def test_rounding_down_keeps_sums_below() -> None:
    random = np.random.default_rng(0)
    times_s = random.uniform(size=100)
    ticks = in_ticks(times_s, 1e-3)
    assert (ticks == np.floor(ticks)).all()
    assert ticks.sum() * 1e-3 <= times_s.sum() <= (ticks.sum() + len(ticks)) * 1e-3
    sizes = random.uniform(0.1, 9, 100)
    steps, capacity = memory_steps(sizes, float(sizes.sum()))
    assert steps.sum() <= capacity <= sizes.sum()
    huge, room = memory_steps(np.array([1e300, 1.0]), 1e300)
    assert huge[0] <= room <= 2.0**41


def knapsack() -> Program:
    """Least load above 10 from 3, 5 and 9, at most 4 of each: 11 = 2 · 3 + 5."""
    program = Program()
    items, total = program.add(3, upper=4), int(program.add(upper=100))
    weights = [(int(item), weight) for item, weight in zip(items, (3, 5, 9), strict=True)]
    program.equal([*weights, (total, -1)], 0)
    program.at_most([(total, -1)], -11)
    program.objective = total
    return program


def test_the_solver_solves_a_program() -> None:
    answer = solve_program(knapsack(), Deadline(LIMIT_S))
    assert answer.columns is not None
    assert (answer.columns[-1], answer.bound) == (11, 11)


def test_the_solver_says_that_there_is_nothing() -> None:
    program = knapsack()
    program.at_most([(program.objective, 1)], 10)
    answer = solve_program(program, Deadline(LIMIT_S))
    assert answer.columns is None
    assert answer.bound == math.inf


def test_terms_of_one_column_add_up() -> None:
    program = Program()
    column = int(program.add(upper=9))
    program.at_most([(column, 1), (column, 2), (column, -3)], 0)
    program.at_most([(column, 1), (column, 1)], 8)
    matrix = program.proto.linear_constraint_matrix
    assert [*zip(matrix.row_ids, matrix.column_ids, matrix.coefficients, strict=True)] == [(1, column, 2)]


def test_a_search_that_is_interrupted_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PlacementProblem.create(graph_of([1.0, 2.0], [(0, 1)]))
    start = PlacementPlan("start", np.array([0, 0]))

    def interrupted(*_: object, **__: object) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr("automap_models.planners.placement.milp.solve_program", interrupted)
    known = MilpPlanner().improved(problem, start, NEVER, SILENT)
    assert known.plan is start
    assert (known.closed, known.bound_s) == (False, 0.0)


def market_split(rows: int, columns: int) -> Program:
    """Equalities over 0 and 1 that Cornuéjols and Dawande (1998) made to defeat branch and bound; least deviation."""
    random, program = np.random.default_rng(0), Program()
    items = program.add(columns)
    deviations = program.add(2, rows, upper=1e6)
    for row in range(rows):
        weights = random.integers(0, 100, columns)
        terms = list(zip(items.tolist(), weights.astype(float).tolist(), strict=True))
        slack = [(int(deviations[0, row]), 1.0), (int(deviations[1, row]), -1.0)]
        program.equal([*terms, *slack], float(weights.sum() // 2))
    program.objective = int(program.add(upper=1e7))
    program.equal([*((column, 1.0) for column in deviations.ravel().tolist()), (program.objective, -1)], 0)
    return program


def test_ctrl_c_stops_cp_sat_at_once_and_python_hears_the_next_one() -> None:
    """CP-SAT's own handler left the signal to the operating system afterwards: the next Ctrl-C killed the process."""
    program = market_split(5, 40)
    solve_program(program, Deadline(0.1))  # imports OR-Tools, which may take longer than until the signal comes
    begin_s = time.monotonic()
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    answer = solve_program(program, Deadline(60.0))
    assert answer.columns is not None
    assert time.monotonic() - begin_s < 30  # half of its time
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)


def test_the_solver_stops_at_its_deadline_or_after_its_work() -> None:
    begin_s = time.monotonic()
    answer = solve_program(market_split(5, 40), Deadline(0.5))
    counted = solve_program(market_split(5, 40), NEVER, work_s=0.1)
    assert time.monotonic() - begin_s < 30.0  # room for a busy machine
    assert answer.bound < 1e7 and counted.bound < 1e7


def test_a_bound_decides_what_is_optimal() -> None:
    problem = PlacementProblem.create(graph_of([1000.0], []))
    plan = PlacementPlan("p", np.array([0]))
    cost = placement_cost(problem, plan)
    assert cost.value_s == 1.0
    assert Incumbent(plan, cost, 1.0 - 1e-7).closed
    assert not Incumbent(plan, cost, 1.0 - 1e-5).closed
    assert not Incumbent().closed
    assert Incumbent(bound_s=math.inf).closed


def test_a_hint_is_a_solution() -> None:
    """A known plan, given as a hint, is found again at once: its columns are those of the program."""
    graph = graph_of([3.0, 2.0, 2.0], [(0, 1), (1, 2)], accelerators=3, transfer_ms=[1.0, 1.0, 0.0])
    problem = PlacementProblem.create(graph, objective="latency")
    stated = latency_program(problem, 1e-3, 100.0)
    plan = PlacementPlan("p", np.array([2, 0, 0]))
    for column, value in stated.hint(plan).items():
        stated.program.fix([column], value)
    answer = solve_program(stated.program, Deadline(LIMIT_S))
    assert answer.columns is not None
    assert answer.bound == 9  # 3 + 1 and 1 + 2 + 2
    again = stated.plan(answer.columns)
    assert placement_cost(problem, again).value_s == placement_cost(problem, plan).value_s


# ms: design page
PROVEN_MS = [
    ("LayerGraphs_bert24_training", 39.79),
    ("OperatorGraphs_bert_l-3_inference", 21.91),
    pytest.param("LayerGraphs_bert24_inference", 17.715, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("name", "value_ms"), PROVEN_MS)
def test_published_throughput_is_proven(name: str, value_ms: float, shared_data: Path) -> None:
    graph = read_placement(shared_data / "placement_graphs" / f"throughput-inputs_{name}.json")
    problem = PlacementProblem.create(graph)
    result = MilpPlanner().solve(problem, deadline=Deadline(120.0))
    assert result.status == "optimal"
    assert placement_cost(problem, result.required_plan()).value_s * 1e3 == pytest.approx(value_ms, abs=0.0051)


def test_the_greedy_latency_of_bert24_is_proven_optimal(shared_data: Path) -> None:
    graph = read_placement(shared_data / "placement_graphs" / "latency-inputs_LayerGraphs_bert24_inference.json")
    problem = PlacementProblem.create(graph, objective="latency")
    result = MilpPlanner().solve(problem, deadline=Deadline(120.0))
    assert result.status == "optimal"
    assert placement_cost(problem, result.required_plan()).value_s * 1e3 == pytest.approx(100.22, abs=0.0051)
