"""The true optimum over every instruction cut on the grid and every device cut, by a label search.

From the back, with T(s) and R(s) the span and the exposed all-reduce of the stages s … S-1 alone,

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0) (cost-model.md). Both never fall when T(s+1) or R(s+1) rises, so of two suffixes that begin
stage s at the same boundary on the same devices a … q-1 one with both numbers no smaller can be dropped. Suffixes
are shared: the search runs over (stage, boundary, first device, end device), never over tuples of device cuts.

A known length U prunes it: a suffix dies when it and the least that must come before it (relaxation.prefix_bounds)
reach beyond U. U comes from the same search around a plan known beforehand, or on every 2^j-th cut point and around
the plan found there; on large problems from a local search (planners.staged.local_search).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.base import PipelinePlanner
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.staged.beam_search import route_of
from automap_models.planners.staged.grid_search import GridSearch, SearchResult
from automap_models.planners.staged.label_setting import PLANNER
from automap_models.planners.staged.local_search import local_search
from automap_models.planners.staged.relaxation import lower_bound_s, out_of_memory
from automap_models.planners.staged.stage_tables import StageTables, coarse_cuts, stage_tables

__all__ = ["ExactPlanner", "PipelineSearch", "anytime_search", "exact_search", "lower_bound_s"]

LARGE = 256
"""Problems of more stages times devices are large: 8 stages on more than 32 devices. Their whole grid can hardly be
searched in the time that people wait."""


class ExactPlanner(PipelinePlanner):
    """The shortest plan of S stages on the grid, proven."""

    name: ClassVar[str] = "exact"

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """The optimum over every cut on the grid and every device cut, among plans that fit the memory.

        Raises:
            Infeasible: none fits; saying what the best-packed plan would need.
        """
        plan = exact_search(problem)
        if plan is None:
            raise out_of_memory(problem)
        return plan


def exact_search(problem: StagedProblem, upper_bound_s: float | None = None) -> StagedPlan | None:
    """The optimum, or None when no plan that fits is shorter than the bound (by more than TIE, relatively).

    With the length of a known plan as the bound, None proves that plan optimal; without a bound None says that
    no plan fits the memory. The length is that of cost.staged.
    """
    return anytime_search(problem, Deadline(), upper_bound_s).plan


def anytime_search(
    problem: StagedProblem,
    deadline: Deadline,
    upper_bound_s: float | None = None,
    start: StagedPlan | None = None,
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
    search = PipelineSearch(problem, deadline, np.inf if upper_bound_s is None else upper_bound_s)
    try:
        search.run(start, far=far)
    except OutOfTime as stopped:
        return SearchResult(search.best, stopped.bound_s, finished=False)
    best = search.best and replace(search.best, optimality=Bound(search.length_s, "exact"))
    return SearchResult(best, search.length_s, finished=True)


class PipelineSearch(GridSearch):
    """The search for pipelines."""

    def tables(self, stride: int = 1) -> StageTables:
        """Where plans may cut, at one of so many points of the grid."""
        return stage_tables(self.problem, coarse_cuts(self.problem, stride))

    def length_of(self, plan: StagedPlan) -> float:
        """Its length by cost.staged, infinite if it does not fit."""
        cost = plan_cost(self.problem, plan)
        return cost.length_s if cost.feasible else np.inf

    def run(self, start: StagedPlan | None, *, far: bool = False) -> None:
        """Find the optimum if it is shorter than the upper bound; see anytime_search.

        Raises:
            OutOfTime: with what the search of the whole grid has proven by then.
        """
        finest = self.tables()
        try:
            self._begin(finest, start, far=far)
        except OutOfTime:  # what that proves is about some of the plans only
            raise OutOfTime from None
        self.whole(finest)

    def _begin(self, finest: StageTables, start: StagedPlan | None, *, far: bool) -> None:
        """Find good plans: near the one to start from, or where there is none near the optima of coarser grids."""
        if start is not None and is_large(self.problem):
            self.improve_widely(finest, start)
        elif start is not None:
            self.improve_around(finest, start)
        if start is None or (far and not is_large(self.problem)):
            self.coarse_to_fine(finest, self.best or start)

    def improve_widely(self, tables: StageTables, near: StagedPlan) -> None:
        """Take what a local search from a plan on comes to; for large problems, where looking around leads less far.

        Args:
            tables: places where plans may cut, those of the plan among them.
            near: where to begin; it may be longer than the upper bound.
        """
        start = route_of(tables, near, plan_cost(self.problem, near).length_s)
        cuts = local_search(tables, self.problem.cluster, start, self.deadline).cuts(tables)
        self.offer(StagedPlan(*cuts, self.problem.micro_batches, PLANNER))


def is_large(problem: StagedProblem) -> bool:
    """Whether a problem's stages times devices are more than LARGE."""
    return problem.stages * problem.cluster.devices > LARGE
