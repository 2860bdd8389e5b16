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

from dataclasses import replace

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import BadInput
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.beam_search import route_of
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, SearchResult, is_plain
from automap_models.planners.staged.feasibility import stages_exist
from automap_models.planners.staged.label_setting import PLANNER, SLACK, Ranking, ranked
from automap_models.planners.staged.local_search import local_search
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
LARGE = 256
"""Problems of more stages times devices are large: 8 stages on more than 32 devices. Their whole grid can hardly be
searched in the time that people wait."""


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
    upper_s = np.inf if upper_bound_s is None else upper_bound_s
    if problem.schedule is not None:
        from automap_models.planners.staged.step_search import shortest_step  # numba takes half a second to import

        starts = [] if start is None or not start.check_valid(problem)[0] else [start]
        return shortest_step(problem, deadline, upper_s, starts, costs)
    search = StagedSearch(problem, deadline, upper_s, costs)
    try:
        search.run(start, far=far)
    except OutOfTime as stopped:
        return SearchResult(search.best, search.best_cost, stopped.bound_s, finished=False)
    return SearchResult(search.best, search.best_cost, search.step_s, finished=True)


def search_below(problem: StagedProblem, deadline: Deadline, limit_s: float, costs: Costs) -> SearchResult:
    """Whether any plan costs less than the limit, without a search for good ones before.

    Args:
        problem, deadline, costs: as in `anytime_search`.
        limit_s: a length.
    """
    search = StagedSearch(problem, deadline, limit_s, costs)
    try:
        search.whole(tables_of(problem))
    except OutOfTime as stopped:
        return SearchResult(search.best, search.best_cost, min(stopped.bound_s, search.step_s), finished=False)
    except BadInput:  # the stages cannot share out the devices
        return SearchResult(None, None, np.inf, finished=True)
    return SearchResult(search.best, search.best_cost, search.step_s, finished=True)


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
        if bounded:  # a local search takes all the time that it gets
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
        widely = is_large(self.problem) and is_plain(self.problem)
        if start is not None and widely:
            self.improve_widely(finest, start)
        elif start is not None:
            self.improve_around(finest, start)
        if start is None or (far and not widely) or np.isinf(self.step_s):
            self.coarse_to_fine(finest, self.best or start)

    def whole(self, tables: StageTables) -> None:
        """Find the optimum on these tables if it is shorter than the best so far.

        Raises:
            OutOfTime: with a bound on all plans on the tables.
        """
        ranking = self._ranked(tables, self.step_s)
        self._take_ties(ranking, tables)
        if ranking.limit_s < self.step_s:
            raise OutOfTime(ranking.limit_s)

    def _ranked(self, tables: StageTables, limit_s: float) -> Ranking:
        """The plans on these tables that may cost no more than that; see label_setting.ranked."""
        limit_s *= 1.0 + SLACK
        return ranked(tables, prefix_bounds(tables, limit_s, self.deadline), limit_s, self.deadline)

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
        cost = self.costs(plan)
        if cost.feasible and cost.step_s < self.step_s * (1.0 - LENGTH_ROUNDING):
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
    return PrefixBounds(begin, begin)
