"""Tables that construct plans: the stages of a pipeline whose span is least (cost-model.md), for the cost of a table.

    u(i, k, a, q)    = (C[k] - C[i]) / speed                                   of stage s, on devices a … q-1
    behind[k, a, q]  = min over e of max((M+1) · x, 2 · x + best[s+1, k, q, e])       x = message(a, q, e) · A[k]
    best[s, i, a, q] = min over k of max(M · u + ending, u + behind[k, a, q], turns · (u + 2 · x + u of stage s+1))

Boundaries are some of the grid's, devices lie in groups: a plan of the tables is where moves (move_kernel) set out
from, not an answer. What comes after the last backward pass counts, or as if the all-reduce were hidden. Under 1F1B
stage s holds one micro-batch more than stage s+1, so that two of them go round between both at a time (cost.suffixes):
turns are the rounds after the warm-up. Of stage s+1 it is the best one's u, whatever others there are: with it the span
is that of the plan, though maybe not the least of all.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.beam_kernel import reduced_s, state_bytes, weights_bytes
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, C, F, H, PlainStages, W
from automap_models.planners.staged.plan_kernel import holds_work, message_s
from automap_models.planners.staged.scheduled_stages import ScheduledStages

POINTS, GROUPS = 32, 16
"""Boundaries and groups of devices of a table, at least; there are twice as many as stages, but no more than MOST."""
MOST = 32
"""Stages of a table, and groups of its devices: 32 of each take some tenth of a second and 30 MB."""


def constructed(problem: StagedProblem, plain: PlainStages, own: ScheduledStages) -> list[IntArray]:
    """[2, S+1] boundaries and devices where the stages of the tables' plans begin, and the end; none where none fits.

    Of more than MOST stages there are none: pipelines so deep come of dividing the stages of others.

    Args:
        problem: of several stages on equal nodes.
        plain, own: its stages between the cuts of its grid, or others.
    """
    if problem.stages > MOST:
        return []
    points = _spread(plain, max(POINTS, 2 * problem.stages))
    devices = plain.parts.size - 1
    groups = min(devices, max(GROUPS, min(2 * problem.stages, MOST)))
    bounds = np.unique(np.rint(np.arange(groups + 1) * devices / groups).astype(np.int64))
    tables = [least_bottleneck(plain, own, points, bounds, reduced) for reduced in (1.0, 0.0)]
    return [route for load_s, route in tables if np.isfinite(load_s)]


def _spread(plain: PlainStages, most: int) -> IntArray:
    """Up to so many boundaries, the first and the last one among them.

    Of each of even shares of the work, and of the parameters, the boundary that least crosses.
    """
    last = plain.sums.shape[1] - 1
    if last <= most:
        return np.arange(last + 1)
    points = {0, last}
    for row, shares in ((C, 2 * most // 3), (W, most // 3)):
        ends = np.searchsorted(plain.sums[row], np.arange(shares + 1) * plain.sums[row, -1] / shares)
        for begin, end in pairwise(np.clip(ends, 1, last).tolist()):
            if begin < end:
                points.add(begin + int(plain.sums[A, begin:end].argmin()))
    return np.array(sorted(points), dtype=np.int64)


@jit
def least_bottleneck(  # noqa: PLR0912 -- one loop over all places of all stages
    plain: PlainStages, own: ScheduledStages, points: IntArray, bounds: IntArray, reduced: float
) -> tuple[float, IntArray]:
    """The span of the best plan with what comes after its last passes, inf where none fits; and its route, [2, S+1].

    Args:
        plain, own: the problem.
        points: [P+1] boundaries where stages may begin, from 0 to the end.
        bounds: [G+1] devices where they may begin, from 0 to all.
        reduced: the share of the all-reduces that counts.
    """
    stages, last, end = plain.held.size, points.size - 1, bounds.size - 1
    best, both = np.full((2, last + 1, end + 1, end + 1), np.inf), np.zeros((2, last + 1, end + 1, end + 1))
    to = np.zeros((2, stages, last + 1, end + 1, end + 1), dtype=np.int16)
    behind, trip = np.empty(last + 1), np.zeros(last + 1)
    receiver = np.empty(last + 1, dtype=np.int64)
    for s in range(stages - 1, -1, -1):
        now, after = s % 2, 1 - s % 2  # of this stage, and of the one after it
        for i in range(last + 1):
            best[now, i] = np.inf
        turns = (
            0.0 if s == stages - 1 else (plain.micro_batches - plain.held[s]) // (1 + plain.held[s] - plain.held[s + 1])
        )
        for a in range(min(s, end), end if s else 1):
            for q in range(a + 1, end + 1 - (stages - 1 - s)):
                first, stop = bounds[a], bounds[q]
                if stop - first > plain.most_replicas:
                    break
                if (q == end) != (s == stages - 1):
                    continue
                behind[:], behind[last] = np.inf, 0.0 if q == end else np.inf
                for e in range(q + 1, end + 1):
                    per_byte = message_s(plain, own.tied.samples, first, stop, bounds[e])
                    for k in range(last):
                        x = per_byte * plain.sums[A, points[k]]
                        load = max((plain.micro_batches + 1.0) * x, 2.0 * x + best[after, k, q, e])
                        if load < behind[k]:
                            behind[k], receiver[k], trip[k] = load, e, both[after, k, q, e] + 2.0 * x
                ring, speed = reduced * reduced_s(plain, first, stop), plain.speeds[stop - first]
                for i in range(s, last if s else 1):
                    least = np.inf
                    for k in range(i + 1, last + 1):
                        u = (plain.sums[C, points[k]] - plain.sums[C, points[i]]) / speed
                        if plain.micro_batches * u >= least:
                            break  # and so it is for stages that end later
                        if u + behind[k] < least:
                            load = stage_load(plain, s, points[i], points[k], stop - first, ring)
                            load = max(load, u + behind[k], turns * (u + trip[k]))
                            if load < least:
                                both[now, i, a, q] = u
                                least, to[0, s, i, a, q], to[1, s, i, a, q] = load, k, receiver[k]
                    best[now, i, a, q] = least
    route = np.zeros((2, stages + 1), dtype=np.int64)
    i, a, q = 0, 0, int(np.argmin(best[0, 0, 0]))
    least = best[0, 0, 0, q]
    for s in range(stages):
        i, a, q = to[0, s, i, a, q], q, to[1, s, i, a, q]
        route[0, s + 1], route[1, s + 1] = points[i], bounds[a]
    return least, route


@jit
def stage_load(plain: PlainStages, s: int, i: int, k: int, replicas: int, ring: float) -> float:
    """M·u of stage s between two boundaries and what comes after its last pass, s; inf where it does not fit."""
    both, nbytes = plain.sums[C, k] - plain.sums[C, i], weights_bytes(plain, i, k)
    held = state_bytes(plain, i, k) + plain.held[s] * (plain.sums[H, k] - plain.sums[H, i]) / plain.parts[replicas]
    if held > plain.memory or not holds_work(plain, both, plain.sums[W, k] - plain.sums[W, i]):
        return np.inf
    speed = plain.speeds[replicas]
    reduce, backward = ring * nbytes, (both - (plain.sums[F, k] - plain.sums[F, i])) / speed
    ending = reduce - plain.overlap * min(reduce, backward) + plain.update_s * nbytes
    return plain.micro_batches * both / speed + ending  # type: ignore[no-any-return]
