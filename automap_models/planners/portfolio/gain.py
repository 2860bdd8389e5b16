"""A stage has to earn its place: of plans of nearly the same step those of fewer stages are chosen.

How little a stage computes decides nothing. One that computes almost nothing may spare a large all-reduce, or hand on
what stages on two nodes exchange, so that those before it run a micro-batch further ahead under 1F1B. What decides is
the step without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.contender import Contender, Rated
from automap_models.planners.portfolio.descent import shortest_first
from automap_models.planners.portfolio.regroup import merges
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.refine import refine

MERGES = 2
"""So many of the plans with two stages merged have their cuts moved."""
LITTLE = 0.1
"""Of an even share of the computation: of a stage whose devices have less the report says what it gains."""


def with_stages_merged(
    rated: Sequence[Rated], contenders: Sequence[Contender], min_gain: float, refine_s: float, deadline: Deadline
) -> Iterator[Rated]:
    """Plans of fewer stages that are near enough to win: of the chosen one with stages merged and the cuts moved.

    Args:
        rated: plans, of which the shortest one counts.
        contenders: the problems that compete.
        min_gain: how much longer than that, relatively, a plan of fewer stages may be.
        refine_s: counted seconds to move the cuts of one plan.
        deadline: when to stop.
    """
    of_stages = {(contender.problem.stages, contender.problem.micro_batches): contender for contender in contenders}
    limit_s = min(step_s for step_s, _, _ in rated) * (1.0 + min_gain)
    origin, plan = fewest_stages(rated, min_gain)
    while plan.stages > 2 and not deadline.passed and not any(plan.shardings):
        fewer = of_stages.get((plan.stages - 1, plan.micro_batches))
        if fewer is None:
            return
        starts = shortest_first(fewer, merges(fewer.problem, origin.problem, plan), MERGES)
        parts = partial(deadline.part, refine_s, effort.counted_s)
        moved = [refine(fewer.problem, start, parts(), costs=fewer.costs) for start in starts]
        valid = [(fewer.costs(one).step_s, fewer, one) for one in moved if one.check_valid(fewer.problem)[0]]
        best = min(valid, key=lambda entry: entry[0], default=(np.inf, fewer, plan))
        if best[0] > limit_s:
            return
        yield best
        _, origin, plan = best


def fewest_stages(rated: Sequence[Rated], min_gain: float) -> tuple[Contender, StagedPlan]:
    """Of plans that are relatively no more than `min_gain` longer than the shortest one those of the fewest stages.

    Of these the shortest, and of those that tie the first. With a gain of 0 it is the shortest of all.
    """
    tie = 1.0 + LENGTH_ROUNDING
    limit_s = min(step_s for step_s, _, _ in rated) * tie
    if min_gain:
        limit_s *= 1.0 + min_gain
        fewest = min(plan.stages for step_s, _, plan in rated if step_s <= limit_s)
        rated = [entry for entry in rated if entry[2].stages == fewest]
        limit_s = min(step_s for step_s, _, _ in rated) * tie
    return next((contender, plan) for step_s, contender, plan in rated if step_s <= limit_s)


def what_more_stages_gain(winner: Contender, plan: StagedPlan, rated: Sequence[Rated]) -> Iterator[str]:
    """That a plan of more stages would be a little shorter; at most one sentence."""
    step_s, _, shortest = min(rated, key=lambda entry: entry[0])
    own_s = winner.costs(plan).step_s
    if shortest.stages > plan.stages and step_s < own_s * (1.0 - LENGTH_ROUNDING):
        saved = 100 * (1 - step_s / own_s)
        stages = f"{shortest.stages} stages rather than {plan.stages}"
        yield f"{stages} would shorten the step by {saved:.2g} % only, which is less than a stage has to"


def what_small_stages_gain(
    problem: StagedProblem, plan: StagedPlan, own_s: float, known: Iterable[tuple[float, int]]
) -> Iterator[str]:
    """How much longer the step is without stages that compute little; at most one sentence.

    Args:
        problem: that the plan solves.
        plan: the chosen one.
        own_s: its step.
        known: steps and numbers of stages of other plans that fit.
    """
    work_s = np.add.reduceat(problem.profile.C, [0, *(cut + 1 for cut in plan.cuts)])
    devices = np.diff([0, *plan.device_cuts, problem.cluster.devices])
    shares = work_s / devices * problem.cluster.devices / problem.profile.C.sum()
    small = [str(s) for s in np.flatnonzero(shares < LITTLE)]
    fewer = [(step_s, stages) for step_s, stages in known if stages < plan.stages]
    if small and fewer:
        step_s, stages = min(fewer)
        names = f"stages {', '.join(small[:-1])} and {small[-1]} compute" if small[1:] else f"stage {small[0]} computes"
        known_stages = f"{stages} rather than {plan.stages} stages"
        yield (
            f"{names} less than {100 * LITTLE:g} % of an even share of the work: the shortest plan known with "
            f"{known_stages} is {100 * (step_s / own_s - 1):.2g} % longer"
        )
