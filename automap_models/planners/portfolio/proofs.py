"""Problems that compete for the best plan, and what is proven about all their plans, the most promising problem first.

Good plans were looked for before. It is proven of all problems that no plan takes less than the best step
(staged.step_bounds). Of a problem that does not come to it, the one of which least is proven first, all plans are
looked at that may be shorter than the best; the first one that there is no time for bounds them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from automap_models.core.microbatch import microbatch_size
from automap_models.core.result import Bound
from automap_models.core.staged import Outcome, SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, SearchResult, StagedResult
from automap_models.planners.staged.improve import cut_places
from automap_models.planners.staged.search import PLANNER
from automap_models.planners.staged.step_bounds import StepBounds, evenly_s, step_bounds

PARALLEL = 2
"""All problems share so many times the time that one of them may take to be proven."""
PARTS = 12
"""Of the time for all, one of which the search through the plans of one problem may take where so many are left."""
FEW, STOPPED = 32, 9
"""Problems, as many as one number of micro-batches has: then more are searched for shorter plans after
one was stopped, those of few stages first, until so many are."""


@dataclass(eq=False)
class Attempt:
    """A problem and what is known about it so far.

    Attributes:
        first: the best plan before the exact search looked at it; None where none fits.
        bound_s: no plan of the problem on the grid is shorter.
        outcome: see core.staged.SearchLogEntry.
        notes: sentences about how the plan came to be.
    """

    problem: StagedProblem
    first: StagedPlan | None = None
    plan: StagedPlan | None = None
    step_s: float = np.inf
    bound_s: float = 0.0
    outcome: Outcome = "planned"
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = Costs(self.problem)

    @property
    def closed(self) -> bool:
        """Whether it is proven that no plan of the problem on the grid is shorter than the best of all."""
        return self.outcome != "planned"

    @property
    def cost(self) -> StagedCost | None:
        """Of its plan."""
        return None if self.plan is None else self.costs(self.plan)

    def take(self, result: StagedResult) -> None:
        """Take a planner's plan, if it has one, where none so far is shorter."""
        if result.plan is not None:
            self.offer(result.plan, result.cost)

    def take_search(self, search: SearchResult) -> bool:
        """Take what an exact search of the problem proved, and its plan if it is allowed and none so far is shorter.

        Searches know no least work of a stage: what they prove holds for more plans than the problem allows.

        Returns:
            Whether the problem is solved: the search came to its end, with no plan that is not allowed.
        """
        self.bound_s = max(self.bound_s, search.bound_s)
        if search.plan is None or search.cost is None:
            return search.finished
        allowed = search.plan.check_valid(self.problem)[0]
        if allowed:
            self.offer(search.plan, search.cost)
        return search.finished and allowed

    def offer(self, plan: StagedPlan, cost: StagedCost) -> None:
        """Take a plan if none so far is shorter."""
        self.costs.learn(plan, cost)
        if cost.step_s <= self.step_s:
            self.plan, self.step_s = plan, cost.step_s

    def close(self, outcome: Outcome, bound_s: float) -> None:
        """The proof is complete."""
        self.outcome, self.bound_s = outcome, bound_s

    def log_entry(self, chosen: bool, chosen_s: float | None = None) -> SearchLogEntry:
        """What became of it.

        Args:
            chosen: whether its plan is the answer.
            chosen_s: the step of that, which may be a longer plan that is simpler to run.
        """
        best_s = float(self.step_s) if self.plan else None
        return SearchLogEntry(
            stages=self.problem.stages,
            micro_batches=self.problem.micro_batches,
            microbatch_size=microbatch_size(self.problem.profile),
            planner=self.plan.planner if self.plan else None,
            step_s=chosen_s if chosen and chosen_s is not None else best_s,
            bound_s=None if self.outcome == "does not fit" else float(self.bound_s),
            outcome=self.outcome,
            chosen=chosen,
            schedule=self.problem.schedule,
        )


