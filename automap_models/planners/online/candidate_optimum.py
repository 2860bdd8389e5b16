"""The exact search (planners.staged.exact) on the candidates of online training: what that can reach at best."""

from __future__ import annotations

import numpy as np

from automap_models.core.result import Bound
from automap_models.cost.staged import plan_cost
from automap_models.envs.online_pivots import Candidates
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.staged.label_setting import SLACK, shortest
from automap_models.planners.staged.relaxation import PrefixBounds, lower_bound_s, prefix_bounds
from automap_models.planners.staged.stage_tables import stage_tables


def candidate_optimum(candidates: Candidates, known_s: float, deadline: Deadline) -> Bound:
    """The shortest length of all plans on the candidates, or a lower bound of it.

    The search does not know that every stage has to train something. Where its optimum breaks that, or where its time
    is up, what is proven is a bound ("relaxation").

    Args:
        candidates: what plans may choose from.
        known_s: length of a plan, on the candidates or not; of those on them that are longer nothing is told.
        deadline: when to stop.
    """
    problem = candidates.problem
    tables = stage_tables(problem, candidates.cuts)
    try:
        bounds = _restricted(candidates, prefix_bounds(tables, known_s * (1.0 + SLACK), deadline))
        found = [(known_s, True)]
        for plan in shortest(tables, bounds, known_s * (1.0 + SLACK), deadline):
            found.append((plan_cost(problem, plan).length_s, candidates.every_stage_trains(plan.cuts)))
    except OutOfTime as stopped:
        return Bound(max(stopped.bound_s, lower_bound_s(problem)), "relaxation")
    best_s, trains = min(found, key=lambda each: (each[0], not each[1]))
    return Bound(best_s, "exact" if trains else "relaxation")


def _restricted(candidates: Candidates, bounds: PrefixBounds) -> PrefixBounds:
    """The bounds, infinite where a stage would begin on a device that is no candidate."""
    allowed = np.zeros(bounds.busy.shape[:2], dtype=bool)
    allowed[0, 0] = True
    for s, devices in enumerate(candidates.device_cuts, start=1):
        allowed[s, devices] = True
    never = ~allowed[:, :, None]
    return PrefixBounds(np.where(never, np.inf, bounds.busy), np.where(never, np.inf, bounds.forward))
