"""The default planner: the policy's plans, held against uniform cuts and data parallelism; the best that fits.

It is the portfolio over pipelines and data parallelism (planners.portfolio.competition). Where the policy is not made
for a problem the exact planner takes its place (formats.md, "Commands").
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from automap_models.core.schedules import DEFAULT_MIN_GAIN, require_gain
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.units import counted
from automap_models.cost.staged import StagedCost
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Watch
from automap_models.planners.portfolio.competition import Budget, Makers, compete
from automap_models.planners.portfolio.regroup import merges
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import StagedResult
from automap_models.planners.staged.policy import PolicyConfig
from automap_models.simulate.step import step_cost


@dataclass(frozen=True)
class AutoConfig:
    """How the default planner spends its time.

    Attributes:
        policy: policy file; None is the shipped one.
        beam: first decisions from which the policy goes on greedily; 1 is plain greedy.
        certify_s: counted seconds (planners.effort) to prove a plan of one problem optimal, or to correct it; under a
            schedule as much goes to finding good plans before, for each problem. Several problems share a few times as
            much.
        refine_s: counted seconds to move the cuts of one plan by single instructions; 0 leaves them on the grid.
        min_gain: how much shorter, relatively, a further stage has to make the step under a schedule.

    Raises:
        BadInput: the gain is below 0 or above 1.
    """

    policy: Path | None = None
    beam: int = 4
    certify_s: float = 0.3
    refine_s: float = 0.1
    min_gain: float = DEFAULT_MIN_GAIN

    def __post_init__(self) -> None:
        require_gain(self.min_gain)


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
        budget = Budget(config.certify_s, config.refine_s)
        space = PlanningSpace.of(problem) if isinstance(problem, StagedProblem) else problem
        # Without a schedule problems outside the policy's ranges are left out where there are many others.
        several = len(space.stage_numbers) > 2 or space.global_batch is not None
        out_of_range = self._makers.policy.out_of_range if several and space.schedule is None else None
        competition = space.pipelines(out_of_range)
        problems = (problem,) if isinstance(problem, StagedProblem) else competition.problems
        min_gain = config.min_gain if space.schedule is not None else 0.0
        result = compete(problems, self._makers, budget, deadline, watch, min_gain)
        notes = result.notes
        if competition.left_out:
            left = counted(competition.left_out, "combination")
            notes = (*notes, f"{left} of stages and micro-batches not tried: {competition.reason}")
        if min_gain and len(space.stage_numbers) == 1:
            notes = (*notes, *which_stage_gains_nothing(result, self._makers, budget, deadline, min_gain))
        return replace(result, notes=notes, taken_s=time.perf_counter() - begun_s)


def which_stage_gains_nothing(
    result: StagedResult, makers: Makers, budget: Budget, deadline: Deadline, min_gain: float
) -> Iterator[str]:
    """Which stage of a plan could be left out, where the number of its stages is given; at most one sentence.

    A stage is merged with a neighbour, whose devices it brings along. Where the step of all such plans is longer by
    more than `min_gain`, the problem with one stage fewer is planned anew.
    """
    problem, plan = result.problem, result.plan
    if (
        plan is None
        or plan.stages == 1
        or any(plan.shardings)
        or (problem.constraints.equal_replicas and problem.cluster.devices > 1)
    ):
        return
    fewer, limit_s = replace(problem, stages=plan.stages - 1), result.cost.step_s * (1.0 + min_gain)
    plans = enumerate(merges(fewer, problem, plan))
    merged = [(cost.step_s, s) for s, one in plans if (cost := _cost_that_fits(fewer, one)) is not None]
    best_s, at = min(merged, default=(math.inf, 0))
    load = (result.cost.forward_s + result.cost.backward_s) * np.diff([0, *plan.device_cuts, problem.cluster.devices])
    idle, other = (at, at + 1) if load[at] <= load[at + 1] else (at + 1, at)
    if best_s <= limit_s:
        yield f"stage {idle} gains nothing: merged with stage {other}, {_step_in_words(best_s, result.cost.step_s)}"
    elif plan.stages > 2:
        planned = compete([fewer], makers, budget, deadline)
        if planned.plan is not None and planned.cost.step_s <= limit_s:
            words = _step_in_words(planned.cost.step_s, result.cost.step_s)
            which = f", stage {idle} gains least" if merged else ""
            yield f"one stage gains nothing{which}: with {fewer.stages} stages {words}"


def _cost_that_fits(problem: StagedProblem, plan: StagedPlan) -> StagedCost | None:
    """The cost of a plan; None where it is not allowed or does not fit."""
    if not plan.check_valid(problem)[0]:
        return None
    cost = step_cost(problem, plan)
    return cost if cost.feasible else None


def _step_in_words(step_s: float, before_s: float) -> str:
    change = 100 * (step_s / before_s - 1)
    return (
        "the step takes as long"
        if abs(change) < 0.005
        else f"the step is {abs(change):.2g} % " + ("longer" if change > 0 else "shorter")
    )
