"""Stages of even work: a plan that fits wherever one exists, and no stage longer than it needs to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.base import Deadline
from automap_models.planners.staged.feasibility import even_plan, stages_exist
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import least_length_s

MakeProblem = Callable[..., StagedProblem]
EveryPlan = Callable[[StagedProblem], Iterator[tuple[tuple[int, ...], tuple[int, ...]]]]


@pytest.mark.parametrize("seed", range(60))
def test_there_is_a_plan_of_even_work_that_fits_wherever_any_plan_does(
    seed: int, make_problem: MakeProblem, every_plan: EveryPlan
) -> None:
    problem = make_problem(seed)
    tables = tables_of(problem)
    costs = [
        plan_cost(problem, StagedPlan(problem.grid.to_instructions(coarse), device_cuts, problem.micro_batches, "any"))
        for coarse, device_cuts in every_plan(problem)
    ]
    fits = any(cost.feasible for cost in costs)
    assert stages_exist(tables, np.inf, tables.memory) == fits
    if not fits:
        return
    even = even_plan(tables, 1.002 * least_length_s(tables, Deadline()), tables.memory)
    assert even is not None
    plan = even.plan(tables, 0, "even")
    assert plan.check_valid(problem) == (True, "")
    assert plan_cost(problem, plan).feasible


@pytest.mark.parametrize("seed", range(20))
def test_without_transfers_the_longest_stage_is_as_short_as_can_be(
    seed: int, make_problem: MakeProblem, every_plan: EveryPlan
) -> None:
    drawn = make_problem(seed)
    nothing = np.zeros(len(drawn.profile))
    profile = replace(drawn.profile, A=nothing, W=nothing, stash=nothing)
    problem = replace(drawn, profile=profile)
    tables = tables_of(problem)
    even = even_plan(tables, 1.002 * least_length_s(tables, Deadline()), tables.memory)
    assert even is not None

    def longest_s(plan: StagedPlan) -> float:
        cost = plan_cost(problem, plan)
        return float((cost.forward_s + cost.backward_s).max())

    shortest_s = min(
        longest_s(StagedPlan(problem.grid.to_instructions(coarse), device_cuts, problem.micro_batches, "any"))
        for coarse, device_cuts in every_plan(problem)
    )
    assert longest_s(even.plan(tables, 0, "even")) <= 1.003 * shortest_s
