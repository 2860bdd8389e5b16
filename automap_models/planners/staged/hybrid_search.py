"""The best hybrid plan: over every instruction cut on the grid, every device cut and every way of each stage.

It is the label search of planners.staged.exact with stages that choose among ways: suffixes in different ways that
begin a stage at the same boundary on the same devices compete, as what comes before does not depend on the way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from automap_models.core.constraints import Constraints
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.staged.constrained_tables import ConstrainedTables
from automap_models.planners.staged.feasibility import chain_exists
from automap_models.planners.staged.grid_search import GridSearch, SearchResult
from automap_models.planners.staged.relaxation import least_length_s
from automap_models.planners.staged.stage_tables import StageTables


def hybrid_search(
    problem: StagedProblem,
    deadline: Deadline,
    upper_bound_s: float | None = None,
    start: StagedPlan | None = None,
    constraints: Constraints | None = None,
) -> SearchResult:
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
    search = HybridSearch(made, deadline, np.inf if upper_bound_s is None else upper_bound_s)
    try:
        search.run(start)
    except OutOfTime as stopped:
        return SearchResult(search.best, stopped.bound_s, finished=False)
    best = search.best
    if best is not None:
        best = replace(best, optimality=Bound(search.length_s, "exact"))
    return SearchResult(best, search.length_s, finished=True)


class HybridSearch(GridSearch):
    """The search for hybrids that satisfy constraints."""

    def __init__(self, made: ConstrainedTables, deadline: Deadline, upper_bound_s: float) -> None:
        super().__init__(made.problem, deadline, upper_bound_s)
        self.made = made

    def tables(self, stride: int = 1) -> StageTables:
        """Where plans may cut, at one of so many points of the grid and where the constraints need it."""
        return self.made.tables(stride)

    def length_of(self, plan: StagedPlan) -> float:
        """Its length by cost.staged, infinite if it does not fit."""
        cost = plan_cost(self.problem, plan)
        return cost.length_s if cost.feasible else np.inf

    def run(self, start: StagedPlan | None) -> None:
        """Find the optimum if it is shorter than the upper bound.

        Raises:
            OutOfTime: with what is proven by then.
        """
        finest = self.tables()
        if not chain_exists(finest, np.inf, finest.memory):
            return
        try:
            self._begin(finest, start)
        except OutOfTime:  # what that proves is about some of the plans only
            raise self._stopped(finest, 0.0) from None
        try:
            self.whole(finest)
        except OutOfTime as stopped:
            raise self._stopped(finest, stopped.bound_s) from None

    def _stopped(self, finest: StageTables, bound_s: float) -> OutOfTime:
        """With the better of two bounds on all plans."""
        return OutOfTime(min(max(bound_s, least_length_s(finest, self.deadline)), self.length_s))

    def _begin(self, finest: StageTables, start: StagedPlan | None) -> None:
        """Find good plans: near the one to start from, or where there is none near the optima of coarser grids."""
        self.improve_around(finest, start)
        if self.best is None and (start is None or self.length_s == np.inf):
            self.coarse_to_fine(finest)
