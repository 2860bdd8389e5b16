"""The exact search under a schedule against brute force: every plan that there is, simulated one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from draw_counts import counts

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import SharedParameter
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import Deadline
from automap_models.planners.staged.exact import ExactPlanner, certify
from automap_models.planners.staged.search import anytime_search
from automap_models.simulate.step import step_cost

MakeProblem = Callable[..., StagedProblem]


def random_problem(make_problem: MakeProblem, seed: int, schedule: str) -> StagedProblem:
    """Two to four stages; half of the problems have whole samples, a third a parameter that two instructions share."""
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, max_n=9, max_devices=7, max_stages=4)
    profile = problem.profile
    meta = {**profile.meta, "microbatch_size": int(rng.integers(1, 12))} if seed % 2 else profile.meta
    shared: tuple[SharedParameter, ...] = ()
    if seed % 3 == 0 and profile.W[0]:
        shared = (SharedParameter("embedding", float(profile.W[0]) / 2, (0, len(profile) - 1)),)
    profile = replace(profile, meta=meta, shared_parameters=shared)
    stages = max(problem.stages, 2)
    return replace(problem, profile=profile, stages=stages, schedule=schedule, micro_batches=int(rng.integers(1, 9)))


def every_plan(problem: StagedProblem) -> Iterator[StagedPlan]:
    """All plans on the grid."""
    grid, cuts = problem.grid, problem.stages - 1
    for points in combinations(grid.cut_points.tolist(), cuts):
        for devices in combinations(range(1, problem.cluster.devices), cuts):
            yield StagedPlan(grid.to_instructions(points), devices, problem.micro_batches, "brute force")


def brute_force_s(problem: StagedProblem) -> float:
    """The shortest step of all plans that fit."""
    costs = (step_cost(problem, plan) for plan in every_plan(problem))
    return min((cost.step_s for cost in costs if cost.feasible), default=float("inf"))


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("seed", range(24))
def test_it_finds_the_shortest_step_of_all_plans(seed: int, schedule: str, make_problem: MakeProblem) -> None:
    problem = random_problem(make_problem, seed, schedule)
    search, best_s = anytime_search(problem, Deadline()), brute_force_s(problem)
    assert search.finished
    if np.isinf(best_s):
        assert search.plan is None
        return
    assert search.plan is not None and search.cost is not None
    assert search.plan.check_valid(problem) == (True, "")
    assert search.cost.step_s == step_cost(problem, search.plan).step_s == pytest.approx(best_s, rel=1e-9)
    assert search.bound_s == search.cost.step_s


@pytest.mark.parametrize("draws", counts(None, 60, 300))
@pytest.mark.parametrize("schedule", WARM_UPS)
def test_it_finds_the_shortest_step_of_many_more(schedule: str, draws: int, make_problem: MakeProblem) -> None:
    for seed in range(100, 100 + draws):
        problem = random_problem(make_problem, seed, schedule)
        search, best_s = anytime_search(problem, Deadline()), brute_force_s(problem)
        searched_s = float("inf") if search.cost is None else search.cost.step_s
        assert search.finished and (searched_s == best_s or searched_s == pytest.approx(best_s, rel=1e-9)), seed


@pytest.mark.parametrize("seed", range(12))
def test_a_stopped_search_bounds_every_plan(seed: int, make_problem: MakeProblem) -> None:
    problem = random_problem(make_problem, seed, "1f1b")
    best_s = brute_force_s(problem)
    ticks = iter(range(10_000))
    for limit in (1, 3, 9, 27):
        search = anytime_search(problem, Deadline(limit, lambda: float(next(ticks))))
        assert search.bound_s <= best_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_certificate_corrects_a_plan_that_is_not_the_best(seed: int, make_problem: MakeProblem) -> None:
    problem = random_problem(make_problem, seed, "1f1b")
    plans = [plan for plan in every_plan(problem) if step_cost(problem, plan).feasible]
    if not plans:
        return
    best_s, start = brute_force_s(problem), plans[len(plans) // 2]
    certificate = certify(problem, start, Deadline())
    assert (certificate.bound.value, certificate.bound.proof) == (pytest.approx(best_s, rel=1e-9), "exact")


def test_the_exact_planner_proves_the_step(make_problem: MakeProblem) -> None:
    problem = random_problem(make_problem, 1, "1f1b")
    result = ExactPlanner().solve(problem)
    assert result.status == "optimal" and result.bound is not None
    assert result.bound.value == result.cost.step_s == pytest.approx(brute_force_s(problem), rel=1e-9)
