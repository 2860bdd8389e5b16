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

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.placement import ROUNDING, BoolArray, FloatArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.cost.step_tables import StepTables
from automap_models.planners.base import Deadline, NoConfig, Progress, Watch
from automap_models.planners.placement.packing import no_placement
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, require_step
from automap_models.planners.placement.step_groups import StepUnits


class ListScheduler(PlacementPlanner[NoConfig]):
    """A planner that walks over the operations once."""

    plans_steps: ClassVar[bool] = True
    title: ClassVar[str]
    """How the walk is called for people."""

    @abstractmethod
    def schedule(self, units: StepUnits) -> IntArray | None:
        """[n] devices of the operations; None where the memory was used up."""

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where the memory was used up.

        Raises:
            BadInput: the objective is not the step.
        """
        require_step(self.name, problem)
        watch(Progress(f"scheduling {len(problem.graph):,} operations by {self.title}", 0, 1))
        device = self.schedule(StepUnits.of(problem))
        if device is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, device))


class HeftPlanner(ListScheduler):
    """The operation with the longest way to the end first, on the device that is done with it first."""

    name: ClassVar[str] = "heft"
    title: ClassVar[str] = "HEFT"

    def schedule(self, units: StepUnits) -> IntArray | None:
        """See `heft`."""
        return heft(units)


class EtfPlanner(ListScheduler):
    """Of all operations that are ready, the one that can start first, where it can."""

    name: ClassVar[str] = "m-etf"
    title: ClassVar[str] = "m-ETF"

    def schedule(self, units: StepUnits) -> IntArray | None:
        """See `etf`."""
        return etf(units)


def heft(units: StepUnits) -> IntArray | None:
    """[n] devices of the operations; None where the memory was used up."""
    tables = units.tables
    rank = mean_ranks(tables)
    place = np.empty(rank.size, dtype=np.int64)
    place[tables.order] = np.arange(rank.size)
    order = np.lexsort((place, -rank))
    rooms = _rooms(units)
    _heft(tables, rooms, order)
    return None if (rooms.device < 0).any() else rooms.device


def etf(units: StepUnits, favourite: IntArray | None = None) -> IntArray | None:
    """[n] devices of the operations; None where the memory was used up.

    Args:
        units: of the problem.
        favourite: [n] reader of each operation for which its device waits, for as long as sending the output elsewhere
            would take, unless what could run has its inputs everywhere (SCT: Hanen & Munier, 1995); -1 for none. None:
            no device waits.
    """
    rooms = _rooms(units)
    waited = np.full(units.unit_of.size, -1) if favourite is None else favourite
    _etf(units.tables, rooms, mean_ranks(units.tables), waited)
    return None if (rooms.device < 0).any() else rooms.device


def mean_ranks(tables: StepTables) -> FloatArray:
    """[n] seconds of the longest way from the start of each to the end, in mean times and mean transfers."""
    from automap_models.cost.makespan_kernel import longest_ways

    time_s = np.where(np.isfinite(tables.time_s), tables.time_s, np.nan)
    mean = np.nanmean(time_s, axis=0)
    crossing = 1.0 - 1.0 / tables.time_s.shape[0]  # of readers on random devices
    latency = float(tables.latency_s.mean()) if tables.latency_s.size else 0.0
    per_byte = float(tables.s_per_byte.mean()) if tables.s_per_byte.size else 0.0
    moved = crossing * (latency + per_byte * tables.output_bytes)
    return longest_ways(tables.order, tables.readers_start, tables.readers, mean, moved)


class _Rooms(NamedTuple):
    """Where operations and their classes are so far, and what room there is: n operations, u classes, D devices.

    Attributes:
        device: [n] of each operation, home: [u] of each class; -1 for none yet.
        used: [D] bytes of each device's classes.
        unit_of: [n] the class of each operation.
        memory_bytes: [u] of each class.
        allowed: [u, D] where it may be.
        limit_bytes: [D] of each device.
    """

    device: IntArray
    home: IntArray
    used: FloatArray
    unit_of: IntArray
    memory_bytes: FloatArray
    allowed: BoolArray
    limit_bytes: FloatArray


def _rooms(units: StepUnits) -> _Rooms:
    limit_bytes = units.tables.memory_bytes * (1.0 + ROUNDING)
    return _Rooms(
        device=np.full(units.unit_of.size, -1, dtype=np.int64),
        home=np.full(len(units), -1, dtype=np.int64),
        used=np.zeros(limit_bytes.size),
        unit_of=units.unit_of,
        memory_bytes=units.memory_bytes,
        allowed=units.allowed,
        limit_bytes=limit_bytes,
    )


@jit
def _settle(rooms: _Rooms, v: int, d: int) -> None:
    """Put an operation on a device, and its class with it."""
    unit = rooms.unit_of[v]
    rooms.device[v] = d
    if rooms.home[unit] < 0:
        rooms.home[unit] = d
        rooms.used[d] += rooms.memory_bytes[unit]


@jit
def _may(rooms: _Rooms, v: int, d: int) -> bool:
    """Whether an operation may go to a device: its class is there, or is nowhere yet and fits."""
    unit = rooms.unit_of[v]
    if rooms.home[unit] >= 0:
        return bool(rooms.home[unit] == d)
    return bool(rooms.allowed[unit, d] and rooms.used[d] + rooms.memory_bytes[unit] <= rooms.limit_bytes[d])


@jit
def _settle_anywhere(rooms: _Rooms, v: int) -> bool:
    """Put an operation on the first device that it may go to; whether there is one."""
    for d in range(rooms.used.size):
        if _may(rooms, v, d):
            _settle(rooms, v, d)
            return True
    return False


@jit
def _settle_input(rooms: _Rooms, u: int, d: int) -> bool:
    """Put an operation that goes with its first reader on the reader's device, or where its class is, or has room."""
    unit = rooms.unit_of[u]
    if rooms.home[unit] < 0 and not _may(rooms, u, d):
        return _settle_anywhere(rooms, u)
    _settle(rooms, u, d if rooms.home[unit] < 0 else rooms.home[unit])
    return True


