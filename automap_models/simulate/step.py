"""What a plan costs with the step that is simulated: the one number that plans are compared by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from automap_models.core.schedules import build_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.simulate.batch import simulate_batch
from automap_models.simulate.engine import Timeline, simulate

MANY = 32
"""With more micro-batches than that a step is not simulated pass by pass: its middle repeats itself."""


def timeline(cost: StagedCost, micro_batches: int, schedule: str) -> Timeline:
    """One simulated global batch of a plan of that cost, under a schedule of `core.pass_orders.WARM_UPS`.

    The number of micro-batches that a stage holds, and so its memory, is that of the schedule that the cost is of.
    """
    orders = build_schedule(schedule, cost.forward_s.size, micro_batches)
    return simulate(*cost.as_tuple(), orders, cost.buckets, cost.shares_link, cost.tied)


def step_cost(problem: StagedProblem, plan: StagedPlan, idle: Collection[int] | None = None) -> StagedCost:
    """The cost of a structurally valid plan (cost.staged.plan_cost), simulated where the problem has a schedule."""
    cost = plan_cost(problem, plan, idle)
    if problem.schedule is None:
        return cost
    if plan.micro_batches > MANY:
        return replace(cost, simulated_s=_step_s(cost, plan, problem.schedule))
    return replace(cost, simulated_s=timeline(cost, plan.micro_batches, problem.schedule).length_s)


def _step_s(cost: StagedCost, plan: StagedPlan, schedule: str) -> float:
    """The length of the timeline to rounding, without a timeline."""
    times = (cost.forward_s[None], cost.backward_s[None], cost.transfer_s[None])
    gradients = np.zeros((2, 1, plan.stages, max(map(len, cost.buckets), default=0) or 1))
    for s, buckets in enumerate(cost.buckets):
        if buckets:
            gradients[:, 0, s, : len(buckets)] = np.array(buckets).T
    tied_s = np.array([[tied.sum_s for tied in cost.tied]])
    holds = np.array([[[s in tied.stages for s in range(plan.stages)] for tied in cost.tied]], dtype=bool)
    ready_s, all_reduce_s = gradients
    steps = simulate_batch(
        *times,
        plan.micro_batches,
        schedule,
        ready_s=ready_s,
        all_reduce_s=all_reduce_s,
        shares_link=[cost.shares_link],
        tied_s=tied_s if cost.tied else None,
        tied_stages=holds if cost.tied else None,
    )
    return float(steps[0])
