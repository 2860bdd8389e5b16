"""Good plans for many problems under a schedule, in little time: each begins at what is known about its neighbours.

A plan is improved by moves of its cuts (planners.staged.search) until none of its neighbours has a shorter step. Where
it begins decides how long that takes, and plans of neighbouring problems are alike:

    S stages  ── a stage split in two ──►  S + 1 stages        M micro-batches  ── the same cuts ──►  other M

Every problem is searched in the same way, whether it is alone or one of many: from the policy's plan and uniform cuts,
from the best of equal stages, from stages of even work that fit the memory, and from the best on coarser grids. Others
only add beginnings. So a number of stages that is given cannot lead further than the same number among others does.

The numbers of stages are gone through upwards, in one number of micro-batches; then these plans are tried in the other
numbers, and the problems that look best there are searched in the same way. In the best of these other numbers all
numbers of stages are gone through once more.

On many nodes these are many numbers. Up to FEW stages each is gone through; more stages as long as they get better, and
then those whose rough plans look best.

The ends of blocks, where little crosses a cut, are seldom on the grid. `between_blocks` begins at the plans that
frameworks make by default and moves their cuts by whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from automap_models.core.constraints import BLOCKS, UNCONSTRAINED, Constraints
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.portfolio.contender import Contender, best_of
from automap_models.planners.portfolio.regroup import PLANNER, splits
from automap_models.planners.staged.beam_search import compiled_kernel
from automap_models.planners.staged.costs import is_plain
from automap_models.planners.staged.feasibility import even_plan, stages_exist
from automap_models.planners.staged.frameworks import framework_plans
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import NEAR, least_length_s, out_of_reach
from automap_models.planners.staged.search import MOVES, StagedSearch, anytime_search
from automap_models.planners.staged.stage_tables import StageTables

FEW = 16
"""So many stages are few, and on a smaller cluster two a node: each number of them is gone through."""
PATIENCE = 2
"""So many numbers of many stages in a row may be no better before those after them, or those of longer rough plans, are
left alone."""
CLOSE = 0.15
"""How much longer than the best, relatively, a plan may be for its problem to be looked at further."""
CARRIED = 0.25
"""The same for a plan that was carried over from another number of micro-batches, or has stages of even work."""
SPLITS = 2
"""So many plans that come of splitting a stage are beginnings."""
ENDS = 2
"""Of the plans that coarse moves lead to, so many are moved on."""
FAR = 1.5
"""So many times the time for one beginning is what the coarser grids may take."""
EVEN = 2.0
"""So many times as far as the relaxation's bound may be from what it does not rule out, relatively, stages of even work
may be from the bound."""
ROUGHLY = 1.05
"""So near to what it does not rule out the bound is for more than FEW stages, of which there are many numbers."""
COARSE_MOVES = (np.array([8]), np.array([2]))
"""How far a cut moves at first, in boundaries."""
BLOCK_MOVES = np.array([1, 2])
"""How far a cut moves between blocks."""
AskPolicy = Callable[[Sequence[Contender]], object]


def descend(
    contenders: Sequence[Contender],
    ask: AskPolicy,
    one_s: float,
    others_s: float,
    deadline: Deadline,
    min_gain: float = 0.0,
) -> list[Contender]:
    """Give contenders of several stages good plans.

    Args:
        contenders: all that compete, those of one stage with their plans.
        ask: gives some of them the policy's plans and uniform cuts.
        one_s, others_s: counted seconds for one beginning, and for all of the other numbers of micro-batches together,
            so that plans do not depend on what else the machine does; the best of these may take as much once more.
        deadline: when to stop in any case.
        min_gain: how much longer, relatively, plans of fewer stages may be.

    Returns:
        Contenders without a plan that fits, for which a search has to find one.
    """
    several = [contender for contender in contenders if contender.problem.stages > 1 and not contender.closed]
    if not several:
        return []
    counts = sorted({contender.problem.micro_batches for contender in several})
    middle = min(counts, key=lambda M: (abs(np.log2(M / DEFAULT_MICRO_BATCHES)), M))
    ladder = sorted(_of_count(several, middle), key=lambda contender: contender.problem.stages)
    ask([contender for contender in ladder if not has_many_stages(contender.problem)])
    stuck = _climb(ladder, contenders, ask, one_s, deadline, min_gain)
    if len(counts) > 1:
        others = [contender for contender in several if contender.problem.micro_batches != middle]
        ask([contender for contender in others if not has_many_stages(contender.problem)])
        _carry_over(ladder, others, contenders, one_s, deadline.part(others_s, effort.counted_s), min_gain)
        nearest = min(others, key=lambda contender: contender.step_s)
        if nearest.step_s <= best_of(contenders).step_s * (1.0 + CARRIED):
            again = sorted(_of_count(several, nearest.problem.micro_batches), key=lambda c: c.problem.stages)
            _climb(again, contenders, ask, one_s, deadline.part(others_s, effort.counted_s), min_gain)
    return stuck


def has_many_stages(problem: StagedProblem) -> bool:
    """Whether a problem has more than two stages a node, or more than FEW."""
    return problem.stages > min(2 * problem.cluster.nodes, FEW)


def _of_count(contenders: Sequence[Contender], micro_batches: int) -> list[Contender]:
    return [contender for contender in contenders if contender.problem.micro_batches == micro_batches]


def _climb(
    ladder: Sequence[Contender],
    contenders: Sequence[Contender],
    ask: AskPolicy,
    one_s: float,
    deadline: Deadline,
    min_gain: float,
) -> list[Contender]:
    """From few stages to many, each beginning at the best of its own and of what splitting the last one gives.

    Numbers of many stages, which the policy is asked about here, are gone through as long as they get better, but for
    PATIENCE of them. Those after these follow in the order of their rough plans.

    Returns:
        Those of few stages that have no plan.
    """
    last, stuck, worse = None, [], 0
    for i, contender in enumerate(ladder):
        few = not has_many_stages(contender.problem)
        best_s = best_of(contenders).step_s
        if deadline.passed:
            break
        if discarded(contender, best_s, min_gain):
            continue
        if not few:
            ask([contender])
        look_around(contender, one_s, deadline)
        contender.own = contender.plan
        if last is not None and last.plan is not None:
            halved = shortest_first(contender, splits(contender.problem, last.problem, last.plan), SPLITS)
            improve(contender, halved, deadline.part(one_s, effort.counted_s))
        if few and contender.plan is None and not contender.closed:
            stuck.append(contender)
        worse = 0 if few or contender.step_s < best_s else worse + 1
        if worse == PATIENCE:
            _climb_roughly(ladder[i + 1 :], contenders, ask, one_s, deadline, min_gain)
            break
        last = contender
    return stuck


def _climb_roughly(
    many: Sequence[Contender],
    contenders: Sequence[Contender],
    ask: AskPolicy,
    one_s: float,
    deadline: Deadline,
    min_gain: float,
) -> None:
    """Rough plans of many stages, the best of which are gone through as long as they get better, but for PATIENCE."""
    bound_s = 0.0
    for contender in many:
        if not deadline.passed and not discarded(contender, best_of(contenders).step_s, min_gain):
            rough_plans(contender, deadline, bound_s)
            bound_s = contender.bound_s
    worse = 0
    for contender in sorted(many, key=lambda contender: contender.step_s):
        best_s = best_of(contenders).step_s
        if contender.step_s > best_s * (1.0 + CARRIED) or worse == PATIENCE or deadline.passed:
            break
        if discarded(contender, best_s, min_gain):
            continue
        ask([contender])
        look_around(contender, one_s, deadline)
        contender.own = contender.plan
        worse = 0 if contender.step_s < best_s else worse + 1


def discarded(contender: Contender, best_s: float, min_gain: float) -> bool:
    """Whether the relaxation proves that no plan of a problem can become the one that is chosen; it is closed then.

    Args:
        contender: the problem.
        best_s: the shortest step so far.
        min_gain: how much longer, relatively, plans of fewer stages may be.
    """
    limit_s = best_s * (1.0 + min_gain)
    if contender.step_s > limit_s and out_of_reach(contender.problem, limit_s):
        contender.close("does not fit" if np.isinf(limit_s) else "discarded", limit_s)
    return contender.closed


def look_around(contender: Contender, one_s: float, deadline: Deadline) -> None:
    """Improve what a problem can begin at by itself, and look for better beginnings on coarser grids.

    Args:
        contender: the problem, with the shortest of its uniform cuts and the policy's plan.
        one_s: counted seconds for the beginnings; the coarser grids may take FAR times as much.
        deadline: when to stop in any case.
    """
    own = [] if contender.plan is None else [contender.plan]
    part = deadline.part(one_s, effort.counted_s)
    equal = [equal_stages(contender, part), *_even_stages(contender, part)]
    improve(contender, [*own, *shortest_first(contender, equal)], deadline.part(one_s, effort.counted_s))
    part = deadline.part(FAR * one_s, effort.counted_s)
    search = StagedSearch(contender.problem, part, contender.step_s, contender.costs)
    with suppress(OutOfTime):
        search.improve_on_coarser_grids(tables_of(contender.problem))
    if search.best is not None and search.best_cost is not None:
        contender.offer(search.best, search.best_cost)


def _carry_over(
    before: Sequence[Contender],
    others: Sequence[Contender],
    contenders: Sequence[Contender],
    one_s: float,
    deadline: Deadline,
    min_gain: float,
) -> None:
    """Begin with the same cuts in other numbers of micro-batches; those that look best are searched, the best first.

    More than FEW stages, of which there are many numbers, are left out where they were far from the best before.
    """
    former, far_s = {contender.problem.stages: contender for contender in before}, best_of(before).step_s
    for contender in others:
        plan, stages = former[contender.problem.stages].plan, contender.problem.stages
        if deadline.passed:
            return
        if stages > FEW and former[stages].step_s > far_s * (1.0 + CARRIED):
            continue
        if discarded(contender, best_of(contenders).step_s, min_gain):
            continue
        carried = [] if plan is None else [replace(plan, micro_batches=contender.problem.micro_batches)]
        for start in shortest_first(contender, carried):
            contender.offer(start, contender.costs(start))
        if contender.step_s > best_of(contenders).step_s * (1.0 + CARRIED):  # few samples on many replicas, for one
            rough_plans(contender, deadline)
    limit_s = best_of(contenders).step_s * (1.0 + CARRIED)  # of the start: one that gets better rules out no other
    for contender in sorted(others, key=lambda contender: contender.step_s):
        if contender.plan is None or deadline.passed or contender.step_s > limit_s:
            continue
        look_around(contender, one_s, deadline)


def shortest_first(contender: Contender, plans: Iterable[StagedPlan], most: int | None = None) -> list[StagedPlan]:
    """Those of the plans that are valid for a contender and fit, the shortest first.

    Args:
        contender: the problem.
        plans: of it.
        most: so many at most; those that are not among them are not costed where compiled loops order them.
    """
    valid = [plan for plan in plans if plan.check_valid(contender.problem)[0]]
    chosen = list[StagedPlan]()
    for plan in _ordered(contender, valid):
        if len(chosen) == most:
            break
        if contender.costs(plan).feasible:
            chosen.append(plan)
    return chosen


def _ordered(contender: Contender, plans: list[StagedPlan]) -> list[StagedPlan]:
    """The plans by their steps; where those are compiled, without those that do not fit."""
    problem, steps = contender.problem, None
    scheduled = problem.schedule is not None and problem.stages > 1 and is_plain(problem)
    if len(plans) > 1 and scheduled and compiled_kernel() is not None:
        from automap_models.planners.staged.step_plans import steps_of  # numba takes half a second to import

        steps = steps_of(problem, plans)
    if steps is None:
        return sorted(plans, key=lambda plan: contender.costs(plan).step_s)
    order = np.argsort(steps, kind="stable")
    return [plans[row] for row in order[np.isfinite(steps[order])].tolist()]


def equal_stages(contender: Contender, deadline: Deadline) -> StagedPlan:
    """A good plan whose stages have equally many devices: these are few plans. Else the one of even work."""
    equal, even = equal_problem(contender.problem), _even_work(contender.problem)
    if equal is None:
        return even
    tables, search = tables_of(equal), StagedSearch(equal, deadline, np.inf, contender.costs)
    with suppress(OutOfTime):
        for start in (even, *_even_plans(equal, tables, deadline)):
            if start.check_valid(equal)[0]:
                search.offer(start)
        search.improve_by_moves(tables, search.best, MOVES)
        search.improve_on_coarser_grids(tables)
    return even if search.best is None else replace(search.best, planner=PLANNER)


def equal_problem(problem: StagedProblem) -> StagedProblem | None:
    """The problem with equally many devices in each stage; None where there is no such plan, or no other one."""
    if problem.constraints.equal_replicas or problem.cluster.devices % problem.stages:
        return None
    equal = replace(problem, constraints=replace(problem.constraints, equal_replicas=True))
    try:
        tables_of(equal)
    except BadInput:  # of that many devices no stage can make use
        return None
    return equal


def _even_stages(contender: Contender, deadline: Deadline, guess_s: float = 0.0) -> list[StagedPlan]:
    """The plan of stages of even work that fit the memory, on as many devices as that takes; closed if nothing fits."""
    problem, tables = contender.problem, tables_of(contender.problem)
    if not stages_exist(tables, np.inf, tables.memory):
        contender.close("does not fit", np.inf)
        return []
    contender.bound_s = max(contender.bound_s, least_length_s(tables, deadline, _near(problem), guess_s))
    return _even_plans(problem, tables, deadline, contender.bound_s)


def _near(problem: StagedProblem) -> float:
    """How near a bound is to what the relaxation does not rule out."""
    return ROUGHLY if problem.stages > FEW else NEAR


def _even_plans(
    problem: StagedProblem, tables: StageTables, deadline: Deadline, bound_s: float | None = None
) -> list[StagedPlan]:
    """That plan, where there is one; the bound is that of relaxation.least_length_s."""
    if not stages_exist(tables, np.inf, tables.memory):
        return []
    near = _near(problem)
    bound_s = least_length_s(tables, deadline, near) if bound_s is None else bound_s
    even = even_plan(tables, (1.0 + EVEN * (near - 1.0)) * bound_s, tables.memory)
    plan = None if even is None else even.plan(tables, 0, PLANNER)
    if plan is None or not plan.check_valid(problem)[0]:
        return []
    return [replace(plan, coarse_cuts=problem.grid.to_points(plan.cuts))]


def rough_plans(contender: Contender, deadline: Deadline, guess_s: float = 0.0) -> None:
    """Offer stages of even work, on any devices and on equally many: little work, which tells the good problems.

    Args:
        contender: is given them, and a bound.
        deadline: when to stop.
        guess_s: about what its bound is, such as a neighbour's; 0 is not known.
    """
    equal = equal_problem(contender.problem)
    plans = _even_stages(contender, deadline, guess_s)
    if not contender.closed:
        plans.append(_even_work(contender.problem))
    if not contender.closed and equal is not None:
        plans += _even_plans(equal, tables_of(equal), deadline)
    for plan in shortest_first(contender, plans, 1):
        contender.offer(plan, contender.costs(plan))


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


def improve(contender: Contender, starts: Sequence[StagedPlan], deadline: Deadline) -> None:
    """Move the cuts of plans on the grid as long as that makes their steps shorter, and offer what comes of it.

    Coarse moves come first: they are few. The best that they lead to are moved on.

    Args:
        contender: the problem.
        starts: plans of it that fit.
        deadline: when to stop.
    """
    tables, ends = tables_of(contender.problem), []
    for start in starts:
        ends.append(_moved(contender, tables, start, deadline, *COARSE_MOVES))
    for end in sorted(ends, key=lambda plan: contender.costs(plan).step_s)[:ENDS]:
        best = _moved(contender, tables, end, deadline, MOVES)
        contender.offer(best, contender.costs(best))


def _moved(
    contender: Contender, tables: StageTables, start: StagedPlan, deadline: Deadline, *moves: IntArray
) -> StagedPlan:
    """Where moves of a plan's cuts lead, of the maker of the plan."""
    search = StagedSearch(contender.problem, deadline, contender.costs(start).step_s, contender.costs)
    with suppress(OutOfTime):
        search.improve_by_moves(tables, start, *moves)
    return start if search.best is None else replace(search.best, planner=start.planner)


