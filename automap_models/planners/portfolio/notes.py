"""How the plan that won came to be, in sentences for its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from automap_models.core.staged import StagedPlan
from automap_models.planners.base import maker_in_words
from automap_models.planners.portfolio.contender import Contender


def who_stood_in(winner: Contender, contenders: Sequence[Contender]) -> Iterator[str]:
    """Why the policy's place was taken: for the winner, or for the only problem with stages where it has none."""
    several = [contender for contender in contenders if contender.problem.stages > 1]
    yield from (several[0] if len(several) == 1 else winner).notes


def what_was_corrected(winner: Contender, plan: StagedPlan) -> Iterator[str]:
    """That the exact search found a shorter plan than the one that it began with."""
    first = winner.first
    if first is not None and plan.planner == "exact" != first.planner:
        shorter = 100 * (1 - winner.step_s / winner.costs(first).step_s)
        yield f"the exact search corrected the plan of {maker_in_words(first.planner)}: {shorter:.2g} % shorter"


def what_was_refined(winner: Contender, after: StagedPlan) -> Iterator[str]:
    """What moving the cuts off the grid brought."""
    before = winner.plan
    if before is None or (before.cuts, before.device_cuts) == (after.cuts, after.device_cuts):
        return
    before_s, after_s = (winner.costs(plan).step_s for plan in (before, after))
    schedule = winner.problem.schedule
    what = "the length" if schedule is None else f"the step under {schedule}"
    yield f"refined by single instructions: {what} is {100 * (1 - after_s / before_s):.2g} % shorter"
