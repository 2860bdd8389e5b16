"""The planner `tables`: plans in milliseconds by compiled tables, moves from their plans, and a look at what is left.

Nothing is learned, and nothing is proven.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import StagedResult, result_of

LOOK_S = 0.3
"""Counted seconds of branch and bound behind the moves, at most: it mostly ends after a twentieth of that."""


@dataclass(frozen=True)
class TablesConfig:
    """How widely tables are followed.

    Attributes:
        beam: plans from which moves set out.
    """

    beam: int = 4


class TablesPlanner(Planner[StagedProblem, StagedPlan, TablesConfig]):
    """Plans of tables (bottleneck), made shorter by moves and branch and bound (search) in little time."""

    name: ClassVar[str] = "tables"
    config_type: ClassVar[type[TablesConfig]] = TablesConfig

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The best plan found in little time.

        Raises:
            BadInput: the problem's constraints contradict one another, or leave no way to share out the devices.
        """
        begun_s = time.perf_counter()
        watch(Progress("planning by tables and moves"))
        if deadline.passed:
            return late(problem, self.name)
        from automap_models.planners.staged.search import anytime_search  # numba takes half a second to import

        look = deadline.part(LOOK_S, effort.counted_s)
        search = anytime_search(problem, look, count=self.config.beam)
        if search.plan is not None:
            return result_of(problem, replace(search.plan, planner=self.name), search.cost, begun_s=begun_s)
        from automap_models.planners.staged.feasibility import out_of_memory

        return Result(problem, None, None, "stopped", reason=out_of_memory(problem))


def late(problem: StagedProblem, planner: str) -> StagedResult:
    """That there was no time for a problem."""
    late = Infeasible("the time was up before it was asked", where=f"planner {planner}", do="allow more time")
    return Result(problem, None, None, "stopped", reason=late)
