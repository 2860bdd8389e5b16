"""List schedulers for a step: HEFT, and m-ETF of Baechi.

Both walk over the operations once, put each on a device, and remember when devices and channels are free.

- `heft` (Topcuoglu et al., IEEE TPDS 13(3), 2002) takes the operation with the longest way to the end, in mean times
  and mean transfers, and the device on which it would be done first. Transfers take turns on their channels here.
- `m-etf` (Jeon et al., "Baechi", SoCC 2020; Hwang et al., SIAM J. Comput. 18(2), 1989) takes, of all operations that
  are ready and all devices with room, the pair that could start first; of these the one with the longest way to the
  end.

A class goes where its first operation went. A parameter, which takes no time and reads nothing, goes where its first
reader goes, and so does whatever else could run anywhere at once. Memory counts what operations hold all the time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from automap_models.core.placement import BoolArray, FloatArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.cost.makespan import StepTables
from automap_models.cost.makespan_kernel import jit
from automap_models.planners.base import Deadline, NoConfig, Progress, Watch
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, no_placement, require_step
from automap_models.planners.placement.step_groups import StepUnits


class HeftPlanner(PlacementPlanner[NoConfig]):
    """The operation with the longest way to the end first, on the device that is done with it first."""

    name: ClassVar[str] = "heft"
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where the memory was used up.

        Raises:
            BadInput: the objective is not the step.
        """
        require_step(self.name, problem)
        watch(Progress(f"scheduling {len(problem.graph):,} operations by HEFT", 0, 1))
        device = heft(StepUnits.of(problem))
        if device is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, device))


