"""All plans of one stage, and the exact search of plans of several over all numbers of stages and micro-batches.

A relaxation bounds the length of each problem's plans of several stages from below. Those that it does not put out of
reach are searched in the order of their bounds, each bounded by the best plan so far: under the length L on a coarse
grid first where problems take long; then on their own for a second and a half each, then, those that were not finished,
for four times as long each time: a problem that is stopped short of its end is no use, and most take a tenth of a
second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.result import Bound
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.base import SILENT, Deadline, Progress, Watch
from automap_models.planners.portfolio.attempt import Attempt
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.feasibility import stages_exist
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import evenly_s, least_length_s
from automap_models.planners.staged.search import anytime_search, search_below
from automap_models.planners.staged.stage_tables import StageTables
from automap_models.simulate.step import step_cost

ONE_STAGE = "explorer"
DATA_PARALLEL = "data-parallel"
"""Who makes the plans of one stage."""
BOUND_SHARE = 0.3
"""Of the time for the relaxation; where it runs out bounds are valid, and lower."""
HALVINGS = 3
"""How often the range of a problem's bound is halved, to sort problems by it."""
PART_S, PART_GROWTH = 1.5, 4.0
"""How long a problem is searched at first, and how many times as long each time that it is not finished."""
FIRST = 4
"""Problems with the least bounds that are searched before all others: where that finishes them, it will the others."""
COARSE, COARSE_SHARE = 32, 0.25
"""Granularity of a round before all problems are searched, where it does not and there is no schedule, and the share of
the time that they get there in equal parts."""


@dataclass(frozen=True, eq=False)
class SpaceSearch:
    """What a search over all stages and micro-batches came to.

    Attributes:
        best: the shortest plan found, if it is shorter than the length given; None otherwise.
        proven: about the plans of all problems and the length given: none is shorter than its value.
        problems: how many there were.
        unfinished: how many of them the search did not come to the end of.
        log: what became of each of them.
    """

    best: Candidate | None
    proven: Bound
    problems: int
    unfinished: int
    log: tuple[SearchLogEntry, ...] = ()


def one_stage_plans(space: PlanningSpace) -> list[Candidate]:
    """The best plan of each degree of operator partitioning, 1 among them; where none fits the one of least memory.

    All plans are looked at: with one stage there is nothing to cut, so that each best one is proven.
    """
    if 1 not in space.stage_numbers or not space.allows(1):
        return []
    best: dict[str, Candidate] = {}
    for problem, index in space.one_stage():
        planner = ONE_STAGE if index else DATA_PARALLEL
        plan = StagedPlan((), (), problem.micro_batches, planner, coarse_cuts=(), shardings=(index,))
        if not plan.check_valid(problem)[0]:
            continue
        candidate = Candidate(problem, plan, step_cost(problem, plan))
        if candidate.name not in best or _better(candidate, best[candidate.name]):
            best[candidate.name] = candidate
    return [
        replace(candidate, proven=Bound(candidate.step_s, "exact") if candidate.fits else None)
        for candidate in best.values()
    ]


def _better(one: Candidate, other: Candidate) -> bool:
    """Of plans that fit the shorter one, of those that do not the smaller one; one that is as good is not better.

    Micro-batches come in ascending number, so that of equal plans the one with the largest micro-batches is kept.
    """
    if one.fits != other.fits:
        return one.fits
    ours, theirs = (one.step_s, other.step_s) if one.fits else (one.memory_bytes, other.memory_bytes)
    return ours < theirs * (1.0 - LENGTH_ROUNDING)


def staged_problems(space: PlanningSpace) -> Iterator[StagedProblem]:
    """Every problem of several stages that has plans which satisfy the space's constraints."""
    for stages in space.several:
        if space.allows(stages):
            yield from (space.split(stages, micro_batches) for micro_batches in space.counts)


def possible_tables(problem: StagedProblem) -> StageTables | None:
    """What the relaxation needs; None where the stages cannot share out the devices."""
    try:
        return tables_of(problem)
    except BadInput:  # without what is forbidden, or without a sample for every replica
        return None


def search_space(space: PlanningSpace, below_s: float, deadline: Deadline, watch: Watch = SILENT) -> SpaceSearch:
    """The shortest plan of several stages, if it is shorter than a length; or what is known when the time is up.

    Args:
        space: where to look, and what plans have to satisfy.
        below_s: only shorter plans are of interest; inf for any.
        deadline: when to stop.
        watch: is told how far it is.
    """
    attempts = [Attempt(problem) for problem in staged_problems(space)]
    watch(Progress(f"bounding {len(attempts)} combinations of stages and micro-batches", 0, len(attempts)))
    reachable = _within_reach(attempts, below_s, deadline.part(BOUND_SHARE * deadline.left_s))
    queue = sorted(reachable, key=lambda attempt: attempt.bound_s)
    best: Attempt | None = None
    best_s = below_s
    left = _in_question(queue, best_s)
    some, part_s = left[:FIRST], PART_S
    best, best_s = _search_each(some, best, best_s, deadline, PART_S, None, watch)
    if space.schedule is None and _in_question(some, best_s):
        left = _in_question(left, best_s)
        coarse_s = COARSE_SHARE * deadline.left_s / len(left)
        best, best_s = _search_each(left, best, best_s, deadline, coarse_s, COARSE, watch)
    while not deadline.passed and (left := _in_question(left, best_s)):
        best, best_s = _search_each(left, best, best_s, deadline, part_s, None, watch)
        part_s *= PART_GROWTH
    unfinished = [attempt for attempt in queue if attempt.bound_s < best_s * (1.0 - LENGTH_ROUNDING)]
    for attempt in queue:
        if attempt.bound_s >= best_s * (1.0 - LENGTH_ROUNDING) and not attempt.closed:
            attempt.close("discarded", attempt.bound_s)
    bound_s = min((attempt.bound_s for attempt in unfinished), default=best_s)
    proven = Bound(bound_s, "relaxation" if unfinished else "exact")
    log = tuple(attempt.log_entry(attempt is best) for attempt in attempts)
    return SpaceSearch(_candidate(best), proven, len(attempts), len(unfinished), log)


