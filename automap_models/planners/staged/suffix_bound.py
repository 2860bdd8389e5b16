"""A proven lower bound on what any plan takes, by dynamic programming from the back: for problems too large to search.

For the stages s … S-1 alone, of which the first begins at boundary i and works on devices a … q-1, four numbers are the
least that any plan can have. u, f, b and AR are those of stage s; at each boundary k where it may end, behind it are

      i            k              the model's end
      ├── stage s ─┼── x ──┤ all that follows: its least span', length', trip' and exposed',
         a … q-1     q … e-1 which may belong to different plans

    g = max(2M·x, 2x + span')    h = x + length'    r = 2x + trip'    p = exposed' - x

each at its least over the devices e by itself, with the transfer x over the boundary. The numbers are

    trip      u + r                      the round trip of a micro-batch
    span      max(M·u, u + g)            from the first pass of stage s to its last; under a schedule also
              u + r + (M-1)·u - (w-1)·f           the passes left after its first backward pass
              n·(u + r) + (M-1 - (n-1)·w)·b       every w-th micro-batch waits for the one w before it, n = ⌈M / w⌉
    exposed   max(AR, p - b)             what all-reduces take beyond the backward passes before them, for the length L
    length    max(span + exposed, f + h)          until all gradients are reduced

Proof. For the length L, span and exposed are T and R of staged.exact with each term at its least, and none of the terms
falls when what follows rises; L is their sum. Under a schedule a stage does its last backward pass no earlier than its
span after its first pass, and its all-reduce overlaps at most that pass, so that exposed is AR - u. What follows begins
f + x later at least. A stage has w micro-batches in flight at most, so that micro-batch j + w enters it when
micro-batch j has left: a chain of ⌈M / w⌉ round trips, behind which the last micro-batches' backward passes are left.

Parts. Under a schedule no step is shorter than RT + part_s, the whole plan's round trip and what the micro-batches
behind it add at any stage s (staged.round_trips). The least trip and the least span belong to different plans, so
plans are divided by their largest part. Of those whose largest part lies between P and Q, stages with a larger one than
Q are left out, and two numbers are

    late      max(trip, span - P)        no more than what any such plan's step takes beyond P,
    length    max(late, span + exposed - P, f + h)

late holds the trip and the span of one plan together: it is u + max(2x + late', 2M·x - P) or more. So P + length is a
bound. The interval that has the least is halved as long as that helps.

The labels of staged.exact keep all numbers of one plan together. Here a place has four numbers, so that 16 stages on
128 devices take seconds. Of the ends of a stage only those count whose length is within the limit: this keeps the
numbers of plans apart that are best in one of them and hopeless in another.
The loops are compiled by numba (core.compiled). Without it they would take minutes: then there is no such bound.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import is_compiled, jit
from automap_models.core.profile import FloatArray
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import ROUNDING, ShardingTables, StageTables

Numbers = NDArray[np.float32]

SPAN, LENGTH, TRIP, EXPOSED, LATE = NUMBERS = range(5)
GAIN = 1e-3
"""A bound that rises by less, relatively, is as good."""
IN_VAIN = 3
"""So many intervals of largest parts are halved one after the other without a gain before that ends."""
CLOSE = 3e-3
"""Of the limit: largest parts that differ by less are not told apart."""
FLOAT32 = 1e-6
"""Relative error that a stage's numbers get by being kept in float32, at most."""
LEAST_STEP_S = 1.2e-9
"""Of a step of the loops; where there is less time than that there is no need to begin."""
MOST_BYTES = 1 << 29
"""Of the numbers of two stages, 2 · 4 · 5 · (D+1)² · (m+1): so many 320 devices have with 128 boundaries."""


@cache
def compile_loops() -> bool:
    """Have the loops compiled: half a second, or a few where numba has not kept them from before; False without numba.

    To be called before time is counted that a search may take.
    """
    if not is_compiled(_begin):
        return False
    one, whole = np.ones(2), np.ones(2, dtype=np.int64)
    pairs, numbers = np.ones((5, 2, 2)), np.ones((5, 2, 2, 2), dtype=np.float32)
    behind = _behind(0, 1.0, 0.0, one, one, whole, numbers[:, 0])  # of the layouts that they are called with
    _begin(np.ones(6), np.ones(3), np.ones((7, 2)), pairs[:, 0, 0], whole, whole, behind, numbers[:, 0, 0])
    return True


