"""What is proven about all plans of the problems that compete, the most promising problem first.

Without a schedule the exact search begins at the plan that an attempt has (staged.exact.certify). Under one, good
plans were looked for before, and plans shorter than the best step are listed at once (staged.search.search_below).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from automap_models.core.result import Bound
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.attempt import Attempt, best_of
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.exact import certify
from automap_models.planners.staged.relaxation import evenly_s, lower_bound_s, out_of_reach
from automap_models.planners.staged.search import search_below

SHARES = (0.8, 0.9, 0.95)
"""Of the best step, that is proven of all problems one after the other."""
AT_MOST = 6
"""Several problems share so many times the time that one of them may take to be proven."""
RAISES = 1
"""So many times the time of a proof is what raising the bounds of all problems together may take afterwards."""


def prove(attempts: Sequence[Attempt], budget_s: float, deadline: Deadline) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the step of all.

    Args:
        attempts: at least one of which has a plan.
        budget_s: counted seconds for one of them; with 0 there is only the relaxation's bound for each.
        deadline: when to stop in any case.
    """
    for attempt in attempts:
        attempt.first = attempt.plan
    together = deadline.part(AT_MOST * budget_s, effort.counted_s)
    for attempt in sorted(attempts, key=lambda attempt: attempt.step_s):
        if not attempt.closed:
            _prove_one(attempt, best_of(attempts).step_s, together.part(budget_s) if budget_s else None)
    if budget_s and len(attempts) > 1:
        _raise_bounds(attempts, deadline.part(RAISES * budget_s, effort.counted_s))
    return _bound_of(attempts)


def _raise_bounds(attempts: Sequence[Attempt], deadline: Deadline) -> None:
    """Prove of one attempt after the other that its plans cost at least a share of the best one, then a larger share.

    A bound on all is as good as that of the attempt of which least is known, and small shares are proven soon.
    """
    for share in SHARES:
        for attempt in attempts:
            limit_s = share * best_of(attempts).step_s
            if attempt.closed or attempt.bound_s >= limit_s or deadline.passed:
                continue
            attempt.take_search(search_below(attempt.relaxed, deadline, limit_s, attempt.costs))


def _bound_of(attempts: Sequence[Attempt]) -> Bound:
    """What is proven about the plans of all attempts on the grid together.

    The best step is that of the best of them where its plan is on the grid; one between its points only bounds them.
    """
    best_s, plan = min(attempt.step_s for attempt in attempts), best_of(attempts).plan
    if all(attempt.closed for attempt in attempts):
        on_grid = plan is not None and plan.coarse_cuts is not None
        return Bound(best_s, "exact" if on_grid else "relaxation")
    return Bound(min(best_s, *(attempt.bound_s for attempt in attempts)), "relaxation")


def _prove_one(attempt: Attempt, best_s: float, deadline: Deadline | None) -> None:
    """Close one attempt, or raise its bound; None is no time at all."""
    scheduled = attempt.relaxed.schedule is not None
    if scheduled and attempt.plan is None and (deadline is None or deadline.passed):
        attempt.bound_s = max(attempt.bound_s, evenly_s(attempt.relaxed))
        return
    if attempt.step_s > best_s and out_of_reach(attempt.relaxed, best_s):
        attempt.close("discarded", best_s)
    elif attempt.plan is None:
        try:
            attempt.bound_s = max(attempt.bound_s, lower_bound_s(attempt.relaxed, deadline))
        except Infeasible:
            attempt.close("does not fit", np.inf)
    elif attempt.relaxed.schedule is not None and deadline is not None:  # good plans were looked for before
        if not attempt.bound_s:
            attempt.bound_s = lower_bound_s(attempt.relaxed, deadline)
        attempt.bound_s = min(attempt.bound_s, best_s)
        if deadline.passed:  # even to begin with takes a while where devices are many
            return
        limit_s = min(attempt.step_s, best_s)
        search = search_below(attempt.relaxed, deadline, limit_s, attempt.costs, whole=True)
        attempt.take_search(search)
        if search.finished and attempt.bound_s >= limit_s * (1.0 - LENGTH_ROUNDING):
            attempt.outcome = "proven"
    else:
        certificate = certify(attempt.relaxed, attempt.plan, deadline, best_s, attempt.costs)
        attempt.bound_s = max(attempt.bound_s, certificate.bound.value)
        if certificate.plan is not None and certificate.cost is not None:
            attempt.offer(certificate.plan, certificate.cost)
        if certificate.bound.proof == "exact":
            attempt.outcome = "proven"