@jit
def _settle_rest(rooms: _Rooms) -> None:
    """Put what nobody reads where there is room."""
    for v in range(rooms.device.size):
        if rooms.device[v] < 0:
            _settle_anywhere(rooms, v)


@jit
def _where(rooms: _Rooms, u: int) -> int:
    """The device of an operation, or of its class; -1 for none yet."""
    return int(rooms.device[u] if rooms.device[u] >= 0 else rooms.home[rooms.unit_of[u]])


@jit
def _takes_time(tables: StepTables, v: int) -> bool:
    """Whether an operation takes time on some device."""
    longest = 0.0
    for d in range(tables.time_s.shape[0]):  # `max` of a column takes longer to compile
        longest = max(longest, tables.time_s[d, v])
    return bool(longest > 0.0)


@jit
def _heft(tables: StepTables, rooms: _Rooms, order: IntArray) -> None:  # noqa: PLR0912 -- one loop over a schedule
    """Settle the operations in this order, each where it is done first; stops where there is no room."""
    inputs_start, inputs, time_s, device = tables.inputs_start, tables.inputs, tables.time_s, rooms.device
    n, devices = order.size, time_s.shape[0]
    free, channel_free = np.zeros(devices), np.zeros(tables.latency_s.size)
    finish, arrived = np.zeros(n), np.full((n, devices), -1.0)
    for i in range(n):
        v = order[i]
        if inputs_start[v] == inputs_start[v + 1] and not _takes_time(tables, v):
            continue  # goes with its first reader
        best, best_s = -1, np.inf
        for d in range(devices):
            if not _may(rooms, v, d):
                continue
            start = free[d]
            for k in range(inputs_start[v], inputs_start[v + 1]):
                u = inputs[k]
                a = _where(rooms, u)
                if a < 0 or a == d:
                    start = max(start, finish[u])
                elif arrived[u, d] >= 0:
                    start = max(start, arrived[u, d])
                else:
                    start = max(start, _arrival(tables, u, a, d, finish[u], channel_free))
            if start + time_s[d, v] < best_s:
                best, best_s = d, start + time_s[d, v]
        if best < 0:
            return
        start = free[best]
        for k in range(inputs_start[v], inputs_start[v + 1]):
            u = inputs[k]
            if device[u] < 0 and not _settle_input(rooms, u, best):
                return
            a = device[u]
            if a == best:
                start = max(start, finish[u])
                continue
            if arrived[u, best] < 0:
                arrived[u, best] = _arrival(tables, u, a, best, finish[u], channel_free)
                channel_free[tables.channel[a, best]] = arrived[u, best]
            start = max(start, arrived[u, best])
        _settle(rooms, v, best)
        finish[v] = start + time_s[best, v]
        if time_s[best, v] > 0:
            free[best] = finish[v]
    _settle_rest(rooms)


