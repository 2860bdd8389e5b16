"""What is proven about all plans of the problems that compete, the most promising problem first.

Without a schedule the exact search begins at the plan that a contender has (staged.exact.certify). Under one, good
plans were looked for before, and plans shorter than the best step are listed at once (staged.search.search_below).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from automap_models.core.result import Bound
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.contender import Contender, best_of
from automap_models.planners.portfolio.descent import FEW
from automap_models.planners.staged.exact import certify
from automap_models.planners.staged.relaxation import evenly_s, lower_bound_s, out_of_reach
from automap_models.planners.staged.search import search_below

SHARES = (0.8, 0.9, 0.95)
"""Of the best step, that is proven of all problems one after the other."""
AT_MOST = 6
"""Several problems share so many times the time that one of them may take to be proven."""
RAISES = 1
"""So many times the time of a proof is what raising the bounds of all problems together may take afterwards."""


def prove(contenders: Sequence[Contender], budget_s: float, deadline: Deadline, min_gain: float) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the step of all.

    A plan of fewer stages than the best one is of interest as long as it is at most `min_gain` longer.

    Args:
        contenders: at least one of which has a plan.
        budget_s: counted seconds for one of them; with 0 there is only the relaxation's bound for each.
        deadline: when to stop in any case.
        min_gain: see `competition.compete`.
    """
    for contender in contenders:
        contender.first = contender.plan
    together = deadline.part(AT_MOST * budget_s, effort.counted_s)
    for contender in sorted(contenders, key=lambda contender: contender.step_s):
        if not contender.closed:
            best = best_of(contenders)
            fewer = contender.problem.stages < best.problem.stages
            limit_s = best.step_s * (1.0 + min_gain) if fewer else best.step_s
            _prove_one(contender, limit_s, together.part(budget_s) if budget_s else None)
    if budget_s and len(contenders) > 1:
        _raise_bounds(contenders, deadline.part(RAISES * budget_s, effort.counted_s))
    return _bound_of(contenders)


def _raise_bounds(contenders: Sequence[Contender], deadline: Deadline) -> None:
    """Prove of one contender after the other that its plans cost at least a share of the best one, then a larger share.

    A bound on all is as good as that of the contender of which least is known, and small shares are proven soon.
    """
    for share in SHARES:
        for contender in contenders:
            limit_s = share * best_of(contenders).step_s
            if contender.closed or contender.bound_s >= limit_s or deadline.passed:
                continue
            contender.take_search(search_below(contender.problem, deadline, limit_s, contender.costs))


def _bound_of(contenders: Sequence[Contender]) -> Bound:
    """What is proven about the plans of all contenders together."""
    best_s = min(contender.step_s for contender in contenders)
    if all(contender.closed for contender in contenders):
        return Bound(best_s, "exact")
    return Bound(min(best_s, *(contender.bound_s for contender in contenders)), "relaxation")


def _prove_one(contender: Contender, best_s: float, deadline: Deadline | None) -> None:
    """Close one contender, or raise its bound; None is no time at all."""
    if contender.plan is None and contender.problem.stages > FEW and deadline is not None and deadline.passed:
        contender.bound_s = max(contender.bound_s, evenly_s(contender.problem))
        return
    if contender.step_s > best_s and out_of_reach(contender.problem, best_s):
        contender.close("discarded", best_s)
    elif contender.plan is None:
        try:
            contender.bound_s = max(contender.bound_s, lower_bound_s(contender.problem, deadline))
        except Infeasible:
            contender.close("does not fit", np.inf)
    elif contender.problem.schedule is not None and deadline is not None:  # good plans were looked for before
        if not contender.bound_s:
            contender.bound_s = lower_bound_s(contender.problem, deadline)
        contender.bound_s = min(contender.bound_s, best_s)
        if deadline.passed:  # even to begin with takes a while where devices are many
            return
        limit_s = min(contender.step_s, best_s)
        search = search_below(contender.problem, deadline, limit_s, contender.costs, whole=True)
        contender.take_search(search)
        if search.finished:
            contender.outcome = "proven"
    else:
        certificate = certify(contender.problem, contender.plan, deadline, best_s, contender.costs)
        contender.bound_s = max(contender.bound_s, certificate.bound.value)
        if certificate.plan is not None and certificate.cost is not None:
            contender.offer(certificate.plan, certificate.cost)
        if certificate.bound.proof == "exact":
            contender.outcome = "proven"