def suffix_bound_s(tables: StageTables, limit_s: float, deadline: Deadline) -> float:
    """A step, or without a schedule a length, that no plan of these tables falls below; at most the limit.

    A lower limit leaves out more, and so the bound of what is left may be higher. It is asked again with limits between
    the bound and the last limit, as long as that helps.

    Args:
        tables: of the problem.
        limit_s: plans that take longer are of no interest.
        deadline: when to stop.

    Returns:
        The bound; 0 where the time is up, the tables are too large or nothing can be compiled.
    """
    low, high, limit = 0.0, limit_s, limit_s
    while True:
        least = _least_s(tables, limit, 0.0, limit, deadline)
        gain, low = least - low, max(low, least)
        high = limit if least < limit else high
        if gain <= GAIN * low or high <= (1.0 + GAIN) * low:
            return low
        limit = (low * high) ** 0.5


def bound_by_parts_s(tables: StageTables, limit_s: float, deadline: Deadline) -> float:
    """The same with plans divided by their largest part; 0 without a schedule, too. It takes some twenty times as long.

    Args:
        tables, limit_s, deadline: as of suffix_bound_s.
    """
    if not (tables.suffixes.overlap and np.isfinite(limit_s)):
        return 0.0
    intervals, in_vain = [(_least_s(tables, limit_s, 0.0, limit_s, deadline), 0.0, limit_s)], 0
    while in_vain < IN_VAIN:
        (bound_s, least, most), *others = intervals
        if bound_s >= limit_s or most - least < CLOSE * limit_s:
            break
        middle = (least + most) / 2.0
        halves = [
            (max(bound_s, _least_s(tables, limit_s, low, high, deadline)), low, high)
            for low, high in ((least, middle), (middle, most))
        ]
        intervals = sorted([*others, *halves])
        in_vain = in_vain + 1 if intervals[0][0] <= bound_s * (1.0 + GAIN) else 0
        if deadline.passed:
            break
    return intervals[0][0]


def _least_s(tables: StageTables, limit_s: float, least: float, most: float, deadline: Deadline) -> float:
    """The bound of all plans that take no longer than the limit, or the limit; see suffix_bound_s.

    Args:
        tables, limit_s, deadline: as there.
        least, most: what the largest part of the plans is between; 0 and the limit for all plans.
    """
    devices, last = tables.replicas_in_all, tables.stages - 1
    shape = (len(NUMBERS), devices + 1, devices + 1, tables.end + 1)
    if 8 * int(np.prod(shape)) > MOST_BYTES or not compile_loops():
        return 0.0
    micro, places = float(tables.micro_batches), _places(tables, limit_s)
    if LEAST_STEP_S * _steps(places) > deadline.left_s:
        return 0.0
    works = [
        (
            sharding.allowed,
            _limits(tables, sharding, limit_s, least, most),
            _sums(tables, sharding),
            _paces(tables, sharding),
        )
        for sharding in tables.shardings
    ]
    rest, ends = np.zeros(shape, dtype=np.float32), np.full((devices + 1, 2), tables.end)
    for stage in range(last, -1, -1):
        before = np.full(shape, np.inf, dtype=np.float32)
        held = np.array((tables.state_factor, tables.in_flight(stage), stage == 0), dtype=np.float64)
        for a in range(stage, devices - last + stage) if stage else range(1):
            if deadline.passed:
                return 0.0
            for q in range(a + 1, devices - last + stage + 1) if stage < last else (devices,):
                behind = np.zeros((len(NUMBERS), tables.end + 1))
                if stage < last:
                    effort.count(effort.BEHIND, (devices - q) * (ends[q, 1] - ends[q, 0] + 1))
                    behind = _behind(q, micro, least, tables.A, tables.devices.transfer[q][a], ends[q], rest[:, q])
                for allowed, limits, sums, paces in works:
                    if allowed[a, q]:
                        of_stage = paces[:, a, q], places[stage][a], ends[q]
                        pairs = _begin(limits, held, sums, *of_stage, behind, before[:, a, q])
                        effort.count(effort.SUFFIXES, pairs)
        rest, ends = before, places[stage]
    length_s = float(rest[LENGTH, 0, :, 0].min()) * (1.0 - FLOAT32 * tables.stages)
    return min(least + length_s, limit_s)


