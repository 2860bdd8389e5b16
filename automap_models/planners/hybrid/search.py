"""The best hybrid plan: over every instruction cut on the grid, every device cut and every way of each stage.

It is the label search of planners.pipeline.exact with stages that choose among ways: suffixes in different ways that
begin a stage at the same boundary on the same devices compete, as what comes before does not depend on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.constraints import Constraints
from automap_models.core.hybrid import HybridPlan, HybridProblem
from automap_models.core.plan import Optimality, PipelinePlan
from automap_models.cost.hybrid import hybrid_cost
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.hybrid.tables import ConstrainedTables
from automap_models.planners.pipeline.chains import chain_exists
from automap_models.planners.pipeline.labels import SLACK, Found, shortest_in_ways
from automap_models.planners.pipeline.relaxation import PrefixBounds, least_length_s, prefix_bounds
from automap_models.planners.pipeline.stage_tables import StageTables

PLANNER = "exact"
TIE = 1e-11
"""Plans whose lengths differ relatively by no more are equally long."""
COARSEST = 8
"""Fewest segments of a coarse search."""
STEP = 4
"""How much finer each level is than the one before it."""
AROUND = (3, 2)
"""How far around a plan on the grid to look for a better one: boundaries, devices."""


@dataclass(frozen=True)
class HybridSearchResult:
    """What a search with a deadline found out.

    Attributes:
        plan: the shortest plan found, if it is shorter than the upper bound given: the optimum of a finished search.
        bound_s: no plan is shorter; a finished search gives the optimum, or the upper bound where no plan is shorter
            than that, which is infinite where nothing fits the memory.
        finished: whether the search came to its end.
    """

    plan: HybridPlan | None
    bound_s: float
    finished: bool


def hybrid_search(
    problem: HybridProblem,
    deadline: Deadline,
    upper_bound_s: float | None = None,
    start: HybridPlan | None = None,
    constraints: Constraints | None = None,
) -> HybridSearchResult:
    """The shortest plan that fits the memory and satisfies the constraints, or what is known when the time is up.

    Plans cut on the problem's grid, and where the ends of the constraints' windows lie.

    Args:
        problem: what is asked.
        deadline: when to stop.
        upper_bound_s: only shorter plans are of interest (by more than TIE, relatively).
        start: a plan; better ones are first looked for around it.
        constraints: what plans have to satisfy.

    Raises:
        BadInput: the constraints contradict one another, or leave nothing.
    """
    made = ConstrainedTables(problem, constraints or Constraints())
    search = _Search(made, deadline, np.inf if upper_bound_s is None else upper_bound_s)
    try:
        search.run(start)
    except OutOfTime as stopped:
        return HybridSearchResult(search.best, stopped.bound_s, finished=False)
    best = search.best
    if best is not None:
        best = replace(best, pipeline=replace(best.pipeline, optimality=Optimality(search.length_s, "exact")))
    return HybridSearchResult(best, search.length_s, finished=True)


class _Search:
    """Coarse to fine, each level starting from the length that the one before it reached.

    Attributes:
        best: the shortest plan found so far, if it is shorter than the upper bound.
        length_s: its length, or the upper bound.
    """

    def __init__(self, made: ConstrainedTables, deadline: Deadline, upper_bound_s: float) -> None:
        self.made, self.problem, self.deadline, self.length_s = made, made.problem, deadline, upper_bound_s
        self.best: HybridPlan | None = None

    def run(self, start: HybridPlan | None) -> None:
        """Find the optimum if it is shorter than the upper bound.

        Raises:
            OutOfTime: with what is proven by then.
        """
        finest = self.made.tables()
        if not chain_exists(finest, np.inf, finest.memory):
            return
        try:
            self._begin(finest, start)
        except OutOfTime:  # what that proves is about some of the plans only
            raise self._stopped(finest, 0.0) from None
        try:
            self._improve(finest, prefix_bounds(finest, self.length_s * (1.0 + SLACK), self.deadline))
        except OutOfTime as stopped:
            raise self._stopped(finest, stopped.bound_s) from None

    def _stopped(self, finest: StageTables, bound_s: float) -> OutOfTime:
        """With the better of two bounds on all plans."""
        return OutOfTime(min(max(bound_s, least_length_s(finest, self.deadline)), self.length_s))

    def _begin(self, finest: StageTables, start: HybridPlan | None) -> None:
        """Find good plans: near the one to start from, or where there is none near the optima of coarser grids."""
        self._improve_around(finest, start)
        if self.best is None and (start is None or self.length_s == np.inf):
            self._coarse_to_fine(finest)

    def _coarse_to_fine(self, finest: StageTables) -> None:
        """Optima of coarser grids, and what is near them on the finest one."""
        for stride in _coarser_strides(self.problem):
            tables = self.made.tables(stride)
            self._improve_around(tables, self.best)
            self._improve(tables, prefix_bounds(tables, self.length_s * (1.0 + SLACK), self.deadline))
        self._improve_around(finest, self.best)

    def _improve_around(self, tables: StageTables, near: HybridPlan | None) -> None:
        """Go from plan to shorter plan as long as there is one that begins each stage near where the last one does."""
        while near is not None and self._improve(tables, _around(tables, near)):
            near = self.best

    def _improve(self, tables: StageTables, bounds: PrefixBounds) -> bool:
        """Search within the bounds; whether a shorter plan than the best so far came out."""
        improved = False
        for found in shortest_in_ways(tables, bounds, self.length_s * (1.0 + SLACK), self.deadline):
            plan = self._as_plan(found)
            length_s = hybrid_cost(self.problem, plan).length_s
            if length_s < self.length_s * (1.0 - TIE):
                self.best, self.length_s, improved = plan, length_s, True
        return improved

    def _as_plan(self, found: Found) -> HybridPlan:
        pipeline = PipelinePlan(
            cuts=found.cuts,
            device_cuts=found.device_cuts,
            micro_batches=self.problem.pipeline.micro_batches,
            planner=PLANNER,
            coarse_cuts=self.problem.pipeline.grid.to_points(found.cuts),
        )
        return HybridPlan(pipeline, found.ways)


def _coarser_strides(problem: HybridProblem) -> list[int]:
    """Powers of STEP down to 2 or more from the power of two that leaves enough segments for the stages."""
    segments = problem.pipeline.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.pipeline.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, 0, -STEP.bit_length() + 1)]


def _around(tables: StageTables, plan: HybridPlan) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin, whatever their ways."""
    stages, devices = tables.stages, tables.replicas_in_all
    begin = np.full((stages, devices + 1, tables.end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = AROUND
    for s, (cut, device) in enumerate(zip(plan.pipeline.cuts, plan.pipeline.device_cuts, strict=True), start=1):
        k, (first, last) = int(np.searchsorted(tables.boundary, cut + 1)), tables.windows[s]
        near = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, near, max(first, k - by_boundary) : max(0, min(last, k + by_boundary) + 1)] = 0.0
    return PrefixBounds(begin, begin)
