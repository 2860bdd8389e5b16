"""Whether any plan fits the memory: successive stages, each as long as its devices hold, go as far as any plan does.

What a stage holds only grows with its instructions, so that of all stages before a device those decide that go
furthest. The memory is a share of what each device has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.staged import StagedProblem
from automap_models.core.units import counted
from automap_models.errors import Infeasible
from automap_models.planners.staged.stage_arrays import MEMORY, PARTS, StageArrays, stage_arrays
from automap_models.planners.staged.stage_kernel import held_bytes

ROUNDING = 1e-12
"""Relative error allowed to a difference of two prefix sums."""
LARGEST = 1e300
"""No plan needs so many times the memory."""
PRECISION = 1.001
"""The least share of the memory is found as near as that."""


def plans_fit(stages: StageArrays, share: float = 1.0) -> bool:
    """Whether some plan fits so many times the memory that the devices have."""
    return bool(furthest_begins(stages, share)[-1, -1] == stages.last)


def least_share(stages: StageArrays) -> float:
    """Of the memory that devices have, how many times it the fullest one of any plan needs, where that is over 1.

    It is inf where stages cannot come to the model's end whatever the devices hold.
    """
    low = high = 1.0
    while high < LARGEST and not plans_fit(stages, high):
        low, high = high, 2.0 * high
    if high >= LARGEST:
        return np.inf
    while high > PRECISION * low:
        middle = low**0.5 * high**0.5  # the product of the two may overflow
        low, high = (low, middle) if plans_fit(stages, middle) else (middle, high)
    return low


@jit
def furthest_begins(stages: StageArrays, share: float) -> IntArray:
    """[S+1, D+1] the furthest boundary at which each stage may begin on each device, -1 where none; and the end."""
    count, devices, m = stages.held.size, stages.kind.shape[1] - 1, stages.crossing.size - 1
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
                    end, parts = max(end, i), stages.paces[j, a, q, PARTS]
                    most = share * stages.paces[j, a, q, MEMORY] * (1.0 + ROUNDING)
                    while end < last and held_bytes(stages, kind, i, end + 1, stages.held[s], parts) <= most:
                        end += 1
            furthest[s + 1, q] = min(end, last) if end >= first else -1
    return furthest


@dataclass(frozen=True)
class Fullest:
    """The fullest stage of a plan that packs the memory as well as can be.

    Attributes:
        stage: which.
        first, last: its instructions.
        nbytes: what it needs on each device.
        limit_bytes: what the smallest of these devices has.
    """

    stage: int
    first: int
    last: int
    nbytes: float
    limit_bytes: float


def best_packed(problem: StagedProblem) -> Fullest:
    """What the fullest stage of a plan needs at least, to 0.1 %, for a problem none of whose plans fits the memory."""
    stages, boundary = stage_arrays(problem)
    reached = furthest_begins(stages, PRECISION * least_share(stages))
    k, q, fullest = stages.last, stages.devices, Fullest(0, 0, 0, 0.0, 1.0)
    for s in range(stages.stages - 1, -1, -1):
        i, a, nbytes, limit = least_filled(stages, s, reached[s], k, q)
        if nbytes / limit >= fullest.nbytes / fullest.limit_bytes:
            fullest = Fullest(s, int(boundary[i]), int(boundary[k]) - 1, nbytes, limit)
        k, q = i, a
    return fullest


@jit
def least_filled(stages: StageArrays, s: int, begin: IntArray, k: int, q: int) -> tuple[int, int, float, float]:
    """Boundary, first device, bytes and memory of the stage up to k on devices … q-1 that takes the least share."""
    best, first, least, limit = 0, 0, np.inf, 1.0
    for a in range(q):
        for j in range(stages.kind.shape[0]):
            kind, i = stages.kind[j, a, q], begin[a]
            if kind < 0 or i < 0 or i > k:
                continue
            nbytes = held_bytes(stages, kind, i, k, stages.held[s], stages.paces[j, a, q, PARTS])
            memory = stages.paces[j, a, q, MEMORY]
            if nbytes / memory < least / limit:
                best, first, least, limit = i, a, nbytes, memory
    return best, first, least, limit


def out_of_memory(problem: StagedProblem) -> Infeasible:
    """The error for a problem none of whose plans fits: what the fullest stage of the best-packed one needs."""
    fullest, restrictions = best_packed(problem), problem.constraints.in_words
    plans = counted(problem.stages, "stage") + (f" with {restrictions}" if restrictions else "")
    return Infeasible(
        f"none of the plans of {plans} fits the {fullest.limit_bytes / 1e9:.3g} GB of cluster "
        f"{problem.cluster.name}: in the best-packed one stage {fullest.stage} needs {fullest.nbytes / 1e9:.3g} GB on "
        f"each device for instructions {fullest.first}…{fullest.last}",
        where="planner exact",
        do="try more stages, a finer `granularity`, smaller micro-batches, a smaller `state_factor`"
        f"{', more shardings' if problem.shardings else ''}{', fewer restrictions' if restrictions else ''} "
        "or devices with more memory",
    )
