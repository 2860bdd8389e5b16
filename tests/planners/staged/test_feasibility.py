"""A plan that packs the memory is made wherever one fits, and no less memory is said to do than some plan needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.feasibility import PRECISION, least_share, plans_fit
from automap_models.planners.staged.improve import Moves
from automap_models.planners.staged.stage_arrays import stage_arrays

MakeProblem = Callable[..., StagedProblem]
EveryPlan = Callable[[StagedProblem], Iterator[tuple[tuple[int, ...], tuple[int, ...]]]]


@pytest.mark.parametrize("seed", range(30))
def test_stages_fit_the_memory_where_a_plan_does(seed: int, make_problem: MakeProblem, every_plan: EveryPlan) -> None:
    problem = make_problem(seed)
    costs = [
        plan_cost(problem, StagedPlan(problem.grid.to_instructions(coarse), device_cuts, problem.micro_batches, "any"))
        for coarse, device_cuts in every_plan(problem)
    ]
    fits = any(cost.feasible for cost in costs)
    stages, _ = stage_arrays(problem)
    assert plans_fit(stages) == fits
    plans = Moves(problem).packed()
    assert bool(plans) == fits
    assert all(plan.check_valid(problem)[0] and plan_cost(problem, plan).feasible for plan in plans)
    needed = min(float(cost.memory_bytes.max()) for cost in costs)
    least = least_share(stages)
    assert plans_fit(stages, PRECISION * least)
    if not fits:
        assert least == pytest.approx(needed / problem.cluster.memory, rel=2e-3)
