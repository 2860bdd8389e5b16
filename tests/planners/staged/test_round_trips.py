"""Least round trips against brute force: every plan that there is, costed and simulated one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners.base import Deadline
from automap_models.planners.staged.plan_batch import PlanBatch
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.round_trips import RoundTrips, least_step_s, staircase
from automap_models.planners.staged.search import anytime_search
from automap_models.simulate.step import step_cost

MakeProblem = Callable[..., StagedProblem]


def problem_of(make_problem: MakeProblem, seed: int, schedule: str = "1f1b") -> StagedProblem:
    """Two to four stages; half of the problems have whole samples."""
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, max_n=8, max_devices=6, max_stages=4)
    size = {"microbatch_size": int(rng.integers(1, 12))} if seed % 2 else {}
    profile = replace(problem.profile, meta={**problem.profile.meta, **size})
    micro_batches = int(rng.integers(1, 20))
    return replace(
        problem,
        profile=profile,
        stages=max(problem.stages, 2),
        schedule=schedule,
        micro_batches=micro_batches,
    )


def every_cost(problem: StagedProblem) -> Iterator[StagedCost]:
    """The costs of all valid plans on the grid that fit."""
    grid, cuts = problem.grid, problem.stages - 1
    for points in combinations(grid.cut_points.tolist(), cuts):
        for devices in combinations(range(1, problem.cluster.devices), cuts):
            plan = StagedPlan(grid.to_instructions(points), devices, problem.micro_batches, "brute force")
            if plan.check_valid(problem)[0] and (cost := step_cost(problem, plan)).feasible:
                yield cost


def round_trip_s(cost: StagedCost) -> float:
    """One micro-batch there and back."""
    return float(cost.forward_s.sum() + cost.backward_s.sum() + 2.0 * cost.transfer_s.sum())


@pytest.mark.parametrize("seed", range(16))
def test_without_a_limit_it_is_the_least_round_trip_of_all_plans(seed: int, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, seed)
    tables = tables_of(problem)
    least_s, plan = RoundTrips(tables).least(np.inf, Deadline())
    brute_s = min(map(round_trip_s, every_cost(problem)), default=np.inf)
    if seed % 2:  # the tables' transfers are those without the padding of whole samples
        assert least_s <= brute_s * (1 + 1e-9)
        return
    assert least_s == pytest.approx(brute_s, rel=1e-9)
    if np.isfinite(brute_s):
        assert plan is not None
        own = plan.plan(tables, 0, "least round trip")
        assert own.check_valid(problem) == (True, "")
        cost = step_cost(problem, own)
        assert cost.feasible and round_trip_s(cost) == pytest.approx(brute_s, rel=1e-9)


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("seed", range(16))
def test_no_plan_is_shorter_than_the_bound(seed: int, schedule: str, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, 100 + seed, schedule)
    shortest_s = min((cost.step_s for cost in every_cost(problem)), default=np.inf)
    if np.isinf(shortest_s):
        return
    trips = RoundTrips(tables_of(problem))
    for limit_s in (0.9 * shortest_s, shortest_s, 3.0 * shortest_s):
        bound_s = least_step_s(trips, limit_s, Deadline(), lambda plans, limit_s=limit_s: limit_s)  # type: ignore[misc]
        assert 0.0 < bound_s <= min(limit_s, shortest_s) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_a_smaller_largest_part_never_makes_the_round_trip_shorter(seed: int, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, 200 + seed)
    trips, most_s = RoundTrips(tables_of(problem)), 40.0 * float(problem.profile.C.sum()) * problem.micro_batches
    least = [trips.least(most_s * 0.7**j, Deadline())[0] for j in range(20)]
    assert all(a <= b for a, b in pairwise(least))


def test_the_plans_of_a_staircase_are_all_different(make_problem: MakeProblem) -> None:
    plans = staircase(RoundTrips(tables_of(problem_of(make_problem, 3))), Deadline())
    assert isinstance(plans, PlanBatch)
    assert len({plans.take(slice(row, row + 1)).key for row in range(len(plans))}) == len(plans)


@pytest.mark.parametrize("seed", range(8))
def test_the_search_on_a_large_problem_still_finds_the_shortest_step(
    seed: int, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automap_models.planners.staged.search.LARGE", 0)
    problem = problem_of(make_problem, 300 + seed)
    shortest_s = min((cost.step_s for cost in every_cost(problem)), default=np.inf)
    search = anytime_search(problem, Deadline())
    assert search.finished
    assert (np.inf if search.cost is None else search.cost.step_s) == pytest.approx(shortest_s, rel=1e-9)
