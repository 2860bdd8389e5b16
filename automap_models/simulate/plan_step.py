"""What a plan costs with the step that is simulated: the one number that plans are compared by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from automap_models.core.passes import build_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.simulate.engine import Timeline, simulate
from automap_models.simulate.rounds import PlanTimes, plan_steps, tied_arrays


def timeline(cost: StagedCost, micro_batches: int, schedule: str) -> Timeline:
    """One simulated global batch of a plan of that cost, under a schedule of `core.schedules.WARM_UPS`.

    The number of micro-batches that a stage holds, and so its memory, is that of the schedule that the cost is of.
    """
    orders = build_schedule(schedule, cost.forward_s.size, micro_batches)
    return simulate(*cost.as_tuple(), orders, cost.exposed_s, cost.update_s, cost.tied)


def step_cost(problem: StagedProblem, plan: StagedPlan, idle: Collection[int] | None = None) -> StagedCost:
    """The cost of a structurally valid plan (cost.staged.plan_cost), simulated where the problem has a schedule."""
    cost = plan_cost(problem, plan, idle)
    if problem.schedule is None:
        return cost
    return replace(cost, simulated_s=step_under(problem.schedule, cost, plan.micro_batches))


def step_under(schedule: str, cost: StagedCost, micro_batches: int) -> float:
    """The step of a plan of that cost under a schedule, which is how long its timeline is."""
    times = PlanTimes(
        *(row[None] for row in (cost.forward_s, cost.backward_s, cost.transfer_s, cost.exposed_s, cost.update_s))
    )
    (step_s,) = plan_steps(schedule, micro_batches, times, *tied_arrays(cost.tied, cost.forward_s.size))
    return float(step_s)
