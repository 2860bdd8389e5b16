"""Whether any plan fits the memory: successive stages, each as long as its devices hold, go as far as any plan does.

What a stage holds only grows with its instructions, so that of all stages before a device those decide that go
furthest. The memory is a share of what each device has.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.core.units import counted
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.staged.stage_arrays import MEMORY, PARTS, StageArrays, stage_arrays
from automap_models.planners.staged.stage_kernel import BOUNDARY, DEVICE, held_bytes
from automap_models.planners.staged.step_bounds import BIG

ROUNDING = 1e-12
"""Relative error allowed to a difference of two prefix sums."""
PRECISION = 1.001
"""The least share of the memory is found as near as that."""


def plans_fit(stages: StageArrays, share: float = 1.0) -> bool:
    """Whether some plan fits so many times the memory that the devices have."""
    effort.count(effort.RESTS, stages.stages * stages.kind.size)
    return bool(furthest_begins(stages, share)[-1, -1] == stages.last)


def least_share(stages: StageArrays) -> float:
    """Of the memory that devices have, how many times it the fullest one of any plan needs, where that is over 1.

    It is inf where stages cannot come to the model's end whatever the devices hold.
    """
    low = high = 1.0
    while high < BIG and not plans_fit(stages, high):
        low, high = high, 2.0 * high
    if high >= BIG:
        return np.inf
    while high > PRECISION * low:
        middle = low**0.5 * high**0.5  # the product of the two may overflow
        low, high = (low, middle) if plans_fit(stages, middle) else (middle, high)
    return low


@jit
def furthest_begins(stages: StageArrays, share: float) -> IntArray:
    """[S+1, D+1] the furthest boundary at which each stage may begin on each device, -1 where none; and the end."""
    count, devices, m = stages.in_flight.size, stages.kind.shape[1] - 1, stages.crossing.size - 1
    furthest = np.full((count + 1, devices + 1), -1)
    furthest[0, 0] = 0
    for s in range(count):
        first, last = (stages.windows[s + 1, 0], stages.windows[s + 1, 1]) if s < count - 1 else (m, m)
        for q in range(s + 1 if s < count - 1 else devices, devices - (count - 1 - s) + 1):
            end = -1
            for a in range(q):
                for j in range(stages.kind.shape[0]):
                    kind, i = stages.kind[j, a, q], furthest[s, a]
                    if kind < 0 or i < 0:
                        continue
                    end, parts = max(end, i), stages.speeds[j, a, q, PARTS]
                    most = share * stages.speeds[j, a, q, MEMORY] * (1.0 + ROUNDING)
                    while end < last and held_bytes(stages, kind, i, end + 1, stages.in_flight[s], parts) <= most:
                        end += 1
            furthest[s + 1, q] = min(end, last) if end >= first else -1
    return furthest


def packed(stages: StageArrays, share: float = 1.0) -> tuple[IntArray, FloatArray] | None:
    """A plan that fits so many times the memory, each stage as full as can be; None where that makes none.

    It makes one wherever one fits, unless single instructions are so large that a stage would be left without any.

    Returns:
        Its route, [3, S+1] (stage_kernel), and [S, 2] bytes that a stage needs on each device, and those it has.
    """
    begins, count = furthest_begins(stages, share), stages.stages
    if begins[-1, -1] != stages.last:
        return None
    route, nbytes = np.zeros((3, count + 1), dtype=np.int64), np.empty((count, 2))
    route[BOUNDARY, count], route[DEVICE, count] = stages.last, stages.devices
    for s in range(count - 1, -1, -1):
        *begin, needed, memory = least_filled(stages, s, begins[s], route[BOUNDARY, s + 1], route[DEVICE, s + 1])
        if not needed <= share * memory * (1.0 + 2.0 * ROUNDING):
            return None
        route[:, s], nbytes[s] = begin, (needed, memory)
    return route, nbytes


@jit
def least_filled(stages: StageArrays, s: int, begin: IntArray, k: int, q: int) -> tuple[int, int, int, float, float]:
    """Where the stage up to boundary k and device q begins that fills least of its devices, its sharding and memory."""
    best, first, sharding, least, limit = 0, 0, 0, np.inf, 1.0
    for a in range(q):
        for j in range(stages.kind.shape[0]):
            kind, i = stages.kind[j, a, q], begin[a]
            if kind < 0 or i < 0 or i >= k:
                continue
            nbytes = held_bytes(stages, kind, i, k, stages.in_flight[s], stages.speeds[j, a, q, PARTS])
            memory = stages.speeds[j, a, q, MEMORY]
            if nbytes / memory < least / limit:
                best, first, sharding, least, limit = i, a, j, nbytes, memory
    return best, first, sharding, least, limit


def out_of_memory(problem: StagedProblem) -> Infeasible:
    """The error for a problem none of whose plans fits: what the fullest stage of the best-packed one needs."""
    stages, boundary = stage_arrays(problem)
    restrictions = problem.constraints.in_words
    plans = counted(problem.stages, "stage") + (f" with {restrictions}" if restrictions else "")
    plan = packed(stages, PRECISION * least_share(stages))
    if plan is None:
        return Infeasible(f"no plan of {plans} can be cut so", where="planner exact", do="ask for less")
    route, nbytes = plan
    s = int((nbytes[:, 0] / nbytes[:, 1]).argmax())
    first, last = boundary[route[BOUNDARY, s]], boundary[route[BOUNDARY, s + 1]] - 1
    return Infeasible(
        f"none of the plans of {plans} fits the {nbytes[s, 1] / 1e9:.3g} GB of cluster {problem.cluster.name}: in the "
        f"best-packed one stage {s} needs {nbytes[s, 0] / 1e9:.3g} GB on each device for instructions {first}…{last}",
        where="planner exact",
        do="try more stages, a finer `granularity`, smaller micro-batches, a smaller `state_factor`"
        f"{', more shardings' if problem.shardings else ''}{', fewer restrictions' if restrictions else ''} "
        "or devices with more memory",
    )
