"""All plans of one stage, and the exact search of plans of several over all numbers of stages and micro-batches.

A relaxation bounds the length of each problem's plans of several stages from below. Those that it does not put out of
reach are searched in the order of their bounds, each bounded by the best plan so far: first for good plans, under a
schedule as in a portfolio of pipelines (portfolio.descent), equal stages among them, under the length L on a coarse
grid where problems take long; then on their own for a second and a half each, then, those that were not finished, for
four times as long each time: a problem that is stopped short of its end is no use, and most take a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.result import Bound
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.base import SILENT, Deadline, Progress, Watch
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.contender import Contender
from automap_models.planners.portfolio.descent import look_around, rough_plans
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
BEGIN_SHARE, ROUGH_SHARE = 0.5, 0.4
"""Of the time left for finding good plans under a schedule, and of that for those that tell where to look."""
BEGIN_S = 0.3
"""How long a problem that looks good may take to be looked at, under a schedule; see descent.look_around."""
FAR_OFF = 1.0
"""How much longer than the best, relatively, a rough plan may be for its problem to be looked at."""
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
    contenders = [Contender(problem) for problem in staged_problems(space)]
    watch(Progress(f"bounding {len(contenders)} combinations of stages and micro-batches", 0, len(contenders)))
    reachable = _within_reach(contenders, below_s, deadline.part(BOUND_SHARE * deadline.left_s))
    queue = sorted(reachable, key=lambda contender: contender.bound_s)
    best: Contender | None = None
    best_s = below_s
    if space.schedule is not None:
        _begin(queue, below_s, deadline.part(BEGIN_SHARE * deadline.left_s), watch)
        first = min(queue, key=lambda contender: contender.step_s, default=None)
        if first is not None and first.step_s < below_s:
            best, best_s = first, first.step_s
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
    unfinished = [contender for contender in queue if contender.bound_s < best_s * (1.0 - LENGTH_ROUNDING)]
    for contender in queue:
        if contender.bound_s >= best_s * (1.0 - LENGTH_ROUNDING) and not contender.closed:
            contender.close("discarded", contender.bound_s)
    bound_s = min((contender.bound_s for contender in unfinished), default=best_s)
    proven = Bound(bound_s, "relaxation" if unfinished else "exact")
    log = tuple(contender.log_entry(contender is best) for contender in contenders)
    return SpaceSearch(_candidate(best), proven, len(contenders), len(unfinished), log)


def _in_question(contenders: Sequence[Contender], best_s: float) -> list[Contender]:
    """Those that may have a plan shorter than the best one, by their bounds, the least bound first."""
    left = [contender for contender in contenders if contender.bound_s < best_s * (1.0 - LENGTH_ROUNDING)]
    return sorted(left, key=lambda contender: contender.bound_s)


def _search_each(
    contenders: Sequence[Contender],
    best: Contender | None,
    best_s: float,
    deadline: Deadline,
    part_s: float,
    granularity: int | None,
    watch: Watch,
) -> tuple[Contender | None, float]:
    """Search the problems one after another for so many seconds each; the best one of all, and its step."""
    for i, contender in enumerate(contenders):
        if deadline.passed:
            break
        if contender.bound_s < best_s * (1.0 - LENGTH_ROUNDING):
            what = f"searching {i + 1} of {len(contenders)} combinations of stages and micro-batches"
            watch(Progress(what, i, len(contenders)))
            step_s = _search(contender, best_s, deadline.part(part_s), granularity)
            if step_s < best_s:
                best, best_s = contender, step_s
    return best, best_s


def _candidate(contender: Contender | None) -> Candidate | None:
    if contender is None or contender.plan is None or contender.cost is None:
        return None
    return Candidate(contender.problem, contender.plan, contender.cost)


def _begin(queue: Sequence[Contender], below_s: float, deadline: Deadline, watch: Watch) -> None:
    """Give the problems good plans under a schedule: rough ones to all, then better ones where these are shortest."""
    rough, best_s = deadline.part(ROUGH_SHARE * deadline.left_s), below_s
    for contender in queue:
        if rough.passed:
            break
        if contender.bound_s < best_s:
            rough_plans(contender, rough)
            best_s = min(best_s, contender.step_s)
    promising = sorted(queue, key=lambda contender: contender.step_s)
    for i, contender in enumerate(promising):
        if deadline.passed or contender.plan is None:
            break
        if contender.bound_s < best_s and contender.step_s <= best_s * (1.0 + FAR_OFF):
            watch(Progress(f"looking around {i + 1} of {len(queue)} combinations", i, len(queue)))
            look_around(contender, BEGIN_S, deadline)
            best_s = min(best_s, contender.step_s)


def _within_reach(contenders: Sequence[Contender], below_s: float, deadline: Deadline) -> Iterator[Contender]:
    """The problems that the relaxation does not rule out, each with its bound; when the time is up, all others."""
    for contender in contenders:
        if deadline.passed:
            contender.bound_s = evenly_s(contender.problem)
            yield contender
            continue
        tables = possible_tables(contender.problem)
        if tables is not None and stages_exist(tables, below_s, tables.memory):
            contender.bound_s = _bound_s(tables, below_s, deadline)
            yield contender
        elif tables is None or not np.isfinite(below_s):
            contender.close("does not fit", np.inf)
        else:
            contender.close("discarded", below_s)


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


def _search(contender: Contender, best_s: float, deadline: Deadline, granularity: int | None) -> float:
    """Search one problem for a shorter plan; returns the step of the best one found now, inf without one."""
    problem, upper_s = contender.problem, best_s if np.isfinite(best_s) else None
    on_grid = _on_grid(problem, granularity)
    costs = contender.costs  # of a plan they do not depend on the grid
    try:
        if upper_s is None or granularity is not None or problem.schedule is not None:
            search = anytime_search(on_grid, deadline, upper_s, contender.plan, costs=costs)
        else:  # a good plan of some problem is known: this one's coarser grids would take as long as its own
            search = search_below(on_grid, deadline, best_s, costs, whole=True)
    except BadInput:  # the stages cannot share out the devices, which was not looked at in time
        contender.close("does not fit", np.inf)
        return np.inf
    if granularity is None:
        contender.bound_s = max(contender.bound_s, search.bound_s)
        if search.finished:
            contender.outcome = "proven"
    if search.plan is None or search.cost is None:
        return np.inf
    points = problem.grid.to_points(search.plan.cuts)
    contender.offer(replace(search.plan, coarse_cuts=points), search.cost)
    return search.cost.step_s


def _on_grid(problem: StagedProblem, granularity: int | None) -> StagedProblem:
    """The problem on a grid of so many points, if its own is finer."""
    if granularity is None or granularity >= problem.granularity:
        return problem
    return replace(problem, granularity=granularity)