def _steps(places: list[IntArray]) -> int:
    """How many steps the inner loops take at most; of the last stage there are next to none."""
    steps = 0
    for begins, ends in pairwise(places):
        own, after = (np.maximum(np.diff(place, axis=1).ravel() + 1, 0) for place in (begins, ends))
        stops = np.arange(after.size)
        steps += int((np.cumsum(own)[:-1] * after[1:]).sum() + (stops * (after.size - stops) * after).sum())
    return steps


def _places(tables: StageTables, limit_s: float) -> list[IntArray]:
    """[S][D+1, 2] the first and the last boundary at which each stage may begin on each device.

    The devices before it get the work before it done within the limit, and those behind it what is behind it.
    """
    windows, devices = tables.windows, tables.replicas_in_all
    if not np.isfinite(limit_s):
        return [np.tile(window, (devices + 1, 1)) for window in windows]
    pieces = [sharding.degree * np.diff(sharding.least_C) for sharding in tables.shardings]
    work = np.append(0.0, np.cumsum(np.min(pieces, axis=0)))
    done = limit_s * (1.0 + ROUNDING) / tables.micro_batches * tables.capacity
    doubt = ROUNDING * work[-1]
    first = np.searchsorted(work, work[-1] - (done[-1] - done) - doubt)
    last = np.searchsorted(work, done + doubt, side="right") - 1
    return [np.stack((np.maximum(first, least), np.minimum(last, most)), axis=1) for least, most in windows.tolist()]


def _sums(tables: StageTables, sharding: ShardingTables) -> FloatArray:
    """[7, m+1] C, F, W, H, frozen; what sharing costs whatever the replicas, and its forward part. At least."""
    least_F = np.append(0.0, np.diff(sharding.F, axis=1).min(0)).cumsum() if len(sharding.F) > 1 else sharding.F[0]
    start = np.zeros_like(tables.A), np.zeros_like(tables.A)
    if sharding.shared:
        start = sharding.shared.start_s, sharding.shared.start_forward_s
    return np.stack((sharding.least_C, least_F, sharding.W, sharding.H, sharding.frozen, *start))


def _paces(tables: StageTables, sharding: ShardingTables) -> FloatArray:
    """[5, D+1, D+1] of devices a … q-1: rate, seconds per byte of all-reduces, parts, memory, if in several nodes."""
    node, paces = tables.cluster.node_of, sharding.paces
    node = np.append(node, node[-1])
    crosses = node[:, None] < np.append(node[0], node[:-1])
    return np.stack((paces.rate, sharding.all_reduce, paces.parts, paces.memory, crosses))


def _limits(tables: StageTables, sharding: ShardingTables, limit_s: float, least: float, most: float) -> FloatArray:
    """[6] M, the limit, whether all-reduces overlap the last backward pass, whether the schedule's terms count; P, Q.

    These need f itself and not the least that it can be, which is all that is known where operators are shared.
    """
    known = sharding.shared is None and len(sharding.C) == 1
    overlap = tables.suffixes.overlap
    limits = limit_s * (1.0 + ROUNDING), overlap, overlap and known, least, most * (1.0 + ROUNDING)
    return np.array((tables.micro_batches, *limits), dtype=np.float64)


