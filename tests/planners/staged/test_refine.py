"""Refinement never makes a plan worse, and where it has the time nothing close by is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from optima import exact_search

from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.base import NEVER
from automap_models.planners.staged.costs import Costs
from automap_models.planners.staged.search import around, refine
from automap_models.simulate.plan_step import step_cost

MakeProblem = Callable[..., StagedProblem]
OBJECTIVES = (None, *WARM_UPS)


def rated(problem: StagedProblem, plan: StagedPlan) -> float:
    """What refinement makes short."""
    return step_cost(problem, plan).step_s


def coarse_problem(make_problem: MakeProblem, seed: int) -> StagedProblem:
    """A problem whose grid is coarser than its instructions."""
    problem = make_problem(seed, max_n=60, max_devices=10)
    return replace(problem, granularity=max(len(problem.profile) // 4, problem.stages + 1))


def starts(make_problem: MakeProblem, schedule: str | None = None) -> list[tuple[StagedProblem, StagedPlan]]:
    """Problems of several stages with their optimum by the length L on the grid, where that fits."""
    problems = [coarse_problem(make_problem, seed) for seed in range(60)]
    planned = [(replace(p, schedule=schedule), exact_search(p)) for p in problems if p.stages > 1]
    return [(p, plan) for p, plan in planned if plan is not None and plan_cost(p, plan).feasible]


@pytest.mark.parametrize("schedule", OBJECTIVES)
def test_a_refined_plan_is_valid_fits_and_is_never_worse(schedule: str | None, make_problem: MakeProblem) -> None:
    shorter = 0
    for problem, plan in starts(make_problem, schedule):
        refined = refine(problem, plan)
        assert refined.check_valid(problem) == (True, "")
        assert plan_cost(problem, refined).feasible
        assert refined.planner == plan.planner
        before, after = (rated(problem, one) for one in (plan, refined))
        assert after <= before
        shorter += after < before * (1 - 1e-9)
    assert shorter >= 10


@pytest.mark.parametrize("schedule", OBJECTIVES)
def test_no_single_step_makes_a_refined_plan_better(schedule: str | None, make_problem: MakeProblem) -> None:
    for problem, plan in starts(make_problem, schedule)[:25]:
        refined = refine(problem, plan)
        best_s = rated(problem, refined)
        for s in range(problem.stages - 1):
            for step, device_step in [(-1, 0), (1, 0), (0, -1), (0, 1), (1, 1), (-1, -1)]:
                cuts, device_cuts = np.array(refined.cuts), np.array(refined.device_cuts)
                cuts[s] += step
                device_cuts[s] += device_step
                moved = replace(
                    refined, cuts=tuple(cuts.tolist()), device_cuts=tuple(device_cuts.tolist()), coarse_cuts=None
                )
                if moved.check_valid(problem)[0] and plan_cost(problem, moved).feasible:
                    assert rated(problem, moved) >= best_s * (1 - 1e-9)


def test_coarse_cuts_are_null_exactly_when_a_cut_left_the_grid(make_problem: MakeProblem) -> None:
    off = 0
    for problem, plan in starts(make_problem):
        refined = refine(problem, plan)
        assert refined.coarse_cuts == problem.grid.to_points(refined.cuts)
        off += refined.coarse_cuts is None
    assert off >= 10


def test_one_stage_has_nothing_to_refine(make_problem: MakeProblem) -> None:
    problem = replace(make_problem(0), stages=1)
    plan = StagedPlan((), (), problem.micro_batches, "data-parallel", ())
    assert refine(problem, plan) is plan


@pytest.mark.parametrize("schedule", [None, "1f1b"])
def test_no_plan_beside_one_and_between_the_cuts_of_others_is_shorter(
    schedule: str | None, make_problem: MakeProblem
) -> None:
    """By brute force over all plans that cut 0, 1 or 2 places beside the plan's cuts, or 0 or 1 beside the others'."""
    shorter = 0
    for seed in range(16):
        problem = replace(make_problem(seed, max_n=14, max_devices=6), schedule=schedule)
        places = problem.grid.instruction_of_point[problem.grid.cut_points]
        if problem.stages < 2:
            continue
        drawn = np.random.default_rng(seed)
        plans = [
            StagedPlan(
                tuple(np.sort(drawn.choice(places, problem.stages - 1, replace=False)).tolist()),
                tuple(range(1, problem.stages)),
                problem.micro_batches,
                "drawn",
            )
            for _ in range(3)
        ]
        best = around(plans, Costs(problem), places, 2, NEVER)
        beside = [(cut, 2) for cut in best.cuts] + [(cut, 1) for plan in plans for cut in plan.cuts]
        at = sorted(
            {k for cut, reach in beside for k in range(len(places)) if abs(places.tolist().index(cut) - k) <= reach}
        )
        devices = list(combinations(range(1, problem.cluster.devices), problem.stages - 1))
        all_plans = [
            StagedPlan(tuple(places[list(cuts)].tolist()), firsts, problem.micro_batches, "brute force")
            for cuts in combinations(at, problem.stages - 1)
            for firsts in devices
        ]
        costs = [cost for cost in (step_cost(problem, plan) for plan in all_plans) if cost.feasible]
        if costs:
            assert rated(problem, best) == pytest.approx(min(cost.step_s for cost in costs), rel=1e-9)
            first = step_cost(problem, plans[0])
            shorter += not first.feasible or rated(problem, best) < first.step_s * (1 - 1e-9)
    assert shorter > 6
