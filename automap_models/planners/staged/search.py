"""The exact search of one staged problem: from plan to shorter plan until no plan on the grid is shorter.

Label setting (label_setting) finds the shortest plans within bounds, and the faster the shorter the plans known are.
So good plans come first: around one that is known, or around the optima of coarser grids, each level beginning with the
length that the one before it reached; on large problems from a local search. Then the whole grid is searched, which
proves the best plan.

    start ──► around it ──┐
                          ├──► around the best one ──► the whole grid ──► optimum, proven
    coarser grids ────────┘

Stages that choose among shardings change nothing about that: suffixes in different shardings that begin a stage at the
same boundary on the same devices compete, as what comes before does not depend on the sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.constraints import stages_without_work
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import BadInput
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.beam_search import compiled_kernel, route_of
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, is_plain
from automap_models.planners.staged.feasibility import stages_exist
from automap_models.planners.staged.label_setting import MOST_LABELS, PLANNER, SLACK, Keep, Ranking, ranked
from automap_models.planners.staged.local_search import even_route, local_search
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages, plain_of
from automap_models.planners.staged.plan_batch import PlanBatch, batch_costs, neighbours, steps_s
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import PrefixBounds, least_length_s, prefix_bounds
from automap_models.planners.staged.stage_tables import StageTables

AROUND = (3, 2)
"""How far around a plan on the grid to look for a better one: boundaries, devices."""
COARSEST, FINER = 8, 4
"""Fewest segments of a coarse grid, and how much finer each is than the one before it."""
PROVING = 0.6
"""Of the time that is left on a large problem: what the bound on all plans has, before all plans are listed."""
BOUNDED_S = 0.75
"""Of the time for a large problem: with less there is no bound by suffixes, which takes longer on 128 devices."""
TABLES = 4, 8
"""Beam and reach of the first plans by tables (planners.staged.table_plans)."""
MOVES = np.array([1, 2, 4, 8, 16])
"""How far a cut moves at once, in boundaries."""
AT_FIRST, AT_ONCE = 1 << 8, 1 << 14
"""Plans that are simulated in one go: at first, since a better one among them spares the rest, and at most."""
LISTS = (1 << 16, 1 << 18, MOST_LABELS)
"""Most labels of a stage where all plans are listed: at first, and where that was too few."""
LARGE = 256
"""Problems of more stages times devices are large: 8 stages on more than 32 devices. Their whole grid can hardly be
searched in the time that people wait."""


@dataclass(frozen=True)
class SearchResult:
    """What a search with a deadline found out.

    Attributes:
        plan: the shortest plan found, if it is shorter than the upper bound given: the optimum of a finished search.
        cost: of that plan.
        bound_s: no plan on the grid is shorter; a finished search gives the optimum, or the upper bound where no
            plan is shorter than that, which is infinite where nothing fits the memory.
        finished: whether the search came to its end.
    """

    plan: StagedPlan | None
    cost: StagedCost | None
    bound_s: float
    finished: bool


def anytime_search(
    problem: StagedProblem,
    deadline: Deadline,
    upper_bound_s: float | None = None,
    start: StagedPlan | None = None,
    *,
    far: bool = False,
    costs: Costs | None = None,
) -> SearchResult:
    """The shortest plan that fits the memory and is valid, or what is known when the time is up.

    Plans cut on the problem's grid, and where the ends of the windows lie that its constraints ask for.

    Args:
        problem: with its shardings and constraints.
        deadline: when to stop.
        upper_bound_s: only shorter plans are of interest (by more than LENGTH_ROUNDING, relatively).
        start: a plan on the grid; better ones are first looked for around it.
        far: whether much better ones may be far from it: then coarser grids are searched, too. On large problems the
            local search looks far in any case.
        costs: of this problem's plans, as far as they are known.

    Raises:
        BadInput: the constraints contradict one another, or leave nothing.
    """
    search = StagedSearch(problem, deadline, np.inf if upper_bound_s is None else upper_bound_s, costs)
    try:
        search.run(start, far=far)
    except OutOfTime as stopped:
        return SearchResult(search.best, search.best_cost, stopped.bound_s, finished=False)
    return SearchResult(search.best, search.best_cost, search.step_s, finished=True)


def search_below(
    problem: StagedProblem, deadline: Deadline, limit_s: float, costs: Costs, *, whole: bool = False
) -> SearchResult:
    """Whether any plan costs less than the limit, without a search for good ones before.

    Args:
        problem, deadline, costs: as in `anytime_search`.
        limit_s: a step, or without a schedule a length.
        whole: whether all plans are looked at; else only those that no other dominates by what they cost at least.
    """
    search = StagedSearch(problem, deadline, limit_s, costs)
    try:
        tables = tables_of(problem)
        if whole:
            search.whole(tables)
        bound_s = search.step_s if whole else search.undominated(tables)
    except OutOfTime as stopped:
        return SearchResult(search.best, search.best_cost, min(stopped.bound_s, search.step_s), finished=False)
    except BadInput:  # the stages cannot share out the devices
        return SearchResult(None, None, np.inf, finished=True)
    return SearchResult(search.best, search.best_cost, min(bound_s, search.step_s), finished=bound_s >= search.step_s)


def exact_search(problem: StagedProblem, upper_bound_s: float | None = None) -> StagedPlan | None:
    """The optimum, or None when no plan that fits is shorter than the bound (by more than LENGTH_ROUNDING, relatively).

    With the length of a known plan as the bound, None proves that plan optimal; without a bound None says that
    no plan fits the memory. The length is that of cost.staged.
    """
    return anytime_search(problem, Deadline(), upper_bound_s).plan


def is_large(problem: StagedProblem) -> bool:
    """Whether a problem's stages times devices are more than LARGE."""
    return problem.stages * problem.cluster.devices > LARGE


