"""The default planner: the policy's plans, held against uniform cuts and data parallelism; the best that fits.

It is the portfolio over pipelines and data parallelism (planners.portfolio.competition). Where the policy is not made
for a problem the exact planner takes its place (formats.md, "Commands").
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Watch
from automap_models.planners.portfolio.competition import Budget, Makers, compete
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import StagedResult
from automap_models.planners.staged.policy import PolicyConfig


@dataclass(frozen=True)
class AutoConfig:
    """How the default planner spends its time.

    Attributes:
        policy: policy file; None is the shipped one.
        beam: first decisions from which the policy goes on greedily; 1 is plain greedy.
        certify_s: how long it may take to prove the plan optimal, or to correct it, seconds.
        refine_s: how long it may take to move the cuts by single instructions; 0 leaves them on the grid.
        schedule: whose simulated length that shall shorten; None is the length L.
    """

    policy: Path | None = None
    beam: int = 4
    certify_s: float = 0.3
    refine_s: float = 0.1
    schedule: str | None = None


class AutoPlanner(Planner[StagedProblem | PlanningSpace, StagedPlan, AutoConfig]):
    """The best plan of one problem, or of all pipelines and plain data parallelism in a planning space.

    Its search log says what became of every number of stages and micro-batches (SearchLogEntry), its bound is about
    the plans of all of them, and its plan is named after the planner that made it.

    Args:
        makers: planners whose plans compete; None for the usual ones.
    """

    name: ClassVar[str] = "auto"
    config_type: ClassVar[type[AutoConfig]] = AutoConfig

    def __init__(self, config: AutoConfig | None = None, makers: Makers | None = None) -> None:
        super().__init__(config)
        self._makers = makers or Makers.with_policy(PolicyConfig(self.config.policy, self.config.beam))

    def solve(
        self, problem: StagedProblem | PlanningSpace, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> StagedResult:
        """The best of the policy's plans, uniform cuts, data parallelism and what the exact search makes of them.

        Args:
            problem: one problem, or a space: then the problem of the result is the one chosen.
            deadline: when to stop with the best plan so far.
            watch: is told how far it is.

        Raises:
            BadInput: the space's batch is too small for its cluster.
        """
        begun_s, config = time.perf_counter(), self.config
        budget = Budget(config.certify_s, config.refine_s, config.schedule)
        if isinstance(problem, StagedProblem):
            result = compete([problem], self._makers, budget, deadline, watch)
            return replace(result, taken_s=time.perf_counter() - begun_s)
        # A single pair of stages and micro-batches outside the policy's ranges is left to the exact planner.
        several = len(problem.stage_numbers) > 2 or problem.global_batch is not None
        competition = problem.pipelines(self._makers.policy.out_of_range if several else None)
        result = compete(competition.problems, self._makers, budget, deadline, watch)
        notes = result.notes
        if competition.left_out:
            note = f"{competition.left_out} combination(s) of stages and micro-batches not tried: {competition.why}"
            notes = (*notes, note)
        return replace(result, notes=notes, taken_s=time.perf_counter() - begun_s)
