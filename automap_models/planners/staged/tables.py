"""The planner `tables`: a plan in milliseconds by a compiled table, moves from it, and a look at what is left.

Nothing is learned, and nothing is proven.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Planner, Progress, Watch
from automap_models.planners.staged.costs import StagedResult, result_of


class TablesPlanner(Planner[StagedProblem, StagedPlan, NoConfig]):
    """The plan of a table (bottleneck), made shorter by moves and branch and bound (search) in little time."""

    name: ClassVar[str] = "tables"

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The best plan found in little time.

        Raises:
            BadInput: the problem's constraints contradict one another, or leave no way to share out the devices.
        """
        begun_s = time.perf_counter()
        watch(Progress("planning by tables and moves"))
        if deadline.passed:
            return late(problem, self.name)
        from automap_models.planners.staged.search import LOOK_S, anytime_search  # numba takes half a second to import

        search = anytime_search(problem, deadline.part(LOOK_S, effort.counted_s))
        if search.plan is not None:
            return result_of(problem, replace(search.plan, planner=self.name), search.cost, begun_s=begun_s)
        from automap_models.planners.staged.feasibility import out_of_memory

        return Result(problem, None, None, "stopped", reason=out_of_memory(problem))


def late(problem: StagedProblem, planner: str) -> StagedResult:
    """That there was no time for a problem."""
    late = Infeasible("the time was up before it was asked", where=f"planner {planner}", do="allow more time")
    return Result(problem, None, None, "stopped", reason=late)