@jit
def _behind(
    q: int, micro: float, least: float, A: FloatArray, transfer: FloatArray, ends: IntArray, rest: Numbers
) -> FloatArray:
    """[5, m+1] g, h, r, p and late behind a stage that ends right before device q, for the boundaries of its end.

    Args:
        q: first device of the next stage.
        micro: M.
        least: P.
        A: [m+1] bytes over each boundary.
        transfer: [D-q] seconds per byte from the stage's devices to q … e-1, for each e.
        ends: [2] the first and the last boundary where the next stage may begin.
        rest: [5, D+1, m+1] its numbers, by e and boundary.
    """
    behind = np.full((5, A.size), np.inf)
    g, h, r, p, late = behind
    for e in range(q + 1, rest.shape[1]):
        per_byte = transfer[e - q - 1]
        for k in range(ends[0], ends[1] + 1):
            x = A[k] * per_byte
            g[k] = min(g[k], max(2.0 * micro * x, 2.0 * x + rest[SPAN, e, k]))
            h[k] = min(h[k], x + rest[LENGTH, e, k])
            r[k] = min(r[k], 2.0 * x + rest[TRIP, e, k])
            p[k] = min(p[k], rest[EXPOSED, e, k] - x)
            late[k] = min(late[k], max(2.0 * micro * x - least, 2.0 * x + rest[LATE, e, k]))
    return behind


@jit
def _begin(
    limits: FloatArray,
    held: FloatArray,
    sums: FloatArray,
    pace: FloatArray,
    begins: IntArray,
    ends: IntArray,
    behind: FloatArray,
    before: Numbers,
) -> int:
    """The numbers of a stage on devices a … q-1 and of all behind it, for every boundary where it may begin.

    Args:
        limits: [6] see _limits.
        held: σ, the micro-batches in flight at most, w, and whether it is the first stage.
        sums: [6, m+1] see _sums.
        pace: [5] see _paces.
        begins, ends: [2] the first and the last boundary where it, and where the next stage may begin.
        behind: [5, m+1] see _behind.
        before: [5, m+1] its numbers by boundary; they fall to what is found here.

    Returns:
        How many pairs of a beginning and an end were looked at.
    """
    pairs = 0
    micro, limit, overlap, scheduled, least, most = limits
    state, flight, is_first = held
    C, F, W, H, frozen, start, start_forward = sums
    rate, ring, parts, memory, crosses = pace
    work, forward, reduced = C / rate + start, F / rate + start_forward, ring * W
    kept = state * W + frozen + flight / parts * H
    memory *= 1.0 + 1e-9
    g, h, r, p, late = behind
    turns = np.ceil(micro / flight)
    left_over = micro - 1.0 - (turns - 1.0) * flight
    for i in range(begins[0], begins[1] + 1):
        first = stop = max(ends[0], i + 1)
        while stop <= ends[1] and micro * (work[stop] - work[i]) <= limit and kept[stop] - kept[i] <= memory:
            stop += 1
        pairs += stop - first
        length, span, trip, exposed, later = np.inf, np.inf, np.inf, np.inf, np.inf
        for k in range(first, stop):
            u, f, reduce = work[k] - work[i], forward[k] - forward[i], reduced[k] - reduced[i]
            round_trip, own, part = u + r[k], max(micro * u, u + g[k]), 0.0
            if scheduled:
                passes = (micro - 1.0) * u - (flight - 1.0) * f
                part = max(passes, (turns - 1.0) * round_trip + left_over * (u - f))
                own = max(own, round_trip + part)
                if is_first or crosses:
                    part = max(part, passes + reduce - (u - f))
                if micro - 1.0 >= flight:
                    part = max(part, round_trip + (micro - 1.0 - flight) * u)
            reduce = max(reduce - u, 0.0) if overlap else max(reduce, p[k] - (u - f))
            beyond = max(round_trip + max(part - least, 0.0), u + late[k], own - least)
            whole = max(own + reduce - least, f + h[k], beyond)
            if part <= most and least + round_trip <= limit and own + reduce <= limit and least + whole <= limit:
                length, span = min(length, whole), min(span, own)
                trip, exposed, later = min(trip, round_trip), min(exposed, reduce), min(later, beyond)
        if length <= limit:
            before[SPAN, i] = min(before[SPAN, i], span)
            before[LENGTH, i] = min(before[LENGTH, i], length)
            before[TRIP, i] = min(before[TRIP, i], trip)
            before[EXPOSED, i] = min(before[EXPOSED, i], exposed)
            before[LATE, i] = min(before[LATE, i], later)
    return pairs
