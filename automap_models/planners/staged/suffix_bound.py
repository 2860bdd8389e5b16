"""A proven lower bound on the length of a pipeline by dynamic programming from the back, for problems of any size.

Of the stages s … S-1 alone, beginning at boundary i on device a, two numbers can be no smaller than

    T(i, a) = min over the stage's end k and its last device q of  max( M·u, u + g )        span (staged.exact)
    V(i, a) = min over the same of  max( T + AR, f + h )                                    span and all-reduces

where g and h are the least that follows, the transfer x over the boundary included:

    g = max( 2M·x, 2x + T(k, q) )         h = x + V(k, q)

    | stage  i … k  on  a … q-1 | x | all that follows: its T and its V, which may belong to different plans |
      u, f, AR exact              least over the devices behind q (g, h); again from behind, over those before q

Proof. T is the recursion of staged.exact with each term at its least. A stage's all-reduce begins when its last
backward pass is over, no earlier than T after the stages' own beginning; those behind it begin f + x later at least.
Both never fall when what follows rises, so the least of what follows can stand for it. Where all-reduces overlap the
last backward pass only AR - u counts. L is V of the whole model; the simulated step of a schedule is no shorter, as no
schedule passes over a link or a stage in less time.

This holds for every schedule of the same resources. The labels of staged.exact keep both numbers of one plan together
and know the sender and the receiver of each transfer; here a place has one number each, so that 16 stages on 128
devices take seconds. A stage longer than `limit_s`, and places that only such plans come through, are left out.
The loops are compiled by numba (core.compiled). Without it they would take minutes: then there is no such bound.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import is_compiled, jit
from automap_models.core.profile import FloatArray
from automap_models.planners.base import Deadline
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import ROUNDING, ShardingTables, StageTables

SPAN, LENGTH = range(2)
"""Rows of what is known of places: T, V, and both with the transfer into the first stage."""


def suffix_bound_s(tables: StageTables, limit_s: float, deadline: Deadline) -> float:
    """A length, at most `limit_s`, that no plan of these tables falls below; 0 where time is up or nothing compiles.

    Args:
        tables: of the problem.
        limit_s: plans that are longer are of no interest.
        deadline: when to stop.
    """
    if not is_compiled(begin_on):
        return 0.0
    devices, last = tables.replicas_in_all, tables.stages - 1
    limits = np.array((tables.micro_batches, limit_s * (1.0 + ROUNDING), tables.suffixes.overlap))
    places = _places(tables, limit_s)
    works = [(sharding, _sums(tables, sharding), _paces(sharding)) for sharding in tables.shardings]
    rest = np.full((2, devices + 1, devices + 1, tables.end + 1), np.inf, dtype=np.float32)
    ends = np.full((devices + 1, 2), tables.end)
    for stage in range(last, -1, -1):
        before = np.full_like(rest, np.inf)
        held = np.array((tables.state_factor, tables.in_flight(stage)))
        for a in range(stage, devices - last + stage) if stage else range(1):
            if deadline.passed:
                return 0.0
            first = devices if stage == last else a + 1
            for sharding, sums, paces in works:
                stops = np.flatnonzero(sharding.allowed[a, first : devices - last + stage + 1]) + first
                for q in stops.tolist():
                    if stage == last:
                        g = h = np.zeros(tables.end + 1)
                    else:
                        g, h = behind(q, limits, sums[6], tables.devices.transfer[q][a], ends[q], rest[:, q])
                    begin_on(limits, held, sums, paces[:, a, q], places[stage][a], ends[q], g, h, before[:, a, q])
        rest, ends = before, places[stage]
    return float(min(rest[LENGTH, 0, :, 0].min() * (1.0 - 1e-6 * tables.stages), limit_s))


@jit
def behind(
    q: int, limits: FloatArray, A: FloatArray, transfer: FloatArray, ends: IntArray, rest: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """[m+1] each g and h behind a stage that ends right before device q."""
    micro = limits[0]
    g, h = np.full(A.size, np.inf), np.full(A.size, np.inf)
    for e in range(q + 1, rest.shape[1]):
        per_byte = transfer[e - q - 1]
        for k in range(ends[0], ends[1] + 1):
            x = A[k] * per_byte
            g[k] = min(g[k], max(2.0 * micro * x, 2.0 * x + rest[SPAN, e, k]))
            h[k] = min(h[k], x + rest[LENGTH, e, k])
    return g, h


def _places(tables: StageTables, limit_s: float) -> list[IntArray]:
    """[S][D+1, 2] the first and the last boundary at which each stage may begin on each device.

    The devices before it get the work before it done within the limit, and those behind it what is behind it.
    """
    pieces = [sharding.degree * np.diff(sharding.least_C) for sharding in tables.shardings]
    work = np.append(0.0, np.cumsum(np.min(pieces, axis=0)))
    done = limit_s * (1.0 + ROUNDING) / tables.micro_batches * tables.capacity
    doubt = ROUNDING * work[-1]
    first = np.searchsorted(work, work[-1] - (done[-1] - done) - doubt)
    last = np.searchsorted(work, done + doubt, side="right") - 1
    return [
        np.stack((np.maximum(first, least), np.minimum(last, most)), axis=1) for least, most in tables.windows.tolist()
    ]


def _sums(tables: StageTables, sharding: ShardingTables) -> FloatArray:
    """[7, m+1] C and F at least, W and H, what sharing operators costs whatever the replicas, forward too; and A."""
    least_F = np.append(0.0, np.diff(sharding.F, axis=1).min(0)).cumsum()
    start = np.zeros_like(tables.A), np.zeros_like(tables.A)
    if sharding.shared:
        start = sharding.shared.start_s, sharding.shared.start_forward_s
    return np.stack((sharding.least_C, least_F, sharding.W, sharding.H, *start, tables.A))


def _paces(sharding: ShardingTables) -> FloatArray:
    """[4, D+1, D+1] rate, seconds per byte of all-reduces, parts and memory of stages on devices a … q-1."""
    return np.stack((sharding.paces.rate, sharding.all_reduce, sharding.paces.parts, sharding.paces.memory))


@jit
def begin_on(
    limits: FloatArray,
    held: FloatArray,
    sums: FloatArray,
    pace: FloatArray,
    begins: IntArray,
    ends: IntArray,
    g: FloatArray,
    h: FloatArray,
    before: FloatArray,
) -> None:
    """x"""
    micro, limit, overlap = limits
    C, F, W, H, start, start_forward, A = sums
    rate, ring, parts, memory = pace
    for i in range(begins[0], begins[1] + 1):
        span, length = np.inf, np.inf
        for k in range(max(ends[0], i + 1), ends[1] + 1):
            u = (C[k] - C[i]) / rate + (start[k] - start[i])
            weights = W[k] - W[i]
            if micro * u > limit or held[0] * weights + held[1] * (H[k] - H[i]) / parts > memory * (1.0 + 1e-9):
                break
            reduce = ring * weights
            if overlap:
                reduce = max(reduce - u, 0.0)
            own = max(micro * u, u + g[k])
            forward = (F[k] - F[i]) / rate + (start_forward[k] - start_forward[i])
            span = min(span, own)
            length = min(length, max(own + reduce, forward + h[k]))
        if length <= limit:
            before[SPAN, i] = span
            before[LENGTH, i] = length
