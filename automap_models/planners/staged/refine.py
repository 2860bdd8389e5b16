"""Refinement: cuts moved by single instructions, off the grid, under a schedule or by the length L.

    the plan ──▶ by the length L: all plans that cut 1, 2, 4, … instructions beside it ──▶ the best, and again ──▶ moves

Under a schedule so many plans would take too long to look at.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs
from automap_models.planners.staged.improve import Moves, near

CELLS = 2
"""How far beside a cut all plans are looked at, in points of the grid."""


def refine(
    problem: StagedProblem, plan: StagedPlan, costs: Costs | None = None, *, equal: bool = False, around_s: float = 0.1
) -> StagedPlan:
    """The plan that moves by single instructions lead to; the same one where that is no shorter.

    Args:
        problem: what the plan solves.
        plan: one that fits the memory.
        costs: of this problem's plans, as far as they are known.
        equal: whether device cuts stay as they are.
        around_s: counted seconds in which all plans beside it are looked at, by the length L.
    """
    if plan.stages == 1 or problem.constraints.cut_at is not None:
        return plan
    costs = Costs(problem) if costs is None else costs
    plan = _around(plan, costs, Deadline(around_s, effort.counted_s)) if problem.schedule is None else plan
    moves = Moves(problem, np.arange(len(problem.profile) - 1), plan.planner)
    step_s, moved = moves.improved([plan], equal=equal or problem.constraints.equal_replicas)
    if moved is None or step_s >= moves.step_s(plan) * (1.0 - LENGTH_ROUNDING) or not costs(moved).feasible:
        return plan
    return moved


def _around(plan: StagedPlan, costs: Costs, deadline: Deadline) -> StagedPlan:
    """The plan beside whose cuts, by powers of two of instructions, no shorter ones lie."""
    problem, last = costs.problem, len(costs.problem.profile) - 2
    beside = near(CELLS * len(problem.profile) // problem.granularity)
    while not deadline.passed:
        places = np.unique(np.clip(np.add.outer(np.array(plan.cuts), beside), 0, last))
        shorter, _ = shortest_below(problem, places, costs(plan).step_s, deadline, plan.planner)
        if shorter is None or not costs(shorter).feasible:
            break
        plan = shorter
    return plan
