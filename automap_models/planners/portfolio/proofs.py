"""What is proven about all plans of the problems that compete, the most promising problem first.

Without a schedule the exact search begins at the plan that an attempt has (staged.exact.certify). Under one, good
plans were looked for before: it is proven of all problems that no plan takes less than a share of the best step, then
than a larger share, until some problem does not come to it (staged.step_bounds). Where few problems are left then, all
their plans that may be shorter are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from automap_models.core.result import Bound
from automap_models.core.staged import StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.attempt import Attempt, best_of
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.exact import certify
from automap_models.planners.staged.improve import cut_places
from automap_models.planners.staged.relaxation import evenly_s, lower_bound_s, out_of_reach
from automap_models.planners.staged.search import search_below
from automap_models.planners.staged.step_bounds import StepBounds, step_bounds

SHARES = (0.5, 0.7, 0.8, 0.9, 1.0)
"""Of the best step, that is proven of all problems one after the other."""
OF_LENGTHS = (0.8, 0.9, 0.95)
"""The same by the length L."""
AT_MOST = 6
"""Several problems share so many times the time that one of them may take to be proven, by the length L."""
AT_ONCE = 3
"""The same under a schedule; a third of it where few are left, before all their plans are looked at."""
FEW, PARTS = 24, 4
"""Problems under a schedule that share the time for all their plans, at most: as many as one number of stages has
numbers of micro-batches and schedules, about. Of more, each has such a part of the time that is left."""


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
        attempt.bound_s = max(attempt.bound_s, evenly_s(attempt.problem))
    if not budget_s:
        return
    attempt_of = {attempt.problem: attempt for attempt in left}
    ordered = sorted(left, key=lambda attempt: attempt.step_s)
    bounds = step_bounds([attempt.problem for attempt in ordered], cut_places(left[0].problem)) if left else []
    part = deadline if len(left) > FEW else deadline.part(budget_s, effort.counted_s)
    for share in SHARES:
        if not _reach(bounds, attempt_of, share * best_of(attempts).step_s, part):
            break
    _look_at_all(attempts, deadline)
    for attempt in left:
        if attempt.bound_s >= best_of(attempts).step_s * (1.0 - LENGTH_ROUNDING):
            attempt.outcome = "proven" if attempt.plan is not None else "discarded"


def _reach(
    bounds: Iterable[StepBounds],
    attempt_of: dict[StagedProblem, Attempt],
    limit_s: float,
    deadline: Deadline,
) -> bool:
    """Raise the bounds of all attempts to a limit, or to what the first that does not come to it comes to; whether."""
    reached = True
    for bound in bounds:
        for problem, least_s in bound.least_s(limit_s, deadline).items():
            attempt = attempt_of[problem]
            attempt.bound_s = max(attempt.bound_s, least_s)
            if attempt.bound_s < limit_s:
                limit_s, reached = attempt.bound_s, False
    return reached


def _look_at_all(attempts: Sequence[Attempt], deadline: Deadline) -> None:
    """Simulate all plans of the problems that are left that may be shorter than the best, those first that may be most.

    Where they are many it ends with the first one that there is no time for: what is proven of all is no more then.
    """
    best_s = best_of(attempts).step_s
    left = [attempt for attempt in attempts if attempt.bound_s < best_s * (1.0 - LENGTH_ROUNDING)]
    for i, attempt in enumerate(sorted(left, key=lambda attempt: attempt.bound_s)):
        best_s = best_of(attempts).step_s
        parts = PARTS if len(left) > FEW else len(left) - i
        part = deadline.part(deadline.left_s / parts, effort.counted_s)
        plan, least_s = shortest_below(attempt.problem, cut_places(attempt.problem), best_s, part)
        attempt.bound_s = max(attempt.bound_s, least_s)
        if plan is not None:
            attempt.offer(plan, attempt.costs(plan))
        stopped = attempt.bound_s < best_of(attempts).step_s * (1.0 - LENGTH_ROUNDING)
        if stopped and len(left) > FEW:
            return


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