def best_of(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt with the shortest plan, the first of those that tie."""
    least_s = min(attempt.step_s for attempt in attempts)
    return next(attempt for attempt in attempts if attempt.step_s <= least_s * (1.0 + LENGTH_ROUNDING))


def prove(attempts: Sequence[Attempt], budget_s: float, deadline: Deadline) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the step of all.

    Args:
        attempts: at least one of which has a plan.
        budget_s: counted seconds for one of them; with 0 there is only the bound of even work.
    """
    for attempt in attempts:
        attempt.first = attempt.plan
    _raise_bounds(attempts, budget_s, deadline.part(PARALLEL * budget_s, effort.counted_s))
    return _bound_of(attempts)


def _raise_bounds(attempts: Sequence[Attempt], budget_s: float, deadline: Deadline) -> None:
    """Prove of all attempts that they take the best step, until one does not come to it."""
    pending = [attempt for attempt in attempts if not attempt.closed]
    for attempt in pending:
        attempt.bound_s = max(attempt.bound_s, evenly_s(attempt.problem))
    if not budget_s:
        return
    groups = _groups(sorted(pending, key=lambda attempt: attempt.step_s))
    if not _come_to_best(groups, attempts, deadline) and len(pending) <= FEW:
        stopped = 1
        for attempt in sorted(pending, key=lambda attempt: attempt.problem.stages):
            if stopped < STOPPED and _is_weak(attempt, best_of(attempts).step_s):
                stopped += not _searched(attempt, attempts, deadline)
    best_s = best_of(attempts).step_s
    for attempt in pending:
        if not _is_weak(attempt, best_s):
            attempt.outcome = "proven" if attempt.plan is not None else "discarded"


@dataclass
class _Group:
    """Attempts whose plans are bounded together.

    Attributes:
        bounds: of their problems.
        limit_s: up to which they were.
    """

    bounds: StepBounds
    attempts: list[Attempt]
    limit_s: float = 0.0

    def weakest(self, limit_s: float, deadline: Deadline) -> Attempt:
        """The attempt of which least is proven, once all are proven as far as they come to the limit."""
        if self.limit_s < limit_s and min(attempt.bound_s for attempt in self.attempts) < limit_s:
            self.limit_s, least_s = limit_s, self.bounds.least_s(limit_s, deadline)
            for attempt in self.attempts:
                attempt.bound_s = max(attempt.bound_s, least_s[attempt.problem])
        return min(self.attempts, key=lambda attempt: attempt.bound_s)


def _groups(attempts: Sequence[Attempt]) -> list[_Group]:
    """What bounds these attempts, the first ones first."""
    if not attempts:
        return []
    attempt_of = {attempt.problem: attempt for attempt in attempts}
    together = step_bounds(attempt_of, cut_places(attempts[0].problem))
    return [_Group(bounds, [attempt_of[problem] for problem in bounds.problems]) for bounds in together]


def _come_to_best(groups: Sequence[_Group], attempts: Sequence[Attempt], deadline: Deadline) -> bool:
    """Raise the bounds of all attempts to the best step, or to what one that was stopped has; whether."""
    while True:
        limit_s, weakest = best_of(attempts).step_s, None
        for group in groups:
            attempt = group.weakest(limit_s, deadline)
            if attempt.bound_s < limit_s * (1.0 - LENGTH_ROUNDING):
                limit_s, weakest = attempt.bound_s, attempt
        if weakest is None or not _searched(weakest, attempts, deadline):
            return weakest is None


def _is_weak(attempt: Attempt, best_s: float) -> bool:
    """Whether plans of an attempt may be shorter than the best."""
    return attempt.bound_s < best_s * (1.0 - LENGTH_ROUNDING)


def _searched(attempt: Attempt, attempts: Sequence[Attempt], deadline: Deadline) -> bool:
    """Simulate all plans of an attempt that may be shorter than the best; whether there was time for it."""
    best_s = best_of(attempts).step_s
    parts = min(PARTS, sum(_is_weak(other, best_s) for other in attempts))
    part = deadline.part(deadline.remaining_s / parts, effort.counted_s)
    plan, least_s = shortest_below(attempt.problem, cut_places(attempt.problem), best_s, part, PLANNER)
    attempt.bound_s = max(attempt.bound_s, least_s)
    if plan is not None:
        attempt.offer(plan, attempt.costs(plan))
    return not _is_weak(attempt, best_of(attempts).step_s)


def _bound_of(attempts: Sequence[Attempt]) -> Bound:
    """What is proven about the plans of all attempts on the grid together.

    The best step is that of the best of them where its plan is on the grid; one between its points only bounds them.
    """
    best_s, plan = min(attempt.step_s for attempt in attempts), best_of(attempts).plan
    if all(attempt.closed for attempt in attempts):
        on_grid = plan is not None and plan.coarse_cuts is not None
        return Bound(best_s, "exact" if on_grid else "relaxation")
    return Bound(min(best_s, *(attempt.bound_s for attempt in attempts)), "relaxation")