def _in_question(attempts: Sequence[Attempt], best_s: float) -> list[Attempt]:
    """Those that may have a plan shorter than the best one, by their bounds, the least bound first."""
    left = [attempt for attempt in attempts if attempt.bound_s < best_s * (1.0 - LENGTH_ROUNDING)]
    return sorted(left, key=lambda attempt: attempt.bound_s)


def _search_each(
    attempts: Sequence[Attempt],
    best: Attempt | None,
    best_s: float,
    deadline: Deadline,
    part_s: float,
    granularity: int | None,
    watch: Watch,
) -> tuple[Attempt | None, float]:
    """Search the problems one after another for so many seconds each; the best one of all, and its step."""
    for i, attempt in enumerate(attempts):
        if deadline.passed:
            break
        if attempt.bound_s < best_s * (1.0 - LENGTH_ROUNDING):
            what = f"searching {i + 1} of {len(attempts)} combinations of stages and micro-batches"
            watch(Progress(what, i, len(attempts)))
            step_s = _search(attempt, best_s, deadline.part(part_s), granularity)
            if step_s < best_s:
                best, best_s = attempt, step_s
    return best, best_s


def _candidate(attempt: Attempt | None) -> Candidate | None:
    if attempt is None or attempt.plan is None or attempt.cost is None:
        return None
    return Candidate(attempt.problem, attempt.plan, attempt.cost)


def _within_reach(attempts: Sequence[Attempt], below_s: float, deadline: Deadline) -> Iterator[Attempt]:
    """The problems that the relaxation does not rule out, each with its bound; when the time is up, all others."""
    for attempt in attempts:
        if deadline.passed:
            attempt.bound_s = evenly_s(attempt.problem)
            yield attempt
            continue
        tables = possible_tables(attempt.problem)
        if tables is not None and stages_exist(tables, below_s, tables.memory):
            attempt.bound_s = _bound_s(tables, below_s, deadline)
            yield attempt
        elif tables is None or not np.isfinite(below_s):
            attempt.close("does not fit", np.inf)
        else:
            attempt.close("discarded", below_s)


def _bound_s(tables: StageTables, below_s: float, deadline: Deadline) -> float:
    """A length that the relaxation proves no plan to be below, close enough to sort by where one is known."""
    if not np.isfinite(below_s):
        return least_length_s(tables, deadline)
    low, high = least_length_s(tables, Deadline(0.0)), below_s
    for _ in range(HALVINGS):
        if deadline.passed:
            break
        middle = (low * high) ** 0.5
        low, high = (low, middle) if stages_exist(tables, middle, tables.memory) else (middle, high)
    return low


def _search(attempt: Attempt, best_s: float, deadline: Deadline, granularity: int | None) -> float:
    """Search one problem for a shorter plan; returns the step of the best one found now, inf without one."""
    problem, upper_s = attempt.problem, best_s if np.isfinite(best_s) else None
    on_grid = _on_grid(problem, granularity)
    costs = attempt.costs  # of a plan they do not depend on the grid
    try:
        if upper_s is None or granularity is not None or problem.schedule is not None:
            search = anytime_search(on_grid, deadline, upper_s, attempt.plan, costs=costs)
        else:  # a good plan of some problem is known: this one's coarser grids would take as long as its own
            search = search_below(on_grid, deadline, best_s, costs)
    except BadInput:  # the stages cannot share out the devices, which was not looked at in time
        attempt.close("does not fit", np.inf)
        return np.inf
    before_s, plan = attempt.step_s, search.plan
    if plan is not None:
        search = replace(search, plan=replace(plan, coarse_cuts=problem.grid.to_points(plan.cuts)))
    if granularity is not None:
        search = replace(search, bound_s=0.0, finished=False)  # of a coarser grid
    if attempt.take_search(search):
        attempt.outcome = "proven"
    return attempt.step_s if attempt.step_s < before_s else np.inf


def _on_grid(problem: StagedProblem, granularity: int | None) -> StagedProblem:
    """The problem on a grid of so many points, if its own is finer."""
    if granularity is None or granularity >= problem.granularity:
        return problem
    return replace(problem, granularity=granularity)
