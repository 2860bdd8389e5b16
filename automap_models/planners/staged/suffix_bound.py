"""A proven lower bound on the length L of any plan, by dynamic programming from the back: for large problems.

For the stages s … S-1 alone, of which the first begins at boundary i and works on devices a … q-1, three numbers are
the least that any plan can have. u, f, b and AR are those of stage s; at each boundary k where it may end lie behind it

      i            k              the model's end
      ├── stage s ─┼── x ──┤ all that follows: its least span', length' and exposed',
         a … q-1     q … e-1 which may belong to different plans

    g = max(2M·x, 2x + span')    h = x + length'    p = exposed' - x

each at its least over the devices e by itself, with the transfer x over the boundary. The numbers are

    span      max(M·u, u + g)            from the first pass of stage s to its last
    exposed   max(AR, p - b)             what all-reduces take beyond the backward passes before them
    length    max(span + exposed, f + h)          until all gradients are reduced

Proof. Span and exposed are T and R of staged.exact with each term at its least, and none of the terms falls when what
follows rises; L is their sum. What follows begins f + x later at least.

The labels of staged.exact keep both numbers of one plan together. Here a place has three numbers, so that 16 stages on
128 devices take seconds. Of the ends of a stage only those count whose length is within the limit: this keeps the
numbers of plans apart that are best in one of them and hopeless in another.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import ROUNDING, ShardingTables, StageTables

Numbers = NDArray[np.float32]

SPAN, LENGTH, EXPOSED = NUMBERS = range(3)
GAIN = 1e-3
"""A bound that rises by less, relatively, is as good."""
FLOAT32 = 1e-6
"""Relative error that a stage's numbers get by being kept in float32, at most."""
LEAST_STEP_S = 1.2e-9
"""Of a step of the loops; where there is less time than that there is no need to begin."""
MOST_BYTES = 1 << 29
"""Of the numbers of two stages, 2 · 3 · 4 · (D+1)² · (m+1): so many 320 devices have with 128 boundaries."""


def suffix_bound_s(tables: StageTables, limit_s: float, deadline: Deadline) -> float:
    """A length that no plan of these tables falls below; at most the limit.

    A lower limit leaves out more, and so the bound of what is left may be higher. It is asked again with limits between
    the bound and the last limit, as long as that helps.

    Args:
        tables: of the problem.
        limit_s: plans that take longer are of no interest.
        deadline: when to stop.

    Returns:
        The bound; 0 where the time is up or the tables are too large.
    """
    low, high, limit = 0.0, limit_s, limit_s
    while True:
        least = _least_s(tables, limit, deadline)
        gain, low = least - low, max(low, least)
        high = limit if least < limit else high
        if gain <= GAIN * low or high <= (1.0 + GAIN) * low:
            return low
        limit = (low * high) ** 0.5


def _least_s(tables: StageTables, limit_s: float, deadline: Deadline) -> float:
    """The bound of all plans that take no longer than the limit, or the limit; see suffix_bound_s.

    Args:
        tables, limit_s, deadline: as there.
    """
    devices, last = tables.replicas_in_all, tables.stages - 1
    shape = (len(NUMBERS), devices + 1, devices + 1, tables.end + 1)
    if 8 * int(np.prod(shape)) > MOST_BYTES:
        return 0.0
    micro, places = float(tables.micro_batches), _places(tables, limit_s)
    slack = ROUNDING + FLOAT32 * tables.stages  # or else rounding would lose plans as long as the limit
    limits = np.array((micro, limit_s * (1.0 + slack)))
    if LEAST_STEP_S * _steps(places) > deadline.left_s:
        return 0.0
    works = [
        (
            sharding.allowed,
            limits,
            _sums(tables, sharding),
            _paces(tables, sharding),
        )
        for sharding in tables.shardings
    ]
    rest, ends = np.zeros(shape, dtype=np.float32), np.full((devices + 1, 2), tables.end)
    for stage in range(last, -1, -1):
        before = np.full(shape, np.inf, dtype=np.float32)
        held = np.array((tables.state_factor, tables.in_flight(stage)), dtype=np.float64)
        for a in range(stage, devices - last + stage) if stage else range(1):
            if deadline.passed:
                return 0.0
            for q in range(a + 1, devices - last + stage + 1) if stage < last else (devices,):
                behind = np.zeros((len(NUMBERS), tables.end + 1))
                if stage < last:
                    effort.count(effort.BEHIND, (devices - q) * (ends[q, 1] - ends[q, 0] + 1))
                    behind = _behind(q, micro, tables.A, tables.devices.transfer[q][a], ends[q], rest[:, q])
                for allowed, limits, sums, paces in works:
                    if allowed[a, q]:
                        of_stage = paces[:, a, q], places[stage][a], ends[q]
                        pairs = _begin(limits, held, sums, *of_stage, behind, before[:, a, q])
                        effort.count(effort.SUFFIXES, pairs)
        rest, ends = before, places[stage]
    length_s = float(rest[LENGTH, 0, :, 0].min()) * (1.0 - FLOAT32 * tables.stages)
    return min(length_s, limit_s)


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
    """[4, D+1, D+1] of devices a … q-1: rate, seconds per byte of all-reduces, parts, memory."""
    paces = sharding.paces
    return np.stack((paces.rate, sharding.all_reduce, paces.parts, paces.memory))