class StagedSearch:
    """A search for plans of one problem that are shorter than an upper bound.

    Attributes:
        best, best_cost: the shortest plan found so far, if it is shorter than the upper bound, and its cost.
        step_s: what it costs (StagedCost.step_s), or the upper bound.
    """

    def __init__(
        self, problem: StagedProblem, deadline: Deadline, upper_bound_s: float, costs: Costs | None = None
    ) -> None:
        self.problem, self.deadline, self.step_s = problem, deadline, upper_bound_s
        self.costs = Costs(problem) if costs is None else costs
        self.best: StagedPlan | None = None
        self.best_cost: StagedCost | None = None

    def run(self, start: StagedPlan | None, *, far: bool = False) -> None:
        """Find the optimum if it is shorter than the upper bound; see anytime_search.

        Raises:
            OutOfTime: with what is proven by then.
        """
        finest = tables_of(self.problem)
        if np.isinf(self.step_s) and not stages_exist(finest, np.inf, finest.memory):
            return
        deadline, bounded = self.deadline, is_large(self.problem) and self.deadline.left_s >= BOUNDED_S
        if bounded and self.problem.schedule is None:  # a local search takes all the time that it gets
            self.deadline = deadline.part((1.0 - PROVING) * deadline.left_s)
        try:
            self._begin(finest, start, far=far)
        except OutOfTime:  # what that proves is about some of the plans only
            if deadline.passed:
                raise self._stopped(finest, 0.0) from None
        finally:
            self.deadline = deadline
        proven_s = self._suffixes(finest) if bounded else 0.0
        if proven_s >= self.step_s:
            return
        try:
            self.whole(finest)
        except OutOfTime as stopped:
            raise self._stopped(finest, max(stopped.bound_s, proven_s)) from None

    def _suffixes(self, finest: StageTables) -> float:
        """What the least of all suffixes proves about all plans of a large problem (suffix_bound)."""
        if np.isinf(self.step_s):
            return 0.0
        from automap_models.planners.staged.suffix_bound import suffix_bound_s

        return suffix_bound_s(finest, self.step_s, self.deadline)

    def _stopped(self, finest: StageTables, bound_s: float) -> OutOfTime:
        """With the better of two bounds on all plans."""
        return OutOfTime(min(max(bound_s, least_length_s(finest, self.deadline)), self.step_s))

    def _begin(self, finest: StageTables, start: StagedPlan | None, *, far: bool) -> None:
        """Find good plans: near the one to start from, or where there is none near the optima of coarser grids."""
        if self.problem.schedule is not None:
            self._begin_by_moves(finest, start, far=far)
            return
        widely = is_large(self.problem) and is_plain(self.problem)
        if start is not None and widely:
            self.improve_widely(finest, start)
        elif start is not None:
            self.improve_around(finest, start)
        if start is None or (far and not widely) or np.isinf(self.step_s):
            self.coarse_to_fine(finest, self.best or start)

    def _begin_by_moves(self, finest: StageTables, start: StagedPlan | None, *, far: bool) -> None:
        """Go down by moves from the start, or from plans of tables and the best that coarser grids' labels lead to."""
        if start is None:
            self._begin_by_tables(finest)
        elif start.check_valid(self.problem)[0]:
            self.improve_by_moves(finest, start, MOVES)
        if far or start is None or np.isinf(self.step_s):
            before = self.best
            for stride in coarser_strides(self.problem):
                tables = tables_of(self.problem, stride)
                self._simulate(tables, self._ranked(tables, self.step_s, Keep.BEST))
            if self.best is not before:
                self.improve_by_moves(finest, self.best, MOVES)

    def _begin_by_tables(self, finest: StageTables) -> None:
        """Take what moves from the plans of compiled tables come to, or where devices differ the even plan."""
        plain = self.problem.stages > 1 and is_plain(self.problem) and plain_of(finest) is not None
        if plain and compiled_kernel() is not None:
            from automap_models.planners.staged import step_plans  # numba takes half a second to import

            plan = step_plans.step_plan(self.problem, *TABLES, PLANNER)
        else:
            plan = StagedPlan(*even_route(finest).cuts(finest), self.problem.micro_batches, PLANNER)
        if plan.check_valid(self.problem)[0]:
            self.offer(plan)

    def whole(self, tables: StageTables) -> None:
        """Find the optimum on these tables if it is shorter than the best so far.

        Raises:
            OutOfTime: with a bound on all plans on the tables.
        """
        if not tables.suffixes.overlap:
            ranking = self._ranked(tables, self.step_s)
            self._take_ties(ranking, tables)
            if ranking.limit_s < self.step_s:
                raise OutOfTime(ranking.limit_s)
            return
        if np.isinf(self.step_s):
            self._simulate(tables, self._ranked(tables, self.step_s, Keep.BEST))
        self._close(tables)

    def _ranked(
        self, tables: StageTables, limit_s: float, keep: Keep = Keep.UNDOMINATED, most_labels: int = MOST_LABELS
    ) -> Ranking:
        """The plans on these tables that may cost no more than that; see label_setting.ranked."""
        limit_s *= 1.0 + SLACK
        bounds = prefix_bounds(tables, limit_s, self.deadline)
        return ranked(tables, bounds, limit_s, self.deadline, most_labels, keep)

    def _close(self, tables: StageTables) -> None:
        """List all plans that may be shorter than the best and simulate them.

        Where the first list gets too long, only plans that cost least at least are on it; then the plans that no other
        dominates say how short any plan can be, before longer lists are made.

        Raises:
            OutOfTime: with a bound on all plans on the tables.
        """
        done_s = 0.0
        try:
            for most in LISTS:
                ranking = self._ranked(tables, self.step_s, Keep.ALL, most)
                self._simulate(tables, ranking, done_s)
                done_s = max(done_s, ranking.limit_s)
                if done_s >= self.step_s:
                    return
                if most == LISTS[0]:
                    done_s = max(done_s, self.undominated(tables))
        except OutOfTime as stopped:
            raise OutOfTime(max(done_s, stopped.bound_s)) from None
        raise OutOfTime(done_s)

    def undominated(self, tables: StageTables) -> float:
        """Simulate the plans that no other dominates by what they cost at least; no plan at all costs less than that.

        Raises:
            OutOfTime: with a bound on all plans on the tables.
        """
        ranking = self._ranked(tables, self.step_s)
        least_s = float(ranking.least_s[0]) if ranking.least_s.size else min(ranking.limit_s, self.step_s)
        with suppress(OutOfTime):
            self._simulate(tables, ranking)
        return least_s

    def _simulate(self, tables: StageTables, ranking: Ranking, done_s: float = 0.0) -> None:
        """Take the best of the plans, by their steps, but for those that cost less at least than what is done.

        Raises:
            OutOfTime: before all were looked at.
        """
        first, size = int(np.searchsorted(ranking.least_s, done_s * (1.0 - SLACK))), AT_FIRST
        while first < ranking.least_s.size and ranking.least_s[first] < self.step_s:
            self.deadline.check()
            self.offer_batch(tables, ranking.batch.take(slice(first, first + size)))
            first, size = first + size, min(4 * size, AT_ONCE)

    def offer_batch(self, tables: StageTables, batch: PlanBatch) -> None:
        """Take the best of some plans if it is better than the best so far."""
        rows, steps = self._shorter(tables, batch, self.step_s)
        for row, step_s in zip(rows.tolist(), steps.tolist(), strict=True):
            if step_s >= self.step_s * (1.0 - LENGTH_ROUNDING):
                break
            self.deadline.check()
            self.offer(batch.plan(tables, row, PLANNER))

    def _shorter(self, tables: StageTables, batch: PlanBatch, limit_s: float) -> tuple[IntArray, FloatArray]:
        """The rows of the plans that fit with a step below the limit, the shortest first; and their steps, to rounding.

        Raises:
            OutOfTime: the deadline has passed.
        """
        costs = batch_costs(tables, batch, self.costs.rates)
        rows = np.flatnonzero(costs.feasible)
        if not rows.size:
            return rows, np.empty(0)
        self.deadline.check()
        steps = steps_s(self.problem, tables, batch.take(rows), costs.take(rows))
        order = np.argsort(steps, kind="stable")
        order = order[steps[order] < limit_s * (1.0 - LENGTH_ROUNDING)]
        return rows[order], steps[order]

    def improve_by_moves(self, tables: StageTables, near: StagedPlan | None, *offsets: IntArray) -> StagedPlan | None:
        """Go from plan to better plan as long as one of its neighbours is better.

        On equal devices these are the moves of move_kernel, compiled, else those of plan_batch.neighbours, in batches.

        Where that leads does not depend on the upper bound. It ends early at a plan that the same moves went on from
        before: what they come to is known.

        Args:
            tables: places where plans may cut, those of the plan among them.
            near: where to begin; without a plan nothing happens.
            offsets: how far a cut may move, ascending, in boundaries; of several the first as far as they lead, then
                the next.

        Returns:
            Where it ended.

        Raises:
            OutOfTime: the deadline has passed; nothing is proven. The best of the plans on the way is taken.
        """
        if near is None:
            return None
        plain = plain_of(tables) if is_plain(self.problem) and compiled_kernel() is not None else None
        if plain is not None:
            return self._improve_by_compiled_moves(tables, plain, near, offsets)
        cost, path = self.costs(near), [PlanBatch.from_plan(tables, near)]
        step_s = cost.step_s if cost.feasible else np.inf
        places = tables.boundary.tobytes()
        try:
            for moves in offsets:
                while True:
                    self.deadline.check()
                    key = (places, moves.tobytes(), path[-1].key)
                    if key in self.costs.passed:
                        break
                    self.costs.passed.add(key)
                    batch = neighbours(tables, path[-1], moves)
                    rows, steps = self._shorter(tables, batch, step_s)
                    if not rows.size:
                        break
                    path.append(batch.take(rows[:1]))
                    step_s = float(steps[0])
        finally:
            for passed in path[:0:-1]:  # the last, unless rounding makes it one that does not fit
                plan = passed.plan(tables, 0, PLANNER)
                if self.costs(plan).feasible:
                    self.offer(plan)
                    near = plan
                    break
        return near

    def _improve_by_compiled_moves(
        self, tables: StageTables, plain: PlainStages, near: StagedPlan, offsets: Sequence[IntArray]
    ) -> StagedPlan:
        """The same by compiled loops (step_plans.moved_batch)."""
        from automap_models.planners.staged import step_plans  # numba takes half a second to import

        batch = PlanBatch.from_plan(tables, near)
        for moves in offsets:
            key = (tables.boundary.tobytes(), moves.tobytes(), batch.key)
            if key in self.costs.passed:
                break
            self.costs.passed.add(key)
            self.deadline.check()
            shorter = step_plans.moved_batch(self.problem, tables, plain, batch, moves, self.deadline.left_s)
            plan = shorter.plan(tables, 0, PLANNER)
            if shorter.key == batch.key or not self.costs(plan).feasible:  # to rounding it fits
                continue
            self.costs.passed.add((*key[:2], shorter.key))
            self.offer(plan)
            near, batch = plan, shorter
        self.deadline.check()
        return near

    def coarse_to_fine(self, finest: StageTables, near: StagedPlan | None = None) -> None:
        """Find the optima of coarser grids and what is near them on the finest one; begin near a plan, if there is one.

        Raises:
            OutOfTime: the deadline has passed; the bound says nothing about all plans.
        """
        for stride in coarser_strides(self.problem):
            tables = tables_of(self.problem, stride)
            self.improve_around(tables, near)
            self.whole(tables)
            near = self.best
        self.improve_around(finest, near)

    def improve_around(self, tables: StageTables, near: StagedPlan | None, reach: tuple[int, int] = AROUND) -> None:
        """Go from plan to shorter plan as long as there is one that begins each stage within reach of the last one's.

        Args:
            tables: places where plans may cut.
            near: where to begin; without a plan nothing happens.
            reach: how far around a plan to look, in boundaries of the tables and in devices.

        Raises:
            OutOfTime: the deadline has passed; the bound says nothing about all plans.
        """
        while near is not None and self.improve(tables, around(tables, near, reach)):
            near = self.best

    def improve_widely(self, tables: StageTables, near: StagedPlan) -> None:
        """Take what a local search from a plan on comes to; for large problems, where looking around leads less far.

        Args:
            tables: places where plans may cut, those of the plan among them.
            near: where to begin; it may be longer than the upper bound.
        """
        start = route_of(tables, near, self.costs(near).step_s)
        cuts = local_search(tables, self.problem.cluster, start, self.deadline).cuts(tables)
        self.offer(StagedPlan(*cuts, self.problem.micro_batches, PLANNER))

    def improve(self, tables: StageTables, bounds: PrefixBounds) -> bool:
        """Search within the bounds; whether a shorter plan than the best so far came out.

        Raises:
            OutOfTime: with a bound on all plans within the bounds.
        """
        before_s = self.step_s
        self._take_ties(ranked(tables, bounds, self.step_s * (1.0 + SLACK), self.deadline), tables)
        return self.step_s < before_s

    def _take_ties(self, ranking: Ranking, tables: StageTables) -> None:
        """Take the shortest plan, or another of those that tie with it."""
        ties = ranking.ties
        for row in range(len(ties)):
            self.offer(ties.plan(tables, row, PLANNER))

    def offer(self, plan: StagedPlan) -> bool:
        """Take a plan if it is shorter than the best so far, fits and has work for every stage; whether it is."""
        cost, problem = self.costs(plan), self.problem
        shorter = cost.feasible and cost.step_s < self.step_s * (1.0 - LENGTH_ROUNDING)
        least = 0.0 if problem.schedule is None else problem.constraints.min_stage
        if shorter and not stages_without_work(problem.profile, plan.cuts, least):
            self.best = replace(plan, coarse_cuts=self.problem.grid.to_points(plan.cuts))
            self.best_cost, self.step_s = cost, cost.step_s
            return True
        return False


def coarser_strides(problem: StagedProblem) -> list[int]:
    """How many boundaries each coarser grid makes one of, the coarsest grid first.

    These are powers of FINER down to 2 or more from the power of two that leaves enough segments for the stages.
    """
    segments = problem.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, 0, -FINER.bit_length() + 1)]


def around(tables: StageTables, plan: StagedPlan, reach: tuple[int, int]) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin.

    Args:
        tables: places where plans may cut, those of the plan among them.
        plan: to look around.
        reach: how far, in boundaries of the tables and in devices.
    """
    stages, devices = tables.stages, tables.replicas_in_all
    begin = np.full((stages, devices + 1, tables.end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = reach
    for s, (cut, device) in enumerate(zip(plan.cuts, plan.device_cuts, strict=True), start=1):
        k, (first, last) = int(np.searchsorted(tables.boundary, cut + 1)), tables.windows[s]
        near = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, near, max(first, k - by_boundary) : max(0, min(last, k + by_boundary) + 1)] = 0.0
    return PrefixBounds(begin, begin, np.zeros_like(begin))
