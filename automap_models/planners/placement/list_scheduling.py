"""The list scheduler m-ETF of Baechi, for a step.

m-ETF (Jeon et al., "Baechi", SoCC 2020; Hwang et al., SIAM J. Comput. 18(2), 1989) walks over the operations once and
remembers when devices are free. Of all operations that are ready and all devices with room it takes the pair that could
start first; of these the operation with the longest path to the end, in mean times and mean transfers.

A class goes where its first operation went. A parameter, which takes no time and reads nothing, goes where its first
reader goes, and so does whatever else could run anywhere at once. Memory counts what operations hold all the time.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.placement import (
    ROUNDING,
    BoolArray,
    FloatArray,
    IntArray,
    Objective,
    PlacementProblem,
)
from automap_models.cost.makespan import longest_paths
from automap_models.cost.step_tables import StepTables
from automap_models.planners.base import Deadline, NoConfig, Progress, Watch
from automap_models.planners.placement.planner import Outcome, PlacementPlanner
from automap_models.planners.placement.step_groups import StepUnits


class EtfPlanner(PlacementPlanner[NoConfig]):
    """Of all operations that are ready, the one that can start first, where it can."""

    name: ClassVar[str] = "m-etf"
    objectives: ClassVar[tuple[Objective, ...]] = ("step",)

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where the memory was used up."""
        watch(Progress(f"scheduling {len(problem.graph):,} operations by m-ETF", 0, 1))
        return self.outcome(problem, etf(StepUnits.from_problem(problem)))


def etf(units: StepUnits) -> IntArray | None:
    """[n] devices of the operations; None where the memory was used up."""
    tables = units.tables
    limit_bytes = tables.memory_bytes * (1.0 + ROUNDING)
    rooms = _Rooms(
        device=np.full(units.unit_of.size, -1, dtype=np.int64),
        home=np.full(len(units), -1, dtype=np.int64),
        used=np.zeros(limit_bytes.size),
        unit_of=units.unit_of,
        memory_bytes=units.memory_bytes,
        allowed=units.allowed,
        limit_bytes=limit_bytes,
        follows=(tables.time_s.max(axis=0) <= 0.0) & (np.diff(tables.inputs_start) == 0),
    )
    _etf(tables, rooms, mean_ranks(tables))
    return None if (rooms.device < 0).any() else rooms.device


def mean_ranks(tables: StepTables) -> FloatArray:
    """[n] seconds of the longest path from the start of each to the end, in mean times and mean transfers."""
    time_s = np.where(np.isfinite(tables.time_s), tables.time_s, np.nan)
    mean = np.nanmean(time_s, axis=0)
    crossing = 1.0 - 1.0 / tables.time_s.shape[0]  # of readers on random devices
    latency = float(tables.latency_s.mean()) if tables.latency_s.size else 0.0
    per_byte = float(tables.s_per_byte.mean()) if tables.s_per_byte.size else 0.0
    moved = crossing * (latency + per_byte * tables.output_bytes)
    return longest_paths(tables.order, tables.readers_start, tables.readers, mean, moved)


class _Rooms(NamedTuple):
    """Where operations and their classes are so far, and what room there is: n operations, u classes, D devices.

    Attributes:
        device: [n] of each operation, home: [u] of each class; -1 for none yet.
        used: [D] bytes of each device's classes.
        unit_of: [n] the class of each operation.
        memory_bytes: [u] of each class.
        allowed: [u, D] where it may be.
        limit_bytes: [D] of each device.
        follows: [n] whether an operation goes with its first reader.
    """

    device: IntArray
    home: IntArray
    used: FloatArray
    unit_of: IntArray
    memory_bytes: FloatArray
    allowed: BoolArray
    limit_bytes: FloatArray
    follows: BoolArray


@jit
def _may(rooms: _Rooms, v: int, d: int) -> bool:
    """Whether an operation may go to a device: its class is there, or is nowhere yet and fits."""
    unit = rooms.unit_of[v]
    if rooms.home[unit] >= 0:
        return bool(rooms.home[unit] == d)
    return bool(rooms.allowed[unit, d] and rooms.used[d] + rooms.memory_bytes[unit] <= rooms.limit_bytes[d])


@jit
def _settle(rooms: _Rooms, v: int, wanted: int) -> bool:
    """Put an operation, and its class with it, on a device, or the first other one that it may go to; whether it may.

    Without a device, -1, any will do.
    """
    unit, chosen = rooms.unit_of[v], -1
    for d in range(rooms.used.size):
        if _may(rooms, v, d) and (chosen < 0 or d == wanted):
            chosen = d
    if chosen < 0:
        return False
    rooms.device[v] = chosen
    if rooms.home[unit] < 0:
        rooms.home[unit] = chosen
        rooms.used[chosen] += rooms.memory_bytes[unit]
    return True


@jit
def _etf(tables: StepTables, rooms: _Rooms, rank: FloatArray) -> None:  # noqa: PLR0912, PLR0915 -- a schedule
    """Settle of all operations that are ready the one that starts first; stops where there is no room."""
    readers_start, readers = tables.readers_start, tables.readers
    inputs_start, inputs = tables.inputs_start, tables.inputs
    time_s, device = tables.time_s, rooms.device
    n, devices = rank.size, time_s.shape[0]
    free, finish = np.zeros(devices), np.zeros(n)
    arrival = np.zeros((n, devices))
    missing = np.zeros(n, dtype=np.int64)
    ready, count = np.zeros(n, dtype=np.int64), 0
    stack, top = np.zeros(n, dtype=np.int64), 0
    for v in range(n):
        missing[v] = inputs_start[v + 1] - inputs_start[v]
        if missing[v] > 0:
            continue
        if rooms.follows[v]:
            stack[top] = v
            top += 1
        else:
            ready[count] = v
            count += 1
    while top > 0 or count > 0:
        if top > 0:  # goes with its first reader, and is there from the start
            top -= 1
            v = stack[top]
        else:
            best, best_device, best_s = -1, -1, np.inf
            for i in range(count):
                v = ready[i]
                for d in range(devices):
                    start = max(free[d], arrival[v, d])
                    if start > best_s or not _may(rooms, v, d):
                        continue
                    if start < best_s or rank[v] > rank[ready[best]]:
                        best, best_device, best_s = i, d, start
            if best < 0:
                return
            v = ready[best]
            count -= 1
            ready[best] = ready[count]
            for k in range(inputs_start[v], inputs_start[v + 1]):
                if device[inputs[k]] < 0 and not _settle(rooms, inputs[k], best_device):
                    return
            if not _settle(rooms, v, best_device):
                return
            best_device = device[v]  # another one where its inputs took the room
            finish[v] = best_s + time_s[best_device, v]
            if time_s[best_device, v] > 0:
                free[best_device] = finish[v]
        for k in range(readers_start[v], readers_start[v + 1]):
            s = readers[k]
            missing[s] -= 1
            if missing[s] > 0:
                continue
            ready[count] = s
            count += 1
            for j in range(inputs_start[s], inputs_start[s + 1]):  # when each is where, whatever else channels carry
                u = inputs[j]
                a = device[u] if device[u] >= 0 else rooms.home[rooms.unit_of[u]]
                for d in range(devices):
                    there = finish[u]
                    if a >= 0 and a != d:
                        c = tables.channel[a, d]
                        there += tables.latency_s[c] + tables.output_bytes[u] * tables.s_per_byte[c]
                    arrival[s, d] = max(arrival[s, d], there)
    for v in range(n):  # what nobody reads goes where there is room
        if device[v] < 0:
            _settle(rooms, v, -1)