@jit
def _behind(q: int, micro: float, A: FloatArray, transfer: FloatArray, ends: IntArray, rest: Numbers) -> FloatArray:
    """[3, m+1] g, h and p behind a stage that ends right before device q, for the boundaries of its end.

    Args:
        q: first device of the next stage.
        micro: M.
        A: [m+1] bytes over each boundary.
        transfer: [D-q] seconds per byte from the stage's devices to q … e-1, for each e.
        ends: [2] the first and the last boundary where the next stage may begin.
        rest: [3, D+1, m+1] its numbers, by e and boundary.
    """
    behind = np.full((3, A.size), np.inf)
    g, h, p = behind
    for e in range(q + 1, rest.shape[1]):
        per_byte = transfer[e - q - 1]
        for k in range(ends[0], ends[1] + 1):
            x = A[k] * per_byte
            g[k] = min(g[k], max(2.0 * micro * x, 2.0 * x + rest[SPAN, e, k]))
            h[k] = min(h[k], x + rest[LENGTH, e, k])
            p[k] = min(p[k], rest[EXPOSED, e, k] - x)
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
        limits: [2] M and the limit.
        held: σ, and the micro-batches in flight at most, w.
        sums: [6, m+1] see _sums.
        pace: [4] see _paces.
        begins, ends: [2] the first and the last boundary where it, and where the next stage may begin.
        behind: [3, m+1] see _behind.
        before: [3, m+1] its numbers by boundary; they fall to what is found here.

    Returns:
        How many pairs of a beginning and an end were looked at.
    """
    pairs = 0
    micro, limit = limits
    state, flight = held
    C, F, W, H, frozen, start, start_forward = sums
    rate, ring, parts, memory = pace
    work, forward, reduced = C / rate + start, F / rate + start_forward, ring * W
    kept = state * W + frozen + flight / parts * H
    memory *= 1.0 + 1e-9
    g, h, p = behind
    for i in range(begins[0], begins[1] + 1):
        first = stop = max(ends[0], i + 1)
        while stop <= ends[1] and micro * (work[stop] - work[i]) <= limit and kept[stop] - kept[i] <= memory:
            stop += 1
        pairs += stop - first
        length, span, exposed = np.inf, np.inf, np.inf
        for k in range(first, stop):
            u, f = work[k] - work[i], forward[k] - forward[i]
            own, late = max(micro * u, u + g[k]), max(reduced[k] - reduced[i], p[k] - (u - f))
            whole = max(own + late, f + h[k])
            if whole <= limit:
                length, span, exposed = min(length, whole), min(span, own), min(exposed, late)
        if length <= limit:
            before[SPAN, i] = min(before[SPAN, i], span)
            before[LENGTH, i] = min(before[LENGTH, i], length)
            before[EXPOSED, i] = min(before[EXPOSED, i], exposed)
    return pairs
