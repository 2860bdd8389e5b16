"""Plans for the simulated step under a schedule, in milliseconds: tables for the length L, then compiled moves.

    tables for L ──▶ their plans by the step ──▶ moves from the best, as far as they lead ──▶ moves from the others,
    (table_plans)                                (move_kernel)                                 below the best step

A plan that is short by L is mostly near one whose step is short, and the moves find that one. Nothing is proven. Work
is counted, not timed, so that a plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.improve import PASSES, Moves
from automap_models.planners.staged.table_plans import Look, table_plans

LOOKS: tuple[tuple[float, tuple[Look, ...]], ...] = (
    (32, (Look(48, 32), Look(48, 32, 0.3), Look(48, 32, 3.0))),
    (256, (Look(32, 32), Look(64, 64))),
    (np.inf, (Look(32, 32),)),
)
"""Most devices → the tables that such a problem is looked at by; moves mend more in the time of finer ones."""
STARTS = 2
"""Times as many plans as a beam has are what moves set out from: 1.0038 of the optimum on random problems in 15 ms,
where two plans come to 1.0052 in 2.4 ms."""
ROUTES = 2
"""Times as many plans by tables are looked at as moves set out from."""


def step_plan(problem: StagedProblem, beam: int, reach: int, planner: str) -> StagedPlan:
    """The plan with the shortest step found; one that does not fit where none was found that does.

    Args:
        problem: of several stages on equal nodes, with a schedule.
        beam: of it and STARTS depends from how many plans of the tables moves set out; reach: as table_plans has it.
        planner: name of who plans.
    """
    looks = next(looks for most, looks in LOOKS if problem.cluster.devices <= most)
    starts = STARTS * beam
    return moved_plan(problem, table_plans(problem, ROUTES * starts, reach, planner, looks), starts)


def moved_plan(problem: StagedProblem, plans: Sequence[StagedPlan], starts: int | None = None) -> StagedPlan:
    """The plan with the shortest step that moves from some others lead to; one that does not fit where none does.

    Args:
        problem: of several stages, with a schedule.
        plans: one or more on its grid.
        starts: from how many of them, the shortest ones, moves set out; None for all.
    """
    moves = Moves(problem, planner=plans[0].planner)
    _, plan = moves.improved(plans, equal=False, count=starts or len(plans), passes=2.0 * PASSES)
    return plans[0] if plan is None else plan
