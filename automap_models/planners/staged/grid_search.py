"""Searches on a grid of cuts that go from plan to shorter plan: what those of pipelines and of hybrids share.

The label search (label_setting) finds the shortest plans within bounds, the faster the shorter the plans known are.
So good plans come first: around one that is known, or around the optima of coarser grids, each level beginning with the
length that the one before it reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.deadline import Deadline
from automap_models.planners.staged.label_setting import SLACK, shortest
from automap_models.planners.staged.relaxation import PrefixBounds, prefix_bounds
from automap_models.planners.staged.stage_tables import StageTables

TIE = 1e-11
"""Plans whose lengths differ relatively by no more are equally long."""
COARSEST = 8
"""Fewest segments of a coarse search."""
STEP = 4
"""How much finer each level is than the one before it."""
AROUND = (3, 2)
"""How far around a plan on the grid to look for a better one: boundaries, devices."""


@dataclass(frozen=True)
class SearchResult:
    """What a search with a deadline found out.

    Attributes:
        plan: the shortest plan found, if it is shorter than the upper bound given: the optimum of a finished search.
        bound_s: no plan on the grid is shorter; a finished search gives the optimum, or the upper bound where no
            plan is shorter than that, which is infinite where nothing fits the memory.
        finished: whether the search came to its end.
    """

    plan: StagedPlan | None
    bound_s: float
    finished: bool


class GridSearch(ABC):
    """A search for plans of one problem that are shorter than an upper bound.

    Attributes:
        best: the shortest plan found so far, if it is shorter than the upper bound.
        length_s: its length, or the upper bound.
    """

    def __init__(self, problem: StagedProblem, deadline: Deadline, upper_bound_s: float) -> None:
        self.problem, self.deadline, self.length_s = problem, deadline, upper_bound_s
        self.best: StagedPlan | None = None

    @abstractmethod
    def tables(self, stride: int = 1) -> StageTables:
        """Where plans may cut, at one of so many points of the grid."""

    @abstractmethod
    def length_of(self, plan: StagedPlan) -> float:
        """Its length, infinite if it does not fit."""

    def whole(self, finest: StageTables) -> None:
        """Find the optimum on these tables if it is shorter than the best so far.

        Raises:
            OutOfTime: with a bound on all plans on the tables.
        """
        self.improve(finest, prefix_bounds(finest, self.length_s * (1.0 + SLACK), self.deadline))

    def coarse_to_fine(self, finest: StageTables, near: StagedPlan | None = None) -> None:
        """Find the optima of coarser grids and what is near them on the finest one; begin near a plan, if there is one.

        Raises:
            OutOfTime: the deadline has passed; the bound says nothing about all plans.
        """
        for stride in _coarser_strides(self.problem):
            tables = self.tables(stride)
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
        while near is not None and self.improve(tables, _around(tables, near, reach)):
            near = self.best

    def improve(self, tables: StageTables, bounds: PrefixBounds) -> bool:
        """Search within the bounds; whether a shorter plan than the best so far came out.

        Raises:
            OutOfTime: with a bound on all plans within the bounds.
        """
        improved = False
        for plan in shortest(tables, bounds, self.length_s * (1.0 + SLACK), self.deadline):
            improved |= self.offer(plan)
        return improved

    def offer(self, plan: StagedPlan) -> bool:
        """Take a plan if it is shorter than the best so far and fits; whether it is."""
        length_s = self.length_of(plan)
        shorter = length_s < self.length_s * (1.0 - TIE)
        if shorter:
            self.best = replace(plan, coarse_cuts=self.problem.grid.to_points(plan.cuts))
            self.length_s = length_s
        return shorter


def _coarser_strides(problem: StagedProblem) -> list[int]:
    """Powers of STEP down to 2 or more from the power of two that leaves enough segments for the stages."""
    segments = problem.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, 0, -STEP.bit_length() + 1)]


def _around(tables: StageTables, plan: StagedPlan, reach: tuple[int, int]) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin."""
    stages, devices = tables.stages, tables.replicas_in_all
    begin = np.full((stages, devices + 1, tables.end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = reach
    for s, (cut, device) in enumerate(zip(plan.cuts, plan.device_cuts, strict=True), start=1):
        k, (first, last) = int(np.searchsorted(tables.boundary, cut + 1)), tables.windows[s]
        near = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, near, max(first, k - by_boundary) : max(0, min(last, k + by_boundary) + 1)] = 0.0
    return PrefixBounds(begin, begin)