@jit
def _arrival(tables: StepTables, u: int, a: int, b: int, end_s: float, channel_free: FloatArray) -> float:
    """When an output is on device b that was made on device a, its transfer being the next one of its channel."""
    c = tables.channel[a, b]
    begin = max(end_s, channel_free[c])
    return float(begin + tables.latency_s[c] + tables.output_bytes[u] * tables.s_per_byte[c])


@jit
def _etf(tables: StepTables, rooms: _Rooms, rank: FloatArray, favourite: IntArray) -> None:  # noqa: PLR0912, PLR0915 -- one loop over a schedule
    """Settle of all operations that are ready the one that starts first; stops where there is no room."""
    readers_start, readers = tables.readers_start, tables.readers
    inputs_start, inputs = tables.inputs_start, tables.inputs
    time_s, device = tables.time_s, rooms.device
    n, devices = rank.size, time_s.shape[0]
    free, finish, waits_until = np.zeros(devices), np.zeros(n), np.zeros(devices)
    waits_for = np.full(devices, -1, dtype=np.int64)
    arrival = np.zeros((n, devices))
    missing = np.zeros(n, dtype=np.int64)
    ready, count = np.zeros(n, dtype=np.int64), 0
    stack, top = np.zeros(n, dtype=np.int64), 0
    for v in range(n):
        missing[v] = inputs_start[v + 1] - inputs_start[v]
        if missing[v] > 0:
            continue
        if not _takes_time(tables, v):
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
                    f = waits_for[d]
                    if f >= 0 and f != v and device[f] < 0 and _last_arrival(arrival, v) > start:
                        start = max(start, waits_until[d])
                    if start > best_s or not _may(rooms, v, d):
                        continue
                    if start < best_s or rank[v] > rank[ready[best]]:
                        best, best_at, best_s = i, d, start
            if best < 0:
                return
            v = ready[best]
            count -= 1
            ready[best] = ready[count]
            for k in range(inputs_start[v], inputs_start[v + 1]):
                if device[inputs[k]] < 0 and not _settle_input(rooms, inputs[k], best_at):
                    return
            _settle(rooms, v, best_at)
            finish[v] = best_s + time_s[best_at, v]
            if time_s[best_at, v] > 0:
                free[best_at] = finish[v]
                waits_for[best_at] = favourite[v]
                waits_until[best_at] = finish[v] + _slowest_transfer(tables, v, best_at)
        for k in range(readers_start[v], readers_start[v + 1]):
            s = readers[k]
            missing[s] -= 1
            if missing[s] == 0:
                _set_arrivals(tables, rooms, s, finish, arrival)
                ready[count] = s
                count += 1
    _settle_rest(rooms)


@jit
def _last_arrival(arrival: FloatArray, v: int) -> float:
    """When the inputs of an operation are on all devices."""
    last = 0.0
    for d in range(arrival.shape[1]):
        last = max(last, arrival[v, d])
    return last


@jit
def _slowest_transfer(tables: StepTables, v: int, a: int) -> float:
    """Seconds that an operation's output takes from a device to the one that it takes longest to."""
    slowest = 0.0
    for d in range(tables.time_s.shape[0]):
        if d != a:
            c = tables.channel[a, d]
            slowest = max(slowest, tables.latency_s[c] + tables.output_bytes[v] * tables.s_per_byte[c])
    return slowest


@jit
def _set_arrivals(tables: StepTables, rooms: _Rooms, v: int, finish: FloatArray, arrival: FloatArray) -> None:
    """When all inputs of an operation are on each device, whatever else its channels carry."""
    for d in range(rooms.used.size):
        for k in range(tables.inputs_start[v], tables.inputs_start[v + 1]):
            u = tables.inputs[k]
            a = _where(rooms, u)
            there = finish[u]
            if a >= 0 and a != d:
                c = tables.channel[a, d]
                there += tables.latency_s[c] + tables.output_bytes[u] * tables.s_per_byte[c]
            arrival[v, d] = max(arrival[v, d], there)
