"""A plan is costed once: the costs of one problem's plans, and results that carry them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from automap_models.core.constraints import UNCONSTRAINED
from automap_models.core.result import Bound, Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, frozen_bytes
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.simulate.plan_step import step_cost

LENGTH_ROUNDING = 1e-11
"""Relative error allowed to a computed length; plans whose lengths differ by no more are equally long."""

StagedResult = Result[StagedProblem, StagedPlan]


def plain(problem: StagedProblem) -> StagedProblem:
    """The problem of pipelines alone, which may cut and replicate as they like."""
    if is_plain(problem):
        return problem
    return replace(problem, shardings=(), launch_s=0.0, max_replicas=None, constraints=UNCONSTRAINED)


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
    cost: StagedCost | None
    bound_s: float
    finished: bool


def is_plain(problem: StagedProblem) -> bool:
    """Whether all its plans are pipelines that may cut and replicate as they like."""
    return not problem.shardings and problem.max_replicas is None and problem.constraints.only_work


class Costs:
    """The costs of plans of one problem, each computed once."""

    def __init__(self, problem: StagedProblem) -> None:
        self.problem = problem
        self._cache: dict[tuple[tuple[int, ...], ...], StagedCost] = {}

    def __call__(self, plan: StagedPlan) -> StagedCost:
        """The cost of a valid plan."""
        key = (plan.cuts, plan.device_cuts, plan.shardings)
        if key not in self._cache:
            effort.count(effort.PLAN, self.problem.stages * self.problem.micro_batches)
            self._cache[key] = step_cost(self.problem, plan)
        return self._cache[key]

    def learn(self, plan: StagedPlan, cost: StagedCost) -> None:
        """Remember a cost that was computed elsewhere."""
        self._cache.setdefault((plan.cuts, plan.device_cuts, plan.shardings), cost)


def result_of(
    problem: StagedProblem,
    plan: StagedPlan,
    cost: StagedCost | None = None,
    *,
    begun_s: float,
    status: Status = "feasible",
    bound: Bound | None = None,
) -> StagedResult:
    """A planner's plan with its cost; without a plan where the plan is not valid for the problem, or does not fit.

    Args:
        begun_s: `time.perf_counter()` when planning began.
    """
    valid, objection = plan.check_valid(problem)
    reason: Infeasible | None
    if valid:
        cost = step_cost(problem, plan) if cost is None else cost
        reason = None if cost.feasible else does_not_fit(problem, plan, cost)
    else:
        reason = Infeasible(
            f"the plan that it makes is not allowed: {objection}",
            where=f"planner {plan.planner}",
            do="use `planner='auto'`",
        )
    taken_s = time.perf_counter() - begun_s
    if reason is not None:
        return Result(problem, None, None, "stopped", taken_s=taken_s, reason=reason)
    return Result(problem, plan, cost, status, bound, taken_s=taken_s)


def does_not_fit(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> Infeasible:
    """The error for a plan that does not fit: the fullest stage, what it needs and what would help."""
    stage = cost.fullest
    return Infeasible(
        f"stage {stage} needs {cost.memory_bytes[stage] / 1e9:.1f} GB on each device, "
        f"{untrained_in_words(problem, plan, stage)}"
        f"cluster {problem.cluster.name} has {cost.limit_bytes[stage] / 1e9:.1f} GB",
        where=f"planner {plan.planner}",
        do="try more stages, smaller micro-batches, a smaller `state_factor` or devices with more memory",
    )


def untrained_in_words(problem: StagedProblem, plan: StagedPlan, stage: int) -> str:
    """`137.4 GB of it for what is not trained, `: of a stage's memory; empty where it trains all, nearly."""
    first, last = plan.stage_instructions(len(problem.profile))[stage]
    untrained = f"{frozen_bytes(problem, plan.shardings[stage], slice(first, last + 1)) / 1e9:.1f}"
    return "" if untrained == "0.0" else f"{untrained} GB of it for what is not trained, "