def between_blocks(contender: Contender, ends: Sequence[int], limit_s: float, deadline: Deadline) -> StagedPlan | None:
    """The best plan that cuts between blocks, or between layers where no blocks repeat, as far as moves come.

    They begin at what frameworks do by default, at the best of equal stages, and at the contender's own plan with its
    cuts at the ends of blocks.

    Args:
        contender: of several stages.
        ends: where blocks end (frameworks.block_ends).
        limit_s: longer plans are not improved, relatively by more than CLOSE.
        deadline: when to stop.
    """
    problem, own = contender.problem, contender.plan
    if not 1 < problem.stages <= len(ends) + 1:
        return None
    plans = [plan for _, plan in framework_plans(problem, ends)]
    if own is not None:
        at = np.abs(np.subtract.outer(own.cuts, ends)).argmin(axis=1)
        plans.append(replace(own, cuts=tuple(ends[j] for j in at.tolist()), coarse_cuts=None, planner=PLANNER))
    plans += _equal_blocks(contender, deadline.part(deadline.left_s / 2))
    starts = shortest_first(contender, plans)
    if not starts or contender.costs(starts[0]).step_s > limit_s * (1.0 + CLOSE):
        return None
    tables = tables_of(problem, cut=np.array(ends))
    moved = [_moved(contender, tables, start, deadline, BLOCK_MOVES) for start in dict.fromkeys(starts)]
    return min(moved, key=lambda plan: contender.costs(plan).step_s)


def _equal_blocks(contender: Contender, deadline: Deadline) -> list[StagedPlan]:
    """The best plan found that has equally many devices in each stage and cuts between blocks, where there is any."""
    problem, constraints = contender.problem, Constraints(equal_replicas=True, cut_at=BLOCKS)
    if problem.constraints != UNCONSTRAINED or problem.cluster.devices % problem.stages:
        return []
    try:
        restricted = replace(problem, constraints=constraints)
        best = anytime_search(restricted, deadline, costs=contender.costs).plan
    except BadInput:  # no blocks repeat, or too few
        return []
    return [] if best is None else [replace(best, planner=PLANNER)]
