"""What a plan costs on devices of unequal speed.

The cost model has equal devices and splits every micro-batch evenly over a stage's replicas (cost-model.md). With
devices of unequal speed the stage waits for its slowest replica, so that slow replicas are worth keeping only as long
as they are not much slower than the rest: the stage works with the j fastest of its devices, j chosen so that it is
done first, and the others stand idle:

    seconds per second of profile on stage s = min over j of (j-th smallest slowdown) / j

Transfers and all-reduces are those of all its devices, idle ones included. Memory is that of the replicas that work.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.memory import stage_memory_bytes
from automap_models.cost.staged import StagedCost, plan_cost, span_and_length
from automap_models.planners.staged.pareto import IntArray


@dataclass(frozen=True, eq=False)
class StageRates:
    """How fast a stage on positions a … q-1 works, for every a < q.

    Attributes:
        rate: [D+1, D+1] its seconds per second of profile; inf for a ≥ q.
        replicas: [D+1, D+1] how many of its devices work; 1 for a ≥ q.
    """

    rate: FloatArray
    replicas: IntArray


def stage_rates(slowdown: FloatArray) -> StageRates:
    """Rates of all stages on devices in that order.

    Args:
        slowdown: [D] time of the device at each position over that of a healthy one.
    """
    size = slowdown.size + 1
    rate, replicas = np.full((size, size), np.inf), np.ones((size, size), dtype=np.int64)
    for slowest in np.unique(slowdown):
        before = np.concatenate(([0], np.cumsum(slowdown <= slowest)))
        count = before[None, :] - before[:, None]
        with np.errstate(divide="ignore"):
            candidate = np.where(count > 0, slowest / count, np.inf)
        better = candidate < rate
        rate[better], replicas[better] = candidate[better], count[better]
    return StageRates(rate, replicas)


def unequal_cost(
    problem: StagedProblem, plan: StagedPlan, slowdown: FloatArray, idle: Collection[int] | None = None
) -> StagedCost:
    """Cost of a plan whose positions hold devices of unequal speed; `cost.staged` where all are 1 and work.

    Args:
        problem: what the plan solves, with times of healthy devices.
        plan: valid for it.
        slowdown: [D] of the device at each position.
        idle: positions whose devices stand idle; None: those that had better do so.
    """
    equal = plan_cost(problem, plan)
    works = np.ones(slowdown.size, dtype=np.bool_)
    works[list(idle_positions(plan, slowdown) if idle is None else idle)] = False
    start = np.array([0, *plan.device_cuts])
    working = np.add.reduceat(works.astype(np.int64), start)
    rate = np.maximum.reduceat(np.where(works, slowdown, 0.0), start) / working
    rate *= np.diff([*start, slowdown.size])
    forward, backward = equal.forward_s * rate, equal.backward_s * rate
    first = np.array([0, *(cut + 1 for cut in plan.cuts)])
    weights, stash = (np.add.reduceat(array, first) for array in (problem.profile.W, problem.profile.stash))
    memory = np.array(
        [
            stage_memory_bytes(
                float(weights[s]),
                float(stash[s]),
                int(working[s]),
                min(plan.micro_batches, plan.stages - s),
                problem.state_factor,
            )
            for s in range(plan.stages)
        ]
    )
    span, length, pivot = span_and_length(forward, backward, equal.transfer_s, equal.all_reduce_s, plan.micro_batches)
    return replace(
        equal,
        forward_s=forward,
        backward_s=backward,
        memory_bytes=memory,
        span_s=float(span),
        length_s=float(length),
        pivot=int(pivot),
        feasible=bool((memory <= problem.cluster.memory).all()),
    )


def idle_positions(plan: StagedPlan, slowdown: FloatArray) -> tuple[int, ...]:
    """Positions whose devices would hold up their stage more than they help it."""
    replicas, idle = stage_rates(slowdown).replicas, []
    for first, last in plan.stage_devices(slowdown.size):
        fastest_first = np.argsort(slowdown[first : last + 1], kind="stable")
        idle += (first + fastest_first[replicas[first, last + 1] :]).tolist()
    return tuple(sorted(idle))