class EtfPlanner(PlacementPlanner[NoConfig]):
    """Of all operations that are ready, the one that can start first, where it can."""

    name: ClassVar[str] = "m-etf"
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where the memory was used up.

        Raises:
            BadInput: the objective is not the step.
        """
        require_step(self.name, problem)
        watch(Progress(f"scheduling {len(problem.graph):,} operations by m-ETF", 0, 1))
        device = etf(StepUnits.of(problem))
        if device is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, device))


def heft(units: StepUnits) -> IntArray | None:
    """[n] devices of the operations; None where the memory was used up."""
    tables = units.tables
    rank = mean_ranks(tables)
    place = np.empty(rank.size, dtype=np.int64)
    place[tables.order] = np.arange(rank.size)
    order = np.lexsort((place, -rank))
    arguments: tuple[Any, ...] = (*_arrays(tables), order, *_of_units(units))
    device = _heft(*arguments)
    return None if (device < 0).any() else device


def etf(units: StepUnits) -> IntArray | None:
    """[n] devices of the operations; None where the memory was used up."""
    arguments: tuple[Any, ...] = (*_arrays(units.tables), mean_ranks(units.tables), *_of_units(units))
    device = _etf(*arguments)
    return None if (device < 0).any() else device


def mean_ranks(tables: StepTables) -> FloatArray:
    """[n] seconds of the longest way from the start of each to the end, in mean times and mean transfers."""
    time_s = np.where(np.isfinite(tables.time_s), tables.time_s, np.nan)
    mean = np.nanmean(time_s, axis=0)
    crossing = 1.0 - 1.0 / tables.time_s.shape[0]  # of readers on random devices
    latency = float(tables.latency_s.mean()) if tables.latency_s.size else 0.0
    per_byte = float(tables.s_per_byte.mean()) if tables.s_per_byte.size else 0.0
    moved = crossing * (latency + per_byte * tables.output_bytes)
    start, readers = tables.readers_start.tolist(), tables.readers.tolist()
    rank = [0.0] * mean.size
    times, moves = mean.tolist(), moved.tolist()
    for v in reversed(tables.order.tolist()):
        after = max((rank[s] for s in readers[start[v] : start[v + 1]]), default=-moves[v])
        rank[v] = times[v] + moves[v] + after
    return np.array(rank)


def _arrays(tables: StepTables) -> tuple[object, ...]:
    return (
        *(tables.readers_start, tables.readers, tables.inputs_start, tables.inputs, tables.time_s),
        *(tables.output_bytes, tables.channel, tables.s_per_byte, tables.latency_s),
    )


def _of_units(units: StepUnits) -> tuple[object, ...]:
    return units.unit_of, units.memory_bytes, units.allowed, units.tables.memory_bytes * (1.0 + 1e-9)


@jit
def _settle(
    v: int, d: int, device: IntArray, unit_of: IntArray, home: IntArray, used: FloatArray, memory: FloatArray
) -> None:
    """Put an operation on a device, and its class with it."""
    device[v] = d
    if home[unit_of[v]] < 0:
        home[unit_of[v]] = d
        used[d] += memory[unit_of[v]]


@jit
def _may(
    v: int,
    d: int,
    unit_of: IntArray,
    home: IntArray,
    used: FloatArray,
    memory: FloatArray,
    allowed: BoolArray,
    limit: FloatArray,
) -> bool:
    """Whether an operation may go to a device: its class is there, or is nowhere yet and fits."""
    unit = unit_of[v]
    if home[unit] >= 0:
        return bool(home[unit] == d)
    return bool(allowed[unit, d] and used[d] + memory[unit] <= limit[d])


@jit
def _heft(  # noqa: PLR0912, PLR0915 -- one loop over a schedule
    readers_start: IntArray,
    readers: IntArray,
    inputs_start: IntArray,
    inputs: IntArray,
    time_s: FloatArray,
    output_bytes: FloatArray,
    channel: IntArray,
    s_per_byte: FloatArray,
    latency_s: FloatArray,
    order: IntArray,
    unit_of: IntArray,
    memory: FloatArray,
    allowed: BoolArray,
    limit: FloatArray,
) -> IntArray:
    """[n] devices; -1 where there was no room."""
    n, devices = order.size, time_s.shape[0]
    device, home = np.full(n, -1, dtype=np.int64), np.full(memory.size, -1, dtype=np.int64)
    free, channel_free, used = np.zeros(devices), np.zeros(latency_s.size), np.zeros(devices)
    finish, arrived = np.zeros(n), np.full((n, devices), -1.0)
    for i in range(n):
        v = order[i]
        if inputs_start[v] == inputs_start[v + 1] and time_s[:, v].max() == 0.0:
            continue  # goes with its first reader
        best, best_s = -1, np.inf
        for d in range(devices):
            if not _may(v, d, unit_of, home, used, memory, allowed, limit):
                continue
            start = free[d]
            for k in range(inputs_start[v], inputs_start[v + 1]):
                u = inputs[k]
                a = device[u] if device[u] >= 0 else home[unit_of[u]]
                if a < 0 or a == d:
                    start = max(start, finish[u])
                elif arrived[u, d] >= 0:
                    start = max(start, arrived[u, d])
                else:
                    c = channel[a, d]
                    begin = max(finish[u], channel_free[c])
                    start = max(start, begin + latency_s[c] + output_bytes[u] * s_per_byte[c])
            if start + time_s[d, v] < best_s:
                best, best_s = d, start + time_s[d, v]
        if best < 0:
            return device
        start = free[best]
        for k in range(inputs_start[v], inputs_start[v + 1]):
            u = inputs[k]
            if device[u] < 0:
                if home[unit_of[u]] < 0 and not _may(u, best, unit_of, home, used, memory, allowed, limit):
                    for d in range(devices):
                        if _may(u, d, unit_of, home, used, memory, allowed, limit):
                            _settle(u, d, device, unit_of, home, used, memory)
                            break
                    if device[u] < 0:
                        return device
                else:
                    at = best if home[unit_of[u]] < 0 else home[unit_of[u]]
                    _settle(u, at, device, unit_of, home, used, memory)
            a = device[u]
            if a == best:
                start = max(start, finish[u])
                continue
            if arrived[u, best] < 0:
                c = channel[a, best]
                begin = max(finish[u], channel_free[c])
                arrived[u, best] = begin + latency_s[c] + output_bytes[u] * s_per_byte[c]
                channel_free[c] = arrived[u, best]
            start = max(start, arrived[u, best])
        _settle(v, best, device, unit_of, home, used, memory)
        finish[v] = start + time_s[best, v]
        if time_s[best, v] > 0:
            free[best] = finish[v]
    for v in range(n):  # what nobody reads
        if device[v] < 0:
            for d in range(devices):
                if _may(v, d, unit_of, home, used, memory, allowed, limit):
                    _settle(v, d, device, unit_of, home, used, memory)
                    break
    return device


@jit
def _etf(  # noqa: PLR0912, PLR0915 -- one loop over a schedule
    readers_start: IntArray,
    readers: IntArray,
    inputs_start: IntArray,
    inputs: IntArray,
    time_s: FloatArray,
    output_bytes: FloatArray,
    channel: IntArray,
    s_per_byte: FloatArray,
    latency_s: FloatArray,
    rank: FloatArray,
    unit_of: IntArray,
    memory: FloatArray,
    allowed: BoolArray,
    limit: FloatArray,
) -> IntArray:
    """[n] devices; -1 where there was no room."""
    n, devices = rank.size, time_s.shape[0]
    device, home = np.full(n, -1, dtype=np.int64), np.full(memory.size, -1, dtype=np.int64)
    free, used, finish = np.zeros(devices), np.zeros(devices), np.zeros(n)
    arrival = np.zeros((n, devices))
    missing = np.zeros(n, dtype=np.int64)
    ready, count = np.zeros(n, dtype=np.int64), 0
    stack, top = np.zeros(n, dtype=np.int64), 0
    for v in range(n):
        missing[v] = inputs_start[v + 1] - inputs_start[v]
    for v in range(n):
        if inputs_start[v] == inputs_start[v + 1]:
            if time_s[:, v].max() == 0.0:
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
            best, best_at, best_s = -1, -1, np.inf
            for i in range(count):
                v = ready[i]
                for d in range(devices):
                    start = max(free[d], arrival[v, d])
                    if start > best_s or not _may(v, d, unit_of, home, used, memory, allowed, limit):
                        continue
                    if start < best_s or rank[v] > rank[ready[best]]:
                        best, best_at, best_s = i, d, start
            if best < 0:
                return device
            v = ready[best]
            count -= 1
            ready[best] = ready[count]
            for k in range(inputs_start[v], inputs_start[v + 1]):
                u = inputs[k]
                if device[u] < 0:
                    d = best_at if home[unit_of[u]] < 0 else home[unit_of[u]]
                    if home[unit_of[u]] < 0 and not _may(u, d, unit_of, home, used, memory, allowed, limit):
                        d = -1
                        for e in range(devices):
                            if _may(u, e, unit_of, home, used, memory, allowed, limit):
                                d = e
                                break
                        if d < 0:
                            return device
                    _settle(u, d, device, unit_of, home, used, memory)
            _settle(v, best_at, device, unit_of, home, used, memory)
            finish[v] = best_s + time_s[best_at, v]
            if time_s[best_at, v] > 0:
                free[best_at] = finish[v]
        for k in range(readers_start[v], readers_start[v + 1]):
            s = readers[k]
            missing[s] -= 1
            if missing[s] > 0:
                continue
            for d in range(devices):
                for j in range(inputs_start[s], inputs_start[s + 1]):
                    u = inputs[j]
                    a = device[u] if device[u] >= 0 else home[unit_of[u]]
                    there = finish[u]
                    if a >= 0 and a != d:
                        c = channel[a, d]
                        there += latency_s[c] + output_bytes[u] * s_per_byte[c]
                    arrival[s, d] = max(arrival[s, d], there)
            ready[count] = s
            count += 1
    for v in range(n):
        if device[v] < 0:
            for d in range(devices):
                if _may(v, d, unit_of, home, used, memory, allowed, limit):
                    _settle(v, d, device, unit_of, home, used, memory)
                    break
    return device
