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


@pytest.mark.parametrize("seed", range(20))
def test_what_earlier_lengths_came_to_changes_no_answer(seed: int, make_problem: MakeProblem) -> None:
    tables = tables_of(make_problem(seed))
    least_s = float(tables.micro_batches * tables.C[-1] / tables.capacity[-1])
    lengths_s = [*(least_s * 10 ** np.random.default_rng(seed).uniform(-1.0, 2.0, size=12)), np.inf]
    answers = [stages_exist(replace(tables), length_s, tables.memory) for length_s in lengths_s]  # nothing is known
    assert [stages_exist(tables, length_s, tables.memory) for length_s in lengths_s] == answers
    assert [stages_exist(tables, length_s, tables.memory) for length_s in lengths_s[::-1]] == answers[::-1]
    assert [stages_exist(tables, length_s, 0.5 * tables.memory) for length_s in lengths_s] == [
        stages_exist(replace(tables), length_s, 0.5 * tables.memory) for length_s in lengths_s
    ]
