"""Which devices of unequal speed had better stand idle.

The cost model splits every micro-batch evenly over a stage's replicas (docs/cost-model.md). With devices of unequal
speed the stage waits for its slowest replica, so that slow replicas are worth keeping only as long as they are not
much slower than the rest. The stage works with the j fastest of its devices, j chosen so that it is done first, and
the others stand idle:

    seconds per second of profile on stage s = min over j of (j-th smallest slowdown) / j

    slowdowns 1, 1, 1, 1.5    j = 3: 1/3      j = 4: 1.5/4 = 3/8     the slow device stands idle
    slowdowns 1, 1, 1, 1.2    j = 3: 1/3      j = 4: 1.2/4 = 3/10    it works

Transfers and all-reduces are those of all its devices, idle ones included. Memory is that of the replicas that work
(`cost.staged.plan_cost`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan
from automap_models.planners.staged.pareto import IntArray


@dataclass(frozen=True, eq=False)
class StagePaces:
    """How fast a stage on positions a … q-1 works, for every a < q.

    Attributes:
        pace: [D+1, D+1] its seconds per second of profile; inf for a ≥ q.
        replicas: [D+1, D+1] how many of its devices work; 1 for a ≥ q.
    """

    pace: FloatArray
    replicas: IntArray


def stage_paces(slowdown: FloatArray) -> StagePaces:
    """The paces of all stages on devices in that order.

    Args:
        slowdown: [D] time of the device at each position over that of a healthy one.
    """
    size = slowdown.size + 1
    pace, replicas = np.full((size, size), np.inf), np.ones((size, size), dtype=np.int64)
    for slowest in np.unique(slowdown):
        before = np.concatenate(([0], np.cumsum(slowdown <= slowest)))
        count = before[None, :] - before[:, None]
        with np.errstate(divide="ignore"):
            candidate = np.where(count > 0, slowest / count, np.inf)
        better = candidate < pace
        pace[better], replicas[better] = candidate[better], count[better]
    return StagePaces(pace, replicas)


def idle_positions(plan: StagedPlan, slowdown: FloatArray) -> tuple[int, ...]:
    """Positions whose devices would hold up their stage more than they help it."""
    replicas, idle = stage_paces(slowdown).replicas, []
    for first, last in plan.stage_devices(slowdown.size):
        fastest_first = np.argsort(slowdown[first : last + 1], kind="stable")
        idle += (first + fastest_first[replicas[first, last + 1] :]).tolist()
    return tuple(sorted(idle))
