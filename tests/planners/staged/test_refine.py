"""Refinement never makes a plan worse, and where it has the time nothing close by is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.schedules import SCHEDULES
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.refine import many_costs, objective_s, refine
from automap_models.planners.staged.search import exact_search
from automap_models.planners.staged.stage_tables import stage_tables

MakeProblem = Callable[..., StagedProblem]
OBJECTIVES = (None, *SCHEDULES)


def rated(problem: StagedProblem, plan: StagedPlan, schedule: str | None) -> float:
    """The length that refinement makes short."""
    return objective_s(plan_cost(problem, plan), plan.micro_batches, schedule)


def coarse_problem(make_problem: MakeProblem, seed: int) -> StagedProblem:
    """A problem whose grid is coarser than its instructions."""
    problem = make_problem(seed, max_n=60, max_devices=10)
    return replace(problem, granularity=max(len(problem.profile) // 4, problem.stages + 1))


def starts(make_problem: MakeProblem) -> list[tuple[StagedProblem, StagedPlan]]:
    """Problems of several stages with their optimum on the grid."""
    problems = [coarse_problem(make_problem, seed) for seed in range(60)]
    planned = [(p, exact_search(p)) for p in problems if p.stages > 1]
    return [(p, plan) for p, plan in planned if plan is not None]


@pytest.mark.parametrize("schedule", OBJECTIVES)
def test_a_refined_plan_is_valid_fits_and_is_never_worse(schedule: str | None, make_problem: MakeProblem) -> None:
    shorter = 0
    for problem, plan in starts(make_problem):
        refined = refine(problem, plan, Deadline(), schedule)
        assert refined.check_valid(problem) == (True, "")
        assert plan_cost(problem, refined).feasible
        assert refined.planner == plan.planner
        before, after = (rated(problem, one, schedule) for one in (plan, refined))
        assert after <= before
        shorter += after < before * (1 - 1e-9)
    assert shorter >= 10


@pytest.mark.parametrize("schedule", OBJECTIVES)
def test_no_single_step_makes_a_refined_plan_better(schedule: str | None, make_problem: MakeProblem) -> None:
    for problem, plan in starts(make_problem)[:25]:
        refined = refine(problem, plan, Deadline(), schedule)
        best_s = rated(problem, refined, schedule)
        for s in range(problem.stages - 1):
            for step, device_step in [(-1, 0), (1, 0), (0, -1), (0, 1), (1, 1), (-1, -1)]:
                cuts, device_cuts = np.array(refined.cuts), np.array(refined.device_cuts)
                cuts[s] += step
                device_cuts[s] += device_step
                moved = replace(
                    refined, cuts=tuple(cuts.tolist()), device_cuts=tuple(device_cuts.tolist()), coarse_cuts=None
                )
                if moved.check_valid(problem)[0] and plan_cost(problem, moved).feasible:
                    assert rated(problem, moved, schedule) >= best_s * (1 - 1e-9)


def test_without_time_the_plan_stays_as_it_is(make_problem: MakeProblem) -> None:
    for problem, plan in starts(make_problem)[:10]:
        for schedule in OBJECTIVES:
            assert refine(problem, plan, Deadline(0.0), schedule) == plan


def test_under_a_schedule_the_plan_before_its_correction_competes(make_problem: MakeProblem) -> None:
    """A corrected plan is shorter by L, yet may be longer as simulated: refinement begins with the better one."""
    better_before = 0
    for problem, plan in starts(make_problem):
        try:
            uniform = make_planner("uniform").plan(problem)
        except Infeasible:
            continue
        start = refine(problem, plan, Deadline(0.0), "1f1b", before_proof=uniform)
        before_s, after_s = (rated(problem, one, "1f1b") for one in (uniform, plan))
        assert start == (uniform if before_s < after_s else plan)
        better_before += before_s < after_s
    assert better_before >= 1


def test_coarse_cuts_are_null_exactly_when_a_cut_left_the_grid(make_problem: MakeProblem) -> None:
    off = 0
    for problem, plan in starts(make_problem):
        refined = refine(problem, plan, Deadline())
        assert refined.coarse_cuts == problem.grid.to_points(refined.cuts)
        off += refined.coarse_cuts is None
    assert off >= 10


def test_one_stage_has_nothing_to_refine(make_problem: MakeProblem) -> None:
    problem = replace(make_problem(0), stages=1)
    plan = StagedPlan((), (), problem.micro_batches, "data-parallel", ())
    assert refine(problem, plan, Deadline(1.0), "1f1b") is plan


@pytest.mark.parametrize("seed", range(30))
def test_many_costs_at_once_are_those_of_the_cost_model(seed: int, make_problem: MakeProblem) -> None:
    problem = make_problem(seed, max_n=30, max_devices=9)
    if problem.stages == 1:
        return
    rng, n, devices = np.random.default_rng(seed), len(problem.profile), problem.cluster.devices

    def draw(below: int) -> np.ndarray:
        return np.sort([rng.permutation(below - 1)[: problem.stages - 1] + 1 for _ in range(40)], axis=1)

    boundaries, device_cuts = draw(n), draw(devices)
    costs = many_costs(stage_tables(problem, np.arange(n - 1)), boundaries, device_cuts)
    for j in range(40):
        shape = (tuple((boundaries[j] - 1).tolist()), tuple(device_cuts[j].tolist()))
        cost = plan_cost(problem, StagedPlan(*shape, problem.micro_batches, "random"))
        assert costs.length_s[j] == pytest.approx(cost.length_s, rel=1e-9)
        assert costs.span_s[j] == pytest.approx(cost.span_s, rel=1e-9)
        assert costs.transfer_s[j] == pytest.approx(cost.transfer_s, rel=1e-9)
        assert costs.backward_s[j] == pytest.approx(cost.backward_s, rel=1e-9, abs=1e-12)
        assert costs.all_reduce_s[j] == pytest.approx(cost.all_reduce_s, rel=1e-9, abs=1e-15)
        assert costs.feasible[j] == cost.feasible
