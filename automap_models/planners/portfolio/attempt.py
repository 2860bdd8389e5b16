"""A problem that competes for the best plan, and what is known about it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from automap_models.core.microbatch import microbatch_size
from automap_models.core.staged import Outcome, SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, SearchResult, StagedResult


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
