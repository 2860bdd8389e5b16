"""Plans of several stages over all numbers of stages and micro-batches: the exact search, the most promising first.

A relaxation bounds the length of each problem's plans from below. Those that it does not put out of reach are searched
in the order of their bounds, each bounded by the best plan so far: first for a share of the time, then, those that were
not finished, for what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.constraints import Constraints
from automap_models.core.hybrid import HybridPlan, HybridProblem
from automap_models.core.plan import Optimality
from automap_models.errors import BadInput
from automap_models.planners.deadline import Deadline
from automap_models.planners.explorer.candidate import Candidate
from automap_models.planners.explorer.model import Watch
from automap_models.planners.explorer.space import Space
from automap_models.planners.hybrid.search import hybrid_search
from automap_models.planners.hybrid.tables import ConstrainedTables
from automap_models.planners.pipeline.chains import chain_exists
from automap_models.planners.pipeline.contest import TIE
from automap_models.planners.pipeline.relaxation import least_length_s

BOUND_SHARE = 0.3
"""Of the time for the relaxation; where it runs out bounds are valid, and lower."""
FIRST_SHARE = 0.5
"""Of what is left for the first round, in which every problem gets an equal part."""


@dataclass(eq=False)
class Open:
    """A problem that may have a shorter plan than the best.

    Attributes:
        problem: of some S and M.
        constraints: on its plans.
        bound_s: no plan is shorter.
        plan: the best one found.
    """

    problem: HybridProblem
    constraints: Constraints
    bound_s: float
    plan: HybridPlan | None = None


@dataclass(frozen=True, eq=False)
class Searched:
    """What a search over all stages and micro-batches came to.

    Attributes:
        best: the shortest plan found, if it is shorter than the length given; None otherwise.
        proven: about the plans of all problems and the length given: none is shorter than `bound_s`.
        problems: how many there were.
        unfinished: how many of them the search did not come to the end of.
    """

    best: Candidate | None
    proven: Optimality
    problems: int
    unfinished: int


def staged_problems(space: Space, constraints: Constraints) -> Iterator[tuple[HybridProblem, Constraints]]:
    """Every problem of several stages with the constraints on its plans.

    A micro-batch of fewer than D / S samples leaves no sample for some replica, unless stages have one replica only:
    there, operators are partitioned over all devices of every stage.
    """
    for stages in space.stages[1:]:
        if not constraints.allow(space.model.profile, stages):
            continue
        for micro_batches in space.counts:
            problem = space.split(stages, micro_batches)
            if space.enough_samples(stages, micro_batches):
                yield problem, constraints
            elif "operator" not in constraints.forbidden and problem.partitionings:
                yield problem, replace(constraints, forbidden=constraints.forbidden | {"data"})


def search_staged(
    space: Space, constraints: Constraints, below_s: float, deadline: Deadline, watch: Watch = lambda what: None
) -> Searched:
    """The shortest plan of several stages, if it is shorter than a length; or what is known when the time is up.

    Args:
        space: where to look.
        constraints: on the plans.
        below_s: only shorter plans are of interest; inf for any.
        deadline: when to stop.
        watch: is told how far it is.
    """
    problems = list(staged_problems(space, constraints))
    watch(f"bounding {len(problems)} combinations of stages and micro-batches")
    reachable = _within_reach(problems, below_s, Deadline(BOUND_SHARE * deadline.left_s))
    queue = sorted(reachable, key=lambda each: each.bound_s)
    best: Open | None = None
    best_s = below_s
    for last_round in (False, True):
        left = [each for each in queue if each.bound_s < best_s * (1.0 - TIE)]
        for i, each in enumerate(left):
            if each.bound_s >= best_s * (1.0 - TIE):
                continue
            watch(f"searching {i + 1} of {len(left)} combinations of stages and micro-batches")
            share_s = deadline.left_s * (1.0 if last_round else FIRST_SHARE / (len(left) - i))
            length_s = _search(each, best_s, Deadline(share_s))
            if length_s < best_s:
                best, best_s = each, length_s
    unfinished = [each for each in queue if each.bound_s < best_s * (1.0 - TIE)]
    bound_s = min((each.bound_s for each in unfinished), default=best_s)
    proven = Optimality(bound_s, "relaxation" if unfinished else "exact")
    found = Candidate(best.problem, best.plan) if best is not None and best.plan is not None else None
    return Searched(found, proven, len(problems), len(unfinished))


def _within_reach(
    problems: list[tuple[HybridProblem, Constraints]], below_s: float, deadline: Deadline
) -> Iterator[Open]:
    """The problems that the relaxation does not rule out, each with its bound."""
    for problem, constraints in problems:
        try:
            tables = ConstrainedTables(problem, constraints).tables()
        except BadInput:  # so many stages cannot share out the devices without what is forbidden
            continue
        if chain_exists(tables, below_s, tables.memory):
            yield Open(problem, constraints, least_length_s(tables, deadline))


def _search(each: Open, best_s: float, deadline: Deadline) -> float:
    """Search one problem for a shorter plan; returns the length of the best one found now, inf without one."""
    upper_s = best_s if np.isfinite(best_s) else None
    found = hybrid_search(each.problem, deadline, upper_s, each.plan, each.constraints)
    each.bound_s = max(each.bound_s, found.bound_s)
    if found.plan is None:
        return np.inf
    each.plan = found.plan
    return Candidate(each.problem, found.plan).length_s
