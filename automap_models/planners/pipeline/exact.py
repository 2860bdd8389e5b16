"""The true optimum over every instruction cut on the grid and every device cut, by a label search.

From the back, with T(s) and R(s) the span and the exposed all-reduce of the stages s … S-1 alone,

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0) (cost-model.md). Both never fall when T(s+1) or R(s+1) rises, so of two suffixes that begin
stage s at the same boundary on the same devices a … q-1 one with both numbers no smaller can be dropped. Suffixes
are shared: the search runs over (stage, boundary, first device, end device), never over tuples of device cuts.

A known length U prunes it: a suffix dies when it and the least that must come before it (relaxation.prefix_bounds)
reach beyond U. U comes from the same search around a plan known beforehand, or on every 2^j-th cut point and around
the plan found there; on large problems from a local search (pipeline.local_search).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.plan import Optimality, PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.cost.pipeline import plan_cost
from automap_models.planners.base import PipelinePlanner
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.pipeline.labels import SLACK, shortest
from automap_models.planners.pipeline.local_search import local_search
from automap_models.planners.pipeline.relaxation import PrefixBounds, lower_bound_s, out_of_memory, prefix_bounds
from automap_models.planners.pipeline.stage_tables import StageTables, coarse_cuts, stage_tables
from automap_models.planners.pipeline.thinned import route_of

__all__ = ["ExactPlanner", "Search", "SearchResult", "anytime_search", "exact_search", "lower_bound_s"]

TIE = 1e-11
"""Plans whose lengths differ relatively by no more are equally long."""
COARSEST = 8
"""Fewest segments of a coarse search."""
STEP = 4
"""How much finer each level is than the one before it."""
AROUND = (3, 2)
"""How far around a plan on the grid to look for a better one: boundaries, devices."""
LARGE = 256
"""Problems of more stages times devices are large: 8 stages on more than 32 devices. Their whole grid can hardly be
searched in the time that people wait."""


class ExactPlanner(PipelinePlanner):
    """The shortest plan of S stages on the grid, proven."""

    name: ClassVar[str] = "exact"

    def plan(self, problem: PipelineProblem) -> PipelinePlan:
        """The optimum over every cut on the grid and every device cut, among plans that fit the memory.

        Raises:
            Infeasible: none fits; saying what the best-packed plan would need.
        """
        plan = exact_search(problem)
        if plan is None:
            raise out_of_memory(problem)
        return plan


def exact_search(problem: PipelineProblem, upper_bound_s: float | None = None) -> PipelinePlan | None:
    """The optimum, or None when no plan that fits is shorter than the bound (by more than TIE, relatively).

    With the length of a known plan as the bound, None proves that plan optimal; without a bound None says that
    no plan fits the memory. The length is that of cost.pipeline.
    """
    return anytime_search(problem, Deadline(), upper_bound_s).plan


@dataclass(frozen=True)
class SearchResult:
    """What a search with a deadline found out.

    Attributes:
        plan: the shortest plan found, if it is shorter than the upper bound given: the optimum of a finished search.
        bound_s: no plan on the grid is shorter; a finished search gives the optimum, or the upper bound where no
            plan is shorter than that.
        finished: whether the search came to its end.
    """

    plan: PipelinePlan | None
    bound_s: float
    finished: bool


def anytime_search(
    problem: PipelineProblem,
    deadline: Deadline,
    upper_bound_s: float | None = None,
    start: PipelinePlan | None = None,
    *,
    far: bool = False,
) -> SearchResult:
    """The search of `exact_search`, stopped by a deadline.

    Args:
        problem: what is asked.
        deadline: when to stop.
        upper_bound_s: only shorter plans are of interest.
        start: a plan on the grid; better ones are first looked for around it.
        far: whether much better ones may be far from it: then coarser grids are searched, too. On large problems the
            local search looks far in any case.
    """
    search = Search(problem, deadline, np.inf if upper_bound_s is None else upper_bound_s)
    try:
        search.run(start, far=far)
    except OutOfTime as stopped:
        return SearchResult(search.best, stopped.bound_s, finished=False)
    best = search.best and replace(search.best, optimality=Optimality(search.length_s, "exact"))
    return SearchResult(best, search.length_s, finished=True)


class Search:
    """Coarse to fine, each level starting from the length that the one before it reached.

    Attributes:
        best: the shortest plan found so far, if it is shorter than the upper bound.
        length_s: its length, or the upper bound.
    """

    def __init__(self, problem: PipelineProblem, deadline: Deadline, upper_bound_s: float) -> None:
        self.problem, self.deadline, self.length_s = problem, deadline, upper_bound_s
        self.best: PipelinePlan | None = None

    def run(self, start: PipelinePlan | None, *, far: bool = False) -> None:
        """Find the optimum if it is shorter than the upper bound; see anytime_search.

        Raises:
            OutOfTime: with what the search of the whole grid has proven by then.
        """
        finest = stage_tables(self.problem)
        if start is not None and is_large(self.problem):
            self.improve_widely(finest, start)
        elif start is not None:
            self.improve_around(finest, start)
        if start is None or (far and not is_large(self.problem)):
            near = self.best or start
            for stride in _coarser_strides(self.problem):
                tables = stage_tables(self.problem, coarse_cuts(self.problem, stride))
                self.improve_around(tables, near)
                self._improve(tables, self._prefixes(tables))
                near = self.best
            self.improve_around(finest, near)
        self._improve(finest, self._prefixes(finest), whole=True)

    def _prefixes(self, tables: StageTables) -> PrefixBounds:
        return prefix_bounds(tables, self.length_s * (1.0 + SLACK), self.deadline)

    def improve_around(self, tables: StageTables, near: PipelinePlan | None, reach: tuple[int, int] = AROUND) -> None:
        """Go from plan to shorter plan as long as there is one that begins each stage within reach of the last one's.

        Args:
            tables: places where plans may cut.
            near: where to begin; without a plan nothing happens.
            reach: how far around a plan to look, in boundaries of the tables and in devices.

        Raises:
            OutOfTime: the deadline has passed; `best` is what was found by then.
        """
        while near is not None and self._improve(tables, _around(tables, near, reach)):
            near = self.best

    def improve_widely(self, tables: StageTables, near: PipelinePlan) -> None:
        """Take what a local search from a plan on comes to; for large problems, where looking around leads less far.

        Args:
            tables: places where plans may cut, those of the plan among them.
            near: where to begin; it may be longer than the upper bound.
        """
        start = route_of(tables, near, plan_cost(self.problem, near).length_s)
        self._offer(*local_search(tables, self.problem.cluster, start, self.deadline).cuts(tables))

    def _improve(self, tables: StageTables, bounds: PrefixBounds, *, whole: bool = False) -> bool:
        """Search within the bounds; whether a shorter plan than the best so far came out.

        Raises:
            OutOfTime: with a bound on all plans where the bounds leave none out.
        """
        improved = False
        try:
            for cuts, device_cuts in shortest(tables, bounds, self.length_s * (1.0 + SLACK), self.deadline):
                improved |= self._offer(cuts, device_cuts)
        except OutOfTime as stopped:
            raise OutOfTime(stopped.bound_s if whole else 0.0) from None
        return improved

    def _offer(self, cuts: tuple[int, ...], device_cuts: tuple[int, ...]) -> bool:
        """Take a plan if it is shorter than the best so far and fits; whether it is."""
        plan = self._as_plan(cuts, device_cuts)
        cost = plan_cost(self.problem, plan)
        shorter = cost.feasible and cost.length_s < self.length_s * (1.0 - TIE)
        if shorter:
            self.best, self.length_s = plan, cost.length_s
        return shorter

    def _as_plan(self, cuts: tuple[int, ...], device_cuts: tuple[int, ...]) -> PipelinePlan:
        return PipelinePlan(
            cuts=cuts,
            device_cuts=device_cuts,
            micro_batches=self.problem.micro_batches,
            planner=ExactPlanner.name,
            coarse_cuts=self.problem.grid.to_points(cuts),
        )


def is_large(problem: PipelineProblem) -> bool:
    """Whether a problem's stages times devices are more than LARGE."""
    return problem.stages * problem.cluster.devices > LARGE


def _coarser_strides(problem: PipelineProblem) -> list[int]:
    """Powers of STEP down to 2 or more from the power of two that leaves enough segments for the stages."""
    segments = problem.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, 0, -STEP.bit_length() + 1)]


def _around(tables: StageTables, plan: PipelinePlan, reach: tuple[int, int]) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin."""
    stages, devices, end = tables.stages, tables.replicas_in_all, tables.end
    begin = np.full((stages, devices + 1, end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = reach
    for s, (cut, device) in enumerate(zip(plan.cuts, plan.device_cuts, strict=True), start=1):
        k = int(np.searchsorted(tables.boundary, cut + 1))
        some = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, some, max(s, k - by_boundary) : min(end - stages + s, k + by_boundary) + 1] = 0.0
    return PrefixBounds(begin, begin)
