"""What is proven about all plans of the problems that compete, the most promising problem first.

Without a schedule the exact search begins at the plan that an attempt has (staged.exact.certify). Under one, good
plans were looked for before: it is proven of one problem after the other that no plan of it takes less than a share of
the best step, then than a larger share, up to all of it. What is proven about all is what is proven about the problem
of which least is, so that the first share that one of them does not come to is the last that is tried.
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

SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Of the best step, that is proven of all problems one after the other."""
OF_LENGTHS = (0.8, 0.9, 0.95)
"""The same by the length L."""
AT_MOST = 6
"""Several problems share so many times the time that one of them may take to be proven, by the length L."""
AT_ONCE = 4
"""The same under a schedule."""
FEW = 4
"""So many problems have a better bound by the relaxation where there is no time for a proof."""


def prove(attempts: Sequence[Attempt], budget_s: float, deadline: Deadline) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the step of all.

    Args:
        attempts: at least one of which has a plan.
        budget_s: counted seconds for one of them; with 0 there is only the relaxation's bound for each.
        deadline: when to stop in any case.
    """
    for attempt in attempts:
        attempt.first = attempt.plan
    if attempts[0].relaxed.schedule is None:
        together = deadline.part(AT_MOST * budget_s, effort.counted_s)
        for attempt in sorted(attempts, key=lambda attempt: attempt.step_s):
            if not attempt.closed:
                _prove_one(attempt, best_of(attempts).step_s, together.part(budget_s) if budget_s else None)
        shares = OF_LENGTHS if budget_s and len(attempts) > 1 else ()
        _raise_lengths(attempts, shares, deadline.part(budget_s, effort.counted_s))
    else:
        _raise_steps(attempts, budget_s, deadline.part(AT_ONCE * budget_s, effort.counted_s))
    return _bound_of(attempts)


def _raise_lengths(attempts: Sequence[Attempt], shares: Sequence[float], deadline: Deadline) -> None:
    """Prove of one attempt after the other that its plans take at least a share of the best, then a larger share."""
    for share in shares:
        for attempt in attempts:
            limit_s = share * best_of(attempts).step_s
            if attempt.closed or attempt.bound_s >= limit_s or deadline.passed:
                continue
            attempt.take_search(search_below(attempt.relaxed, deadline, limit_s, attempt.costs))


def _raise_steps(attempts: Sequence[Attempt], budget_s: float, deadline: Deadline) -> None:
    """The same under a schedule, up to all of the best step, until one of them does not come to a share."""
    left = [attempt for attempt in attempts if not attempt.closed]
    for attempt in left:
        quick = budget_s or len(left) > FEW
        least_s = evenly_s(attempt.relaxed) if quick else lower_bound_s(attempt.relaxed, None)
        attempt.bound_s = max(attempt.bound_s, least_s)
    for share in SHARES if budget_s else ():
        for attempt in left:
            limit_s = share * best_of(attempts).step_s
            if attempt.bound_s < limit_s * (1.0 - LENGTH_ROUNDING) and not _reaches(attempt, limit_s, share, deadline):
                return
    for attempt in left:
        if budget_s and attempt.bound_s >= best_of(attempts).step_s * (1.0 - LENGTH_ROUNDING):
            attempt.outcome = "proven" if attempt.plan is not None else "discarded"


def _reaches(attempt: Attempt, limit_s: float, share: float, deadline: Deadline) -> bool:
    """Whether it is proven in time that all plans of an attempt take that long."""
    if deadline.passed:
        return False
    if out_of_reach(attempt.relaxed, limit_s):
        attempt.bound_s = limit_s
        return True
    attempt.take_search(search_below(attempt.relaxed, deadline, limit_s, attempt.costs, whole=share == 1.0))
    return attempt.bound_s >= limit_s * (1.0 - LENGTH_ROUNDING)


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
    """Close one attempt by the length L, or raise its bound; None is no time at all."""
    problem = attempt.problem
    if attempt.step_s > best_s and out_of_reach(problem, best_s):
        attempt.close("discarded", best_s)
    elif attempt.plan is None:
        try:
            attempt.bound_s = max(attempt.bound_s, lower_bound_s(problem, deadline))
        except Infeasible:
            attempt.close("does not fit", np.inf)
    else:
        certificate = certify(problem, attempt.plan, deadline, best_s, attempt.costs)
        attempt.bound_s = max(attempt.bound_s, certificate.bound.value)
        if certificate.plan is not None and certificate.cost is not None:
            attempt.offer(certificate.plan, certificate.cost)
        if certificate.bound.proof == "exact":
            attempt.outcome = "proven"
