"""The planner `tables`: plans in milliseconds by compiled tables and beam searches, or under a schedule by moves, too.

    for the length L                        compiled tables and beam searches beside their plans (table_plans)
    for the step under a schedule           the same, then compiled moves (step_plans)

Nothing is learned, and nothing is proven.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import StagedResult, plain, result_of
from automap_models.planners.staged.policy_file import outside

RANGES = {
    "stages": (2.0, 16.0),
    "micro_batches": (1.0, 256.0),
    "nodes": (1.0, 128.0),
    "devices_per_node": (1.0, 16.0),
    "inter_over_intra": (0.005, 1.0),
}
"""The problems on which plans by tables have been measured."""


@dataclass(frozen=True)
class TablesConfig:
    """How widely tables are followed.

    Attributes:
        beam: ends of the first stage from which they are followed, or plans from which moves set out.
        reach: boundaries and devices beside the best plan at which a stage may begin in the end; with 0 it stays.
    """

    beam: int = 4
    reach: int = 8


class TablesPlanner(Planner[StagedProblem, StagedPlan, TablesConfig]):
    """Plans on clusters of equal nodes. Tables know neither shardings nor constraints."""

    name: ClassVar[str] = "tables"
    config_type: ClassVar[type[TablesConfig]] = TablesConfig

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what its plans were measured for; None if none does."""
        return mixed(problem) or outside(problem, RANGES, "the planner was measured")

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The best plan of the tables; it is near the best inside the ranges only (see out_of_range).

        Raises:
            BadInput: the cluster is mixed.
        """
        return self.solve_batch([problem], deadline=deadline, watch=watch)[0]

    def solve_batch(
        self, problems: Sequence[StagedProblem], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[StagedResult]:
        """Best plans of many problems.

        Raises:
            BadInput: one of their clusters is mixed.
        """
        begun_s = time.perf_counter()
        for problem in problems:
            problem.cluster.require_uniform("the planner by tables")
        results = []
        for number, problem in enumerate(problems):
            watch(Progress(f"planning {len(problems)} problem(s) by tables", number, len(problems)))
            results.append(late(problem, self.name) if deadline.passed else self._solved(problem, begun_s))
        return results

    def _solved(self, problem: StagedProblem, begun_s: float) -> StagedResult:
        if problem.stages == 1:
            plan = StagedPlan((), (), problem.micro_batches, self.name, ())
        elif problem.schedule is None:  # numba takes half a second
            from automap_models.planners.staged.table_plans import table_plans

            plan = table_plans(plain(problem), self.config.beam, self.config.reach, self.name)[0]
        else:
            from automap_models.planners.staged.step_plans import step_plan

            plan = step_plan(plain(problem), self.config.beam, self.config.reach, self.name)
        return result_of(problem, plan, begun_s=begun_s)


def mixed(problem: StagedProblem) -> str | None:
    """That a cluster has nodes of different kinds; None where it has not."""
    if problem.cluster.is_uniform:
        return None
    return f"cluster {problem.cluster.name} is mixed, and the planner is for clusters of equal nodes"


def late(problem: StagedProblem, planner: str) -> StagedResult:
    """That there was no time for a problem."""
    late = Infeasible("the time was up before it was asked", where=f"planner {planner}", do="allow more time")
    return Result(problem, None, None, "stopped", reason=late)
