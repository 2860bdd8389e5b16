"""Successive stages that a length and a memory allow, each as long as possible: no plan does better than they do.

The memory is that of the cluster's smallest devices; where devices differ, the others have more in proportion.

Time, parameters and stash of a stage only grow with its instructions, so whatever a plan can reach, the stages that go
furthest can (see relaxation.lower_bound_s). Over memory alone this is exact: such stages are a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.cost.overlap import exposed_s
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import ROUNDING, Reach, ShardingTables, StageTables

_LARGEST = float(np.finfo(np.float64).max)


def stages_exist(tables: StageTables, length_s: float, memory: float) -> bool:
    """Whether the relaxation of `lower_bound_s` has S successive stages of that length and memory.

    Of the memory that the devices have, what earlier lengths came to tells of longer and of shorter ones.
    """
    reach = tables.reach if memory == tables.memory else Reach()
    if length_s >= reach.enough_s or length_s <= reach.too_short_s:
        return length_s >= reach.enough_s
    furthest = _reached(tables, length_s, memory)[-1]
    exist = any(_last_stage_fits(tables, sharding, furthest, length_s, memory) for sharding in tables.shardings)
    if exist:
        reach.enough_s = length_s
    else:
        reach.too_short_s = length_s
    return exist


def least_memory_bytes(tables: StageTables) -> float:
    """What the fullest device of any plan holds at least, to 0.1 %, where that is more than the devices have."""
    low = high = tables.memory
    while high < _LARGEST and not stages_exist(tables, np.inf, high):
        low, high = high, min(2.0 * high, _LARGEST)
    while high > 1.001 * low:
        middle = low**0.5 * high**0.5  # the product of the two may overflow
        if not low < middle < high:
            break
        low, high = (low, middle) if stages_exist(tables, np.inf, middle) else (middle, high)
    return low


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


def best_packed(tables: StageTables) -> Fullest:
    """What the fullest stage of a plan needs at least, to 0.1 %, for tables none of whose plans fits the memory."""
    memory = 1.001 * least_memory_bytes(tables)
    reached, k, q = _reached(tables, np.inf, memory), tables.end, tables.replicas_in_all
    fullest = Fullest(0, 0, 0, 0.0, tables.memory)
    for s in range(tables.stages - 1, -1, -1):
        i, a, nbytes, limit = _least_filled(tables, s, reached[s], k, q)
        if nbytes / limit >= fullest.nbytes / fullest.limit_bytes:
            fullest = Fullest(s, int(tables.boundary[i]), int(tables.boundary[k]) - 1, nbytes, limit)
        k, q = i, a
    return fullest


def _least_filled(tables: StageTables, stage: int, begin: IntArray, k: int, q: int) -> tuple[int, int, float, float]:
    """Boundary, first device, bytes and memory of the stage up to k on devices … q-1 that takes the least share."""
    candidates = []
    for sharding in tables.shardings:
        for a in np.flatnonzero((begin[:q] >= 0) & (begin[:q] <= k) & sharding.allowed[:q, q]).tolist():
            i = int(begin[a])
            held, memory = sharding.H[k] - sharding.H[i], float(sharding.paces.memory[a, q])
            nbytes = float(sharding.state_bytes(i, k, tables.state_factor))
            nbytes += float(tables.in_flight(stage) * held / sharding.paces.parts[a, q])
            candidates.append((nbytes / (memory / tables.memory), i, a, nbytes, memory))
    _, i, a, nbytes, memory = min(candidates)
    return i, a, nbytes, memory


def _reached(tables: StageTables, length_s: float, memory: float) -> list[IntArray]:
    """[S][D+1] the furthest boundary at which each stage can begin on each device; -1 if there is none."""
    stages, devices = tables.stages, tables.replicas_in_all
    cut_before = _last_allowed_cut(tables, length_s)
    furthest = np.full(devices + 1, -1)
    furthest[0] = 0
    reached = [furthest]
    for s in range(stages - 1):
        first, last = tables.windows[s + 1]
        ends = _furthest_ends(tables, s, reached[s], (length_s, memory), int(last))
        furthest = np.where(ends < 0, -1, cut_before[np.arange(devices + 1), ends])
        furthest[furthest < first] = -1
        reached.append(furthest)
    return reached


def _furthest_ends(
    tables: StageTables, stage: int, begin: IntArray, limits: tuple[float, float], last: int
) -> IntArray:
    """[D+1] the furthest boundary, of those up to the last, where the stage can end before each device; -1 if none.

    Args:
        begin: [D+1] where it begins at the furthest on each device; -1 nowhere.
        limits: the length, and the memory of the smallest devices.
    """
    from automap_models.planners.staged import search_kernel  # numba takes half a second to import

    length_s, memory = limits
    stops = stage + 1, tables.replicas_in_all - (tables.stages - 1 - stage)
    furthest = np.full(begin.size, -1)
    of_stage, memories = tables.limits(stage, length_s), (float(memory), float(tables.memory))
    for sharding in tables.shardings:
        search_kernel.furthest_ends(sharding.arrays, of_stage, begin, stops, memories, last, furthest)
    return furthest


def _last_stage_fits(
    tables: StageTables, sharding: ShardingTables, furthest: IntArray, length_s: float, memory: float
) -> np.bool_:
    """Whether a last stage in that sharding comes to the model's end from where the stages before it got to."""
    a = np.flatnonzero((furthest >= 0) & sharding.allowed[:, -1])
    end, stop = np.full_like(a, tables.end), np.full_like(a, tables.replicas_in_all)
    return _Stages(tables, sharding, tables.stages - 1, furthest[a], (a, stop), memory).within(end, length_s).any()


