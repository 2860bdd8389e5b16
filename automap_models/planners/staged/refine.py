"""Refinement: cuts moved by single instructions, off the grid, under the length L or a schedule's simulated length.

Under L the label setting of the exact planner looks at all plans at once whose every cut lies a power of two of
instructions, and at most a few devices, from where it is (staged.exact); it goes on from the best of them until there
is no better one. Where a plan is not proven to be the best on the grid, a better one may be far from it: a local search
over all instructions (staged.local_search) follows, on large problems comes first. A simulated length has no such
recursion: there a plan moves on to shorter ones near it, by compiled loops (staged.move_kernel) that take so much at
most. A search under L stops at its deadline with the best plan so far; a plan never gets worse. A refinement that comes
to its end before that gives the same plan everywhere, one that is stopped by counted seconds (planners.effort), too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.costs import Costs
from automap_models.planners.staged.search import StagedSearch, is_large
from automap_models.planners.staged.stage_tables import stage_tables

CELLS, DEVICES = 2, 2
"""How far a cut and a device cut move at most in one step, the former in points of the grid."""


def refine(
    problem: StagedProblem,
    plan: StagedPlan,
    deadline: Deadline,
    *,
    proven: bool = False,
    costs: Costs | None = None,
) -> StagedPlan:
    """A plan no worse than those given, of the maker of the one that it comes from.

    Args:
        problem: what the plan solves.
        plan: one that fits the memory.
        deadline: when to stop.
        proven: whether no plan on the grid is shorter, so that only those near it off the grid can be.
        costs: of this problem's plans, as far as they are known.
    """
    if plan.stages == 1 or deadline.passed:
        return plan
    costs = Costs(problem) if costs is None else costs
    if problem.schedule is None:
        return _under_length(costs, plan, deadline, far=not proven)
    return _under_schedule(costs, plan)


def _offsets(problem: StagedProblem) -> list[int]:
    """Powers of two up to CELLS cells of the grid, the largest first."""
    most = max(CELLS * len(problem.profile) // problem.granularity, 1)
    return [1 << j for j in range(most.bit_length() - 1, -1, -1)]


def _under_length(costs: Costs, plan: StagedPlan, deadline: Deadline, *, far: bool) -> StagedPlan:
    """The shortest plan that a search around the plan, then around what that finds, and so on, comes to.

    Args:
        far: whether a local search comes in between.
    """
    problem, near = costs.problem, plan
    search = StagedSearch(problem, deadline, costs(plan).step_s, costs)
    try:
        if not (far and is_large(problem)):
            near = _closest(search, near)
        if far:
            before = search.step_s
            search.improve_widely(stage_tables(problem, np.arange(len(problem.profile) - 1)), near)
            if search.step_s < before or is_large(problem):
                _closest(search, search.best or near)
    except OutOfTime:
        pass
    return plan if search.best is None else replace(search.best, planner=plan.planner)


def _closest(search: StagedSearch, near: StagedPlan) -> StagedPlan:
    """The plan around which, in powers of two of instructions, there is no shorter one.

    Raises:
        OutOfTime: the deadline has passed; the search's best is what was found by then.
    """
    problem = search.problem
    offsets = _offsets(problem)
    steps = np.array([0, *offsets, *(-offset for offset in offsets)])
    while True:
        places = np.unique(np.add.outer(np.array(near.cuts), steps))
        tables = stage_tables(problem, places[(places >= 0) & (places < len(problem.profile) - 1)])
        before = search.step_s
        search.improve_around(tables, near, (len(offsets), DEVICES))
        near = search.best or near
        if search.step_s == before:
            return near


def _under_schedule(costs: Costs, plan: StagedPlan) -> StagedPlan:
    """The plan that moves by single instructions lead to."""
    from automap_models.planners.staged.improve import Moves  # numba takes half a second to import

    problem = costs.problem
    moves = Moves(problem, np.arange(len(problem.profile) - 1), plan.planner)
    _, moved = moves.improved([plan], equal=problem.constraints.equal_replicas)
    shorter = moved is not None and costs(moved).feasible and costs(moved).step_s < costs(plan).step_s
    return moved if moved is not None and shorter else plan
