"""Plans of several stages over all numbers of stages and micro-batches: the exact search, the most promising first.

A relaxation bounds the length of each problem's plans from below. Those that it does not put out of reach are searched
in the order of their bounds, each bounded by the best plan so far: first on a coarse grid, where a good plan is found
soon; then on their own, for a share of the time; then, those that were not finished, for what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.constraints import Constraints
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.deadline import Deadline
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.contest import TIE
from automap_models.planners.portfolio.model import Watch
from automap_models.planners.portfolio.space import Space
from automap_models.planners.staged.constrained_tables import ConstrainedTables
from automap_models.planners.staged.feasibility import chain_exists
from automap_models.planners.staged.hybrid_search import hybrid_search
from automap_models.planners.staged.relaxation import least_length_s
from automap_models.planners.staged.stage_tables import StageTables

BOUND_SHARE = 0.3
"""Of the time for the relaxation; where it runs out bounds are valid, and lower."""
HALVINGS = 3
"""How often the range of a problem's bound is halved, to sort problems by it."""
ROUNDS: tuple[tuple[int | None, float], ...] = ((32, 0.4), (None, 0.5), (None, 1.0))
"""Granularity (None: the problem's own), and the share of the time left that all problems get in equal parts."""


@dataclass(eq=False)
class Open:
    """A problem that may have a shorter plan than the best.

    Attributes:
        problem: of some S and M.
        bound_s: no plan is shorter.
        plan: the best one found.
    """

    problem: StagedProblem
    bound_s: float
    plan: StagedPlan | None = None


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
    proven: Bound
    problems: int
    unfinished: int


def staged_problems(space: Space, constraints: Constraints) -> Iterator[StagedProblem]:
    """Every problem of several stages that has plans which satisfy the constraints."""
    for stages in space.stages[1:]:
        if constraints.allow(space.model.profile, stages):
            yield from (space.split(stages, micro_batches) for micro_batches in space.counts)


def tables_of(problem: StagedProblem, constraints: Constraints) -> StageTables | None:
    """What the relaxation needs; None where the stages cannot share out the devices."""
    try:
        return ConstrainedTables(problem, constraints).tables()
    except BadInput:  # without what is forbidden, or without a sample for every replica
        return None


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
    reachable = _within_reach(problems, constraints, below_s, deadline.part(BOUND_SHARE * deadline.left_s))
    queue = sorted(reachable, key=lambda each: each.bound_s)
    best: Open | None = None
    best_s = below_s
    for granularity, share in ROUNDS:
        left = [each for each in queue if each.bound_s < best_s * (1.0 - TIE)]
        round_s = share * deadline.left_s
        for i, each in enumerate(left):
            if deadline.passed:
                break
            if each.bound_s >= best_s * (1.0 - TIE):
                continue
            watch(f"searching {i + 1} of {len(left)} combinations of stages and micro-batches")
            part_s = deadline.left_s if share == 1.0 else round_s / len(left)
            length_s = _search(each, constraints, best_s, deadline.part(part_s), granularity)
            if length_s < best_s:
                best, best_s = each, length_s
    unfinished = [each for each in queue if each.bound_s < best_s * (1.0 - TIE)]
    bound_s = min((each.bound_s for each in unfinished), default=best_s)
    proven = Bound(bound_s, "relaxation" if unfinished else "exact")
    found = Candidate(best.problem, best.plan) if best is not None and best.plan is not None else None
    return Searched(found, proven, len(problems), len(unfinished))


def _within_reach(
    problems: Sequence[StagedProblem], constraints: Constraints, below_s: float, deadline: Deadline
) -> Iterator[Open]:
    """The problems that the relaxation does not rule out, each with its bound; when the time is up, all others."""
    for problem in problems:
        if deadline.passed:
            yield Open(problem, _least_s(problem))
            continue
        tables = tables_of(problem, constraints)
        if tables is not None and chain_exists(tables, below_s, tables.memory):
            yield Open(problem, _bound_s(tables, below_s, deadline))


def _least_s(problem: StagedProblem) -> float:
    """No plan is shorter: all micro-batches, each instruction in its best way, evenly on all devices."""
    work_s = np.min([each.degree * each.C for each in problem.all_shardings], axis=0).sum()
    return float(problem.micro_batches * work_s / problem.cluster.devices)


def _bound_s(tables: StageTables, below_s: float, deadline: Deadline) -> float:
    """A length that the relaxation proves no plan to be below, close enough to sort by where one is known."""
    if not np.isfinite(below_s):
        return least_length_s(tables, deadline)
    low, high = least_length_s(tables, Deadline(0.0)), below_s
    for _ in range(HALVINGS):
        if deadline.passed:
            break
        middle = (low * high) ** 0.5
        low, high = (low, middle) if chain_exists(tables, middle, tables.memory) else (middle, high)
    return low


def _search(each: Open, constraints: Constraints, best_s: float, deadline: Deadline, granularity: int | None) -> float:
    """Search one problem for a shorter plan; returns the length of the best one found now, inf without one."""
    upper_s = best_s if np.isfinite(best_s) else None
    try:
        found = hybrid_search(_on_grid(each.problem, granularity), deadline, upper_s, each.plan, constraints)
    except BadInput:  # the stages cannot share out the devices, which was not looked at in time
        each.bound_s = np.inf
        return np.inf
    if granularity is None:
        each.bound_s = max(each.bound_s, found.bound_s)
    if found.plan is None:
        return np.inf
    points = each.problem.grid.to_points(found.plan.cuts)
    each.plan = replace(found.plan, coarse_cuts=points)
    return Candidate(each.problem, each.plan).length_s


def _on_grid(problem: StagedProblem, granularity: int | None) -> StagedProblem:
    """The problem on a grid of so many points, if its own is finer."""
    if granularity is None or granularity >= problem.granularity:
        return problem
    return replace(problem, granularity=granularity)
