"""Successive stages exist within the memory wherever a plan fits, whatever was asked before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.feasibility import stages_exist
from automap_models.planners.staged.problem_tables import tables_of

MakeProblem = Callable[..., StagedProblem]
EveryPlan = Callable[[StagedProblem], Iterator[tuple[tuple[int, ...], tuple[int, ...]]]]


@pytest.mark.parametrize("seed", range(30))
def test_stages_exist_within_the_memory_where_a_plan_fits(
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