def _last_allowed_cut(tables: StageTables, length_s: float) -> IntArray:
    """[D+1, m+1] the last boundary ≤ k whose least transfer over device cut q is short enough; 0 if none.

    By L the messages of both directions come one after the other; in a step the last one comes back after the others.
    """
    messages = tables.micro_batches + (1.0 if tables.scheduled else tables.micro_batches)
    least = messages * tables.devices.boundary[:, None] * tables.A
    allowed = np.where(least <= length_s * (1.0 + ROUNDING), np.arange(tables.end + 1), 0)
    last: IntArray = np.maximum.accumulate(allowed, axis=1)
    return last


class _Stages:
    """Stages that begin at given boundaries on given devices; where they end is tried.

    Args:
        tables: of the problem.
        sharding: in which they run.
        stage: which stage of a plan they are.
        begin: [n] boundary where each begins.
        devices: [n] first device of each, [n] device after the last one.
        memory: of the cluster's smallest devices.
    """

    def __init__(
        self,
        tables: StageTables,
        sharding: ShardingTables,
        stage: int,
        begin: IntArray,
        devices: tuple[IntArray, IntArray],
        memory: float,
    ) -> None:
        self.tables, self.begin, self._sharding = tables, begin, sharding
        self._pace, self._in_flight, self._parts = (
            sharding.pace(*devices),
            tables.in_flight(stage),
            sharding.paces.parts[devices],
        )
        self._most = memory * (sharding.paces.memory[devices] / tables.memory) * (1.0 + ROUNDING)

    def within(self, end: IntArray, length_s: float) -> NDArray[np.bool_]:
        """[n] whether M·u + AR is no longer than that for stages up to these boundaries, and whether they fit.

        Of u only what grows with the stage, not what it gathers at its ends. Of AR what a backward pass of b ≤ u cannot
        hide, and with it the update: all of it never falls with a larger stage.
        """
        tables, own, begin = self.tables, self._sharding, self.begin
        weights, busy = own.weights_bytes(begin, end), own.work_s(begin, end, self._pace)
        reduce = exposed_s(own.reduce_s(begin, end, self._pace, weights), busy, tables.overlap)
        reduce += tables.update_s_per_byte * weights
        state = tables.state_factor * weights + own.frozen_bytes(begin, end)
        held = state + self._in_flight * (own.H[end] - own.H[begin]) / self._parts
        short = tables.micro_batches * busy + reduce <= length_s * (1.0 + ROUNDING)
        fits: NDArray[np.bool_] = held <= self._most
        return short & fits
