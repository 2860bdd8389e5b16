"""The best plan of one problem: a table and moves find good plans, branch and bound looks at all others.

starts ──▶ moves (improve) ──▶ all plans that may be shorter (branch_and_bound) ──▶ the shortest, proven
table ───┘

What plans are compared by is the step under the problem's schedule, or without one the length L.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import Deadline
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, SearchResult
from automap_models.planners.staged.feasibility import plans_fit
from automap_models.planners.staged.frameworks import balanced
from automap_models.planners.staged.improve import PASSES, Moves, cut_places

STARTS = 4
"""Plans from which moves set out."""
LOOK_S = 0.3
"""Counted seconds of branch and bound behind the moves, at most: it mostly ends after a twentieth of that."""
PLANNER = "exact"
"""Who makes the plans that come out."""


def anytime_search(
    problem: StagedProblem,
    deadline: Deadline,
    upper_s: float = np.inf,
    starts: Iterable[StagedPlan] = (),
    costs: Costs | None = None,
) -> SearchResult:
    """The shortest plan that fits the memory, or what is known when the time is up.

    Args:
        problem: with its shardings and constraints.
        deadline: when to stop; loops are counted (planners.effort) and look at it every second or so.
        upper_s: only shorter plans are of interest (by more than LENGTH_ROUNDING, relatively).
        starts: plans from which moves set out, too; those that are not valid are left out.
        costs: of this problem's plans, as far as they are known.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share out the devices among the stages.
    """
    costs, places = Costs(problem) if costs is None else costs, cut_places(problem)
    moves, best = Moves(problem, places, PLANNER), None
    if not (moves.can_cut and plans_fit(moves.stages)):
        return SearchResult(None, None, np.inf, finished=True)
    if problem.stages == 1:
        return _one_stage(problem, upper_s, costs)
    valid = [start for start in starts if start.check_valid(problem)[0]]
    step_s, plan = moves.improved([*valid, *first_plans(moves)], equal=False, count=STARTS, passes=STARTS * PASSES)
    if plan is not None and step_s < upper_s * (1.0 - LENGTH_ROUNDING) and costs(plan).feasible:
        best = plan
    limit_s = upper_s if best is None else costs(best).step_s
    plan, bound_s = shortest_below(problem, places, limit_s, deadline, PLANNER)
    if plan is not None and costs(plan).feasible:
        best, limit_s = plan, costs(plan).step_s
    finished = bound_s >= limit_s * (1.0 - LENGTH_ROUNDING)
    return SearchResult(best, None if best is None else costs(best), limit_s if finished else bound_s, finished)


def _one_stage(problem: StagedProblem, upper_s: float, costs: Costs) -> SearchResult:
    """Of the plans of one stage, one for each sharding."""
    plans = [
        StagedPlan((), (), problem.micro_batches, PLANNER, (), (index,)) for index in range(len(problem.all_shardings))
    ]
    fitting = [plan for plan in plans if plan.check_valid(problem)[0] and costs(plan).feasible]
    best = min(fitting, key=lambda plan: costs(plan).step_s, default=None)
    if best is None or costs(best).step_s >= upper_s * (1.0 - LENGTH_ROUNDING):
        return SearchResult(None, None, upper_s, finished=True)
    return SearchResult(best, costs(best), costs(best).step_s, finished=True)


def first_plans(moves: Moves) -> list[StagedPlan]:
    """The plan of the table, even work on even devices, and where neither fits one that packs the memory."""
    problem, plans = moves.problem, moves.constructed()
    cuts = balanced(problem.profile.C, moves.cuts, problem.stages)
    if cuts is not None:
        devices = np.rint(np.arange(1, problem.stages) * problem.cluster.devices / problem.stages).astype(int)
        plans.append(StagedPlan(cuts, tuple(devices.tolist()), problem.micro_batches, moves.planner))
    return plans if any(np.isfinite(moves.step_s(plan)) for plan in plans) else moves.packed()
