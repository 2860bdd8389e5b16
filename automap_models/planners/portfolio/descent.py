"""Good plans for many problems under a schedule, in little time: each begins at what is known about its neighbours.

A plan is improved by moves of its cuts (planners.staged.search) until none of its neighbours has a shorter step. Where
it begins decides how long that takes, and plans of neighbouring problems are alike:

    S stages  ── a stage split in two ──►  S + 1 stages        M micro-batches  ── the same cuts ──►  other M

The ends of blocks, where little crosses a cut, are seldom on the grid. `between_blocks` begins at the plans that
frameworks make by default and moves their cuts by whole blocks.

So the numbers of stages are gone through upwards, in one number of micro-batches; then the best of these plans are
tried in the other numbers. What the policy and uniform cuts have to offer are further beginnings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from automap_models.core.constraints import UNCONSTRAINED, Constraints
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedPlan, StagedProblem
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.portfolio.contender import Contender, best_of
from automap_models.planners.staged.frameworks import block_ends, framework_plans
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.search import MOVES, StagedSearch, anytime_search

PATIENCE = 3
"""Numbers of stages in a row that may be no better than the best before the others are left alone."""
CLOSE = 0.15
"""How much longer than the best, relatively, a plan may be for its problem to be looked at in other micro-batches."""
EQUAL_SHARE = 0.3
"""Of the time for one beginning: what the search among plans of equal stages may take."""
SPLITS = 2
"""So many plans that come of splitting a stage are improved."""
COARSE_MOVES = (np.array([8]), np.array([2]))
"""How far a cut moves at first, in boundaries."""
BLOCK_MOVES = np.array([1, 2])
"""How far a cut moves between blocks."""
PLANNER = "auto"
"""Who makes plans that come of other problems' plans."""

AskPolicy = Callable[[Sequence[Contender]], object]


def descend(
    contenders: Sequence[Contender], ask: AskPolicy, one_s: float, all_s: float, deadline: Deadline
) -> list[Contender]:
    """Give contenders of several stages good plans, the best of them first.

    Args:
        contenders: all that compete, those of one stage with their plans.
        ask: gives some of them the policy's plans and uniform cuts; it is asked for at most two stages a node.
        one_s, all_s: processor time for one beginning, for all numbers of stages together, and once more for all other
            numbers of micro-batches, so that plans do not depend on what else the machine does.
        deadline: when to stop in any case.

    Returns:
        Contenders without a plan that fits, for which a search has to find one.
    """
    several = [contender for contender in contenders if contender.problem.stages > 1 and not contender.closed]
    if not several:
        return []
    counts = sorted({contender.problem.micro_batches for contender in several})
    middle = min(counts, key=lambda M: (abs(np.log2(M / DEFAULT_MICRO_BATCHES)), M))
    ladder = sorted(_of_count(several, middle), key=lambda contender: contender.problem.stages)
    most = 2 * several[0].problem.cluster.nodes
    ask([contender for contender in ladder if contender.problem.stages <= most] or ladder[:1])
    stuck = _climb(ladder, contenders, one_s, deadline.part(all_s, time.process_time))
    deadline = deadline.part(all_s, time.process_time)
    for counts_on_a_side in ([M for M in counts if middle < M], [M for M in counts if middle > M][::-1]):
        before = ladder
        for micro_batches in counts_on_a_side:
            if deadline.passed:
                return stuck
            before = _carry_over(before, _of_count(several, micro_batches), contenders, one_s, deadline)
    return stuck


def _of_count(contenders: Sequence[Contender], micro_batches: int) -> list[Contender]:
    return [contender for contender in contenders if contender.problem.micro_batches == micro_batches]


def _climb(
    ladder: Sequence[Contender], contenders: Sequence[Contender], one_s: float, deadline: Deadline
) -> list[Contender]:
    """From few stages to many, each beginning at the best of its own and of what splitting the last one gives.

    Returns:
        Those of at most two stages a node that have no plan, as nothing fits that they could begin at.
    """
    worse, last, stuck = 0, None, []
    for contender in ladder:
        if deadline.passed or worse >= PATIENCE:
            break
        best_s = best_of(contenders).step_s
        starts = [] if contender.plan is None else [contender.plan]
        starts += _best(contender, [equal_stages(contender, deadline.part(EQUAL_SHARE * one_s))])
        if last is not None and last.plan is not None:
            starts += _best(contender, _splits(contender.problem, last.problem, last.plan))[:SPLITS]
        if not starts:
            if contender.problem.stages <= 2 * contender.problem.cluster.nodes:
                stuck.append(contender)
            continue
        for start in starts:
            improve(contender, start, deadline.part(one_s))
        worse = 0 if contender.step_s < best_s else worse + 1
        last = contender
    return stuck


def _carry_over(
    before: Sequence[Contender],
    now: Sequence[Contender],
    contenders: Sequence[Contender],
    one_s: float,
    deadline: Deadline,
) -> list[Contender]:
    """Begin with the same cuts in another number of micro-batches; only the problems that looked good are taken on."""
    of_stages = {contender.problem.stages: contender for contender in now}
    limit_s = best_of(before).step_s * (1.0 + CLOSE)
    chosen = []
    for former in before:
        contender = of_stages.get(former.problem.stages)
        if contender is None or former.plan is None or former.step_s > limit_s:
            continue
        for plan in _best(contender, [replace(former.plan, micro_batches=contender.problem.micro_batches)]):
            contender.offer(plan, contender.costs(plan))
            chosen.append(contender)
    best_s = best_of(contenders).step_s
    for contender in sorted(chosen, key=lambda contender: contender.step_s):
        if contender.plan is None or deadline.passed or contender.step_s > best_s * (1.0 + CLOSE):
            continue
        equal = equal_stages(contender, deadline.part(EQUAL_SHARE * one_s))
        for start in [contender.plan, *_best(contender, [equal])]:
            improve(contender, start, deadline.part(one_s))
    return chosen or list(before)


