"""All planners of placements behind the one interface: deadlines, news, results, options."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.cost.placement import placement_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import Deadline, Progress
from automap_models.planners.registry import make_planner, planner_names

PLANNERS = planner_names("placement")
OBJECTIVES = {
    "ideals": ("throughput",),
    "milp": ("throughput", "latency"),
    "local-search": ("throughput", "latency", "step"),
    "expert": ("step",),  # for the others it reads a file
    "metis": ("step",),
    "m-etf": ("step",),
    "learned": ("step",),
}
PROVES = {"ideals", "milp"}
DRAWS_AT_RANDOM = {"metis", "local-search", "milp", "learned"}


def objective_of(name: str) -> str:
    """One that the planner plans for."""
    return OBJECTIVES[name][0]


def ladder(length: int, branches: int, seed: int = 0, **devices: Any) -> PlacementGraph:
    """`branches` chains of `length` nodes with a rung between neighbours now and then; times and bytes at random."""
    random = np.random.default_rng(seed)
    n = length * branches
    edges = [(i, i + branches) for i in range(n - branches)]
    edges += [(i, i + 1) for i in range(n - 1) if (i + 1) % branches and random.random() < 0.3]
    compute_s = random.exponential(1e-3, n)
    transfer_s = np.where(np.isin(np.arange(n), [a for a, _ in edges]), random.exponential(2e-4, n), 0.0)
    return PlacementGraph(
        ids=tuple(range(n)),
        names=("",) * n,
        accelerator_s=compute_s,
        cpu_s=20.0 * compute_s,
        memory_bytes=random.uniform(0, 1e6, n),
        transfer_s=transfer_s,
        output_bytes=1e9 * transfer_s,
        supported=np.ones(n, dtype=np.bool_),
        backward=np.zeros(n, dtype=np.bool_),
        classes=np.arange(n),
        edges=np.array(sorted(edges), dtype=np.int64),
        **{"accelerators": 6, "cpus": 1, "accelerator_bytes": 1e9, **devices},
    )


@pytest.fixture(scope="module")
def problems() -> dict[str, PlacementProblem]:
    """Objective → a problem of 600 nodes with 46,298 ideals: most planners need seconds for it.

    The ideals planner compiles on the first call on a machine, which no deadline can stop.
    """
    make_planner("ideals", kind="placement").solve(PlacementProblem.create(ladder(3, 2)))
    graph = ladder(300, 2)
    return {
        "throughput": PlacementProblem.create(graph),
        "latency": PlacementProblem.create(graph, objective="latency"),
        "step": PlacementProblem.create(graph, objective="step"),
    }


@pytest.mark.parametrize("budget_s", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "objective"),
    [(name, objective) for name, objectives in OBJECTIVES.items() for objective in objectives],
)
def test_a_deadline_is_kept_within_twice_its_time_and_the_best_plan_so_far_is_returned(
    name: str, objective: str, budget_s: float, problems: dict[str, PlacementProblem]
) -> None:
    """Processor time, as other programs may hold the machine's cores; what the first plan imports does not count."""
    problem, planner = problems[objective], make_planner(name, kind="placement")
    planner.solve(PlacementProblem.create(ladder(4, 2), objective=objective))
    begin_s = time.process_time()
    result = planner.solve(problem, deadline=Deadline(budget_s))
    assert time.process_time() - begin_s < max(2 * budget_s, budget_s + 1.0)
    assert result.status in ("feasible", "optimal")
    cost = placement_cost(problem, result.required_plan())
    assert cost.feasible
    assert result.cost.value_s == cost.value_s
    assert result.bound is None or 0 < result.bound.value <= cost.value_s


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_tells_how_far_it_is(name: str) -> None:
    news: list[Progress] = []
    problem = PlacementProblem.create(ladder(4, 2), objective=objective_of(name))
    make_planner(name, kind="placement").solve(problem, watch=news.append)
    assert news
    assert all(item.what for item in news)
    assert all(item.done is None or item.total is None or 0 <= item.done <= item.total for item in news)


@pytest.mark.parametrize("name", PLANNERS)
def test_a_result_carries_the_problem_the_cost_the_time_and_the_seed(name: str) -> None:
    problem = PlacementProblem.create(ladder(4, 2), objective=objective_of(name))
    config = {"seed": 7} if name in DRAWS_AT_RANDOM else {}
    result = make_planner(name, kind="placement", **config).solve(problem)
    plan = result.required_plan()
    assert result.problem is problem
    assert plan.planner == name
    assert result.cost.value_s == placement_cost(problem, plan).value_s
    assert result.facts == config
    assert result.taken_s > 0
    if problem.objective == "throughput":
        assert (result.status == "optimal") == (name in PROVES)
    assert (result.bound is not None) == (result.status == "optimal" or problem.objective == "step")


@pytest.mark.parametrize("name", PLANNERS)
def test_a_problem_that_nothing_fits_has_a_reason_instead_of_a_plan(name: str) -> None:
    """Each operator fits an accelerator on its own; all of them together fit no number of accelerators given."""
    graph = ladder(4, 2, cpus=0, accelerators=1)
    memory = 1.5 * float(graph.memory_bytes.max())
    problem = PlacementProblem.create(graph, memory_bytes=memory, objective=objective_of(name))
    result = make_planner(name, kind="placement").solve(problem)
    assert result.status == ("infeasible" if name in PROVES else "stopped")
    assert (result.plan, result.cost, result.bound) == (None, None, None)
    assert isinstance(result.reason, Infeasible)
    with pytest.raises(Infeasible, match=r"fits|GB"):
        result.required_plan()


def test_all_planners_are_tried() -> None:
    assert set(OBJECTIVES) == set(PLANNERS)


@pytest.mark.parametrize(
    ("name", "objective", "words"),
    [
        ("m-etf", "throughput", "is for steps only"),
        ("metis", "latency", "is for steps only"),
        ("ideals", "latency", "is for throughput only"),
        ("milp", "step", "is for throughput and latency only"),
    ],
)
def test_a_planner_refuses_another_objective(name: str, objective: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"planner {name}: {words}"):
        make_planner(name, kind="placement").solve(PlacementProblem.create(ladder(4, 2), objective=objective))


@pytest.mark.parametrize("name", PLANNERS)
def test_an_option_that_a_planner_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"planner {name}: has no option 'beam'"):
        make_planner(name, kind="placement", beam=4)
    if name not in DRAWS_AT_RANDOM:
        with pytest.raises(BadInput, match=f"planner {name}: has no option 'seed'"):
            make_planner(name, kind="placement", seed=1)
