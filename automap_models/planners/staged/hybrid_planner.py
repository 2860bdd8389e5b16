"""The exact hybrid planner behind the one interface."""

from __future__ import annotations

from typing import ClassVar

from automap_models.core.constraints import Constraints
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners.base import OptionsPlanner
from automap_models.planners.deadline import Deadline
from automap_models.planners.staged.constrained_tables import ConstrainedTables
from automap_models.planners.staged.feasibility import best_packed
from automap_models.planners.staged.hybrid_search import hybrid_search


class ExactHybridPlanner(OptionsPlanner[StagedProblem, StagedPlan]):
    """The shortest hybrid plan of S stages on the grid, proven; with a time limit, the shortest found until then."""

    name: ClassVar[str] = "exact"

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """The optimum over every cut on the grid, every device cut and every way, among plans that fit the memory.

        Raises:
            Infeasible: none fits, saying which stage of the best-packed plan needs how much; or none was found in time.
        """
        limit_s = self.options.time_limit_s
        result = hybrid_search(problem, Deadline() if limit_s is None else Deadline(limit_s))
        if result.plan is not None:
            return result.plan
        if not result.finished:
            raise Infeasible(
                f"found no plan in {limit_s:g} s", where=f"planner {self.name}", do="allow more time: --time-limit"
            )
        raise nothing_fits(problem)


def nothing_fits(problem: StagedProblem, constraints: Constraints | None = None) -> Infeasible:
    """The error for a problem none of whose plans fits, saying what the fullest stage of the best-packed one needs."""
    pipeline = problem
    fullest = best_packed(ConstrainedTables(problem, constraints or Constraints()).tables())
    return Infeasible(
        f"none of the plans of {pipeline.stages} stage(s) fits the {pipeline.cluster.memory / 1e9:.3g} GB of cluster "
        f"{pipeline.cluster.name}: in the best-packed one stage {fullest.stage} needs {fullest.nbytes / 1e9:.3g} GB on "
        f"each device for instructions {fullest.first}…{fullest.last}",
        where="hybrid planner",
        do="try more stages, smaller micro-batches, more ways to partition operators or devices with more memory",
    )