def _best(contender: Contender, plans: Iterable[StagedPlan]) -> list[StagedPlan]:
    """Those of the plans that are valid for a contender and fit, the shortest first."""
    valid = [plan for plan in plans if plan.check_valid(contender.problem)[0] and contender.costs(plan).feasible]
    return sorted(valid, key=lambda plan: contender.costs(plan).step_s)


def _splits(problem: StagedProblem, former: StagedProblem, plan: StagedPlan) -> Iterator[StagedPlan]:
    """The plans with one stage split where half of its work is done; each part gets half of the devices.

    Args:
        problem: of one stage more.
        former: that the plan is of.
        plan: to be split.
    """
    grid, devices = problem.grid, problem.cluster.devices
    places = np.array(grid.to_instructions(tuple(grid.cut_points.tolist())))
    work = np.cumsum(problem.profile.C)
    bounds = plan.stage_devices(devices)
    for (first, last), (begin, end) in zip(plan.stage_instructions(len(problem.profile)), bounds, strict=True):
        inside = places[(places >= first) & (places < last)]
        if end == begin or not inside.size:
            continue
        half = (work[last] + (work[first - 1] if first else 0.0)) / 2
        cut = int(inside[np.argmin(np.abs(work[inside] - half))])
        cuts = tuple(sorted((*plan.cuts, cut)))
        device_cuts = tuple(sorted((*plan.device_cuts, (begin + end + 1) // 2)))
        yield StagedPlan(cuts, device_cuts, problem.micro_batches, PLANNER, grid.to_points(cuts))


def equal_stages(contender: Contender, deadline: Deadline) -> StagedPlan:
    """The best plan found whose stages have equally many devices: these are few plans. Else the one of even work."""
    problem = contender.problem
    even = _even_work(problem)
    if problem.constraints != UNCONSTRAINED or problem.cluster.devices % problem.stages:
        return even
    equal = replace(problem, constraints=Constraints(equal_replicas=True))
    best = anytime_search(equal, deadline, start=even, costs=contender.costs).plan
    return even if best is None else replace(best, planner=PLANNER)


def _even_work(problem: StagedProblem) -> StagedPlan:
    """The plan whose stages have equally much work, as nearly as the grid lets them, and equally many devices."""
    grid, stages = problem.grid, problem.stages
    places = np.array(grid.to_instructions(tuple(grid.cut_points.tolist())))
    work = np.cumsum(problem.profile.C)[places] / max(float(problem.profile.C.sum()), np.finfo(np.float64).tiny)
    chosen: list[int] = []
    for s in range(1, stages):
        first, last = (chosen[-1] + 1 if chosen else 0), places.size - (stages - s)
        chosen.append(min(max(int(np.argmin(np.abs(work - s / stages))), first), last))
    cuts = tuple(int(places[j]) for j in chosen)
    device_cuts = tuple(problem.cluster.devices * s // stages for s in range(1, stages))
    return StagedPlan(cuts, device_cuts, problem.micro_batches, PLANNER, grid.to_points(cuts))


def improve(contender: Contender, start: StagedPlan, deadline: Deadline) -> None:
    """Move the cuts of a plan on the grid as long as that makes the step shorter, and offer what comes of it.

    Coarse moves alone come first: they are few.
    """
    problem, near = contender.problem, start
    search = StagedSearch(problem, deadline, contender.costs(start).step_s, contender.costs)
    with suppress(OutOfTime):
        tables = tables_of(problem)
        for offsets in (*COARSE_MOVES, MOVES):
            search.improve_by_moves(tables, near, offsets)
            near = search.best or near
    contender.offer(replace(near, planner=start.planner), contender.costs(near))


def between_blocks(contenders: Sequence[Contender], deadline: Deadline) -> Iterator[tuple[Contender, StagedPlan]]:
    """Plans that cut between blocks, or between layers where no blocks repeat, for the contenders that may win.

    Each is the best that moves come to from what frameworks do by default, and from the contender's own plan with its
    cuts at the ends of blocks. Contenders that no plan on the grid can make the best are left out.

    Args:
        contenders: of one model, one of which has a plan.
        deadline: when to stop.
    """
    ends = block_ends(contenders[0].problem.profile)
    limit_s = best_of(contenders).step_s * (1.0 + CLOSE)
    several = [contender for contender in contenders if 1 < contender.problem.stages <= len(ends) + 1]
    for contender in sorted(several, key=lambda contender: contender.step_s):
        problem, own = contender.problem, contender.plan
        if deadline.passed or contender.outcome == "discarded":
            continue
        if own is not None and contender.step_s > limit_s:
            continue
        plans = [plan for _, plan in framework_plans(problem, ends)]
        if own is not None:
            at = np.abs(np.subtract.outer(own.cuts, ends)).argmin(axis=1)
            plans.append(replace(own, cuts=tuple(ends[j] for j in at.tolist()), coarse_cuts=None, planner=PLANNER))
        starts = _best(contender, plans)
        if not starts or contender.costs(starts[0]).step_s > limit_s * (1.0 + CLOSE):
            continue
        tables, best = tables_of(problem, cut=np.array(ends)), starts[0]
        with suppress(OutOfTime):
            for start in dict.fromkeys(starts):
                search = StagedSearch(problem, deadline, contender.costs(start).step_s, contender.costs)
                search.improve_by_moves(tables, start, BLOCK_MOVES)
                moved = start if search.best is None else replace(search.best, planner=start.planner)
                if contender.costs(moved).step_s < contender.costs(best).step_s:
                    best = moved
        yield contender, best
