"""A table that constructs a plan: the stages of a pipeline whose span is least (cost-model.md).

    u(i, k, a, q)    = (C[k] - C[i]) / speed                                   of stage s, on devices a … q-1
    behind[k, a, q]  = min over e of max((M+1) · x, 2 · x + best[s+1, k, q, e])       x = message(a, q, e) · A[k]
    best[s, i, a, q] = min over k of max(M · u + ending, u + behind[k, a, q], turns · (u + 2 · x + u of stage s+1))

Boundaries are some of the grid's, devices lie in groups: the plan is where moves (move_kernel) set out from, not an
answer. Under 1F1B stage s holds one micro-batch more than stage s+1, so that two of them go round between both at a
time: turns are the rounds after the warm-up. Of stage s+1 it is the best one's u, whatever others there are: with it
the span is that of the plan, though maybe not the least of all.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.planners.staged.stage_arrays import PADDING, C, StageArrays, W
from automap_models.planners.staged.stage_kernel import BOUNDARY, DEVICE, ending_s, fits, holds_work, moved_s, stage_s

POINTS, GROUPS = 32, 16
"""Boundaries and groups of devices of a table, at least; there are twice as many as stages, but no more than MOST."""
MOST = 32
"""Stages of a table, and groups of its devices: 32 of each take some tenth of a second and 30 MB."""


def constructed(stages: StageArrays) -> IntArray | None:
    """[3, S+1] the route (stage_kernel) of the table's plan; None where none fits.

    Of more than MOST stages there is none: pipelines so deep come of dividing the stages of others.
    """
    count, devices = stages.stages, stages.devices
    if count > MOST:
        return None
    points = _spread(stages, max(POINTS, 2 * count))
    groups = min(devices, max(GROUPS, min(2 * count, MOST)))
    bounds = np.unique(np.rint(np.arange(groups + 1) * devices / groups).astype(np.int64))
    load_s, route = least_bottleneck(stages, points, bounds)
    return route if np.isfinite(load_s) else None


def _spread(stages: StageArrays, most: int) -> IntArray:
    """Up to so many boundaries, the first and the last one among them, and the ends of windows that are narrower.

    Of each of even shares of the work, and of the parameters, the boundary that least crosses.
    """
    last = stages.last
    if last <= most:
        return np.arange(last + 1)
    points = {0, last}
    for row, shares in ((C, 2 * most // 3), (W, most // 3)):
        sums = stages.sums[0, row]
        ends = np.searchsorted(sums, np.arange(shares + 1) * sums[-1] / shares)
        for begin, end in pairwise(np.clip(ends, 1, last).tolist()):
            if begin < end:
                points.add(begin + int(stages.crossing[begin:end].argmin()))
    for s in range(1, stages.stages):
        first, final = stages.windows[s].tolist()
        if (first, final) != (s, last - stages.stages + s):
            points |= {first, final}
    return np.array(sorted(points), dtype=np.int64)


@jit
def least_bottleneck(  # noqa: PLR0912 -- one loop over all places of all stages
    stages: StageArrays, points: IntArray, bounds: IntArray
) -> tuple[float, IntArray]:
    """The span of the best plan with what comes after its last passes, inf where none fits; and its route, [3, S+1].

    Args:
        points: [P+1] boundaries where stages may begin, from 0 to the end.
        bounds: [G+1] devices where they may begin, from 0 to all.
    """
    count, last, end, rounds = stages.in_flight.size, points.size - 1, bounds.size - 1, stages.micro_batches
    best, both = np.full((2, last + 1, end + 1, end + 1), np.inf), np.zeros((2, last + 1, end + 1, end + 1))
    to = np.zeros((2, count, last + 1, end + 1, end + 1), dtype=np.int16)
    behind, trip = np.empty(last + 1), np.zeros(last + 1)
    receiver, work, route = np.empty(last + 1, dtype=np.int64), np.empty(2), np.zeros((3, count + 1), dtype=np.int64)
    for s in range(count - 1, -1, -1):
        now, after = s % 2, 1 - s % 2  # of this stage, and of the one after it
        for i in range(last + 1):
            best[now, i] = np.inf
        turns = 0.0
        if s < count - 1:
            turns = (rounds - stages.in_flight[s]) // (1 + stages.in_flight[s] - stages.in_flight[s + 1])
        for a in range(min(s, end), end if s else 1):
            for q in range(a + 1, end + 1 - (count - 1 - s)):
                # The last stage has the last devices, and no other one has.
                if (q == end) != (s == count - 1):
                    continue
                behind[:], behind[last] = np.inf, 0.0 if q == end else np.inf
                for e in range(q + 1, end + 1):
                    padding = max(stages.speeds[0, bounds[a], bounds[q], PADDING], 1.0)
                    padding = max(padding, stages.speeds[0, bounds[q], bounds[e], PADDING])
                    per_byte = moved_s(stages, padding, bounds[a], bounds[q], bounds[e])
                    for k in range(last):
                        x = per_byte * stages.crossing[points[k]]
                        load = max((rounds + 1.0) * x, 2.0 * x + best[after, k, q, e])
                        if load < behind[k]:
                            behind[k], receiver[k], trip[k] = load, e, both[after, k, q, e] + 2.0 * x
                route[DEVICE, s], route[DEVICE, s + 1] = bounds[a], bounds[q]
                for i in range(s, last if s else 1):
                    least = np.inf
                    for k in range(i + 1, last + 1):
                        # With what is behind that end alone a stage is no better.
                        if not behind[k] < least:
                            continue
                        route[BOUNDARY, s], route[BOUNDARY, s + 1] = points[i], points[k]
                        load = stage_load(stages, route, s, least, behind[k], work)
                        if work[1] >= least:
                            break  # and so it is for stages that end later
                        load = max(load, work[0] + behind[k], turns * (work[0] + trip[k]))
                        if load < least:
                            both[now, i, a, q] = work[0]
                            least, to[0, s, i, a, q], to[1, s, i, a, q] = load, k, receiver[k]
                    best[now, i, a, q] = least
    # From the first stage on, along the choices that were the best.
    i, a, q = 0, 0, 0
    for k in range(end + 1):
        if best[0, 0, 0, k] < best[0, 0, 0, q]:
            q = k
    least = best[0, 0, 0, q]
    for s in range(count):
        i, a, q = to[0, s, i, a, q], q, to[1, s, i, a, q]
        route[BOUNDARY, s + 1], route[DEVICE, s + 1] = points[i], bounds[a]
    return least, route


@jit
def stage_load(stages: StageArrays, route: IntArray, s: int, limit_s: float, behind: float, work: FloatArray) -> float:
    """M·u of stage s of a route and what comes after its last pass, s, in the best sharding; inf where none fits.

    Args:
        limit_s, behind: of no interest is what takes longer, itself or one u and what is behind it.
        work: [2] becomes u in that sharding, and M·u at least in any.
    """
    i, k, a, q = route[BOUNDARY, s], route[BOUNDARY, s + 1], route[DEVICE, s], route[DEVICE, s + 1]
    best, work[0], work[1] = np.inf, 0.0, np.inf
    for j in range(stages.kind.shape[0]):
        if stages.kind[j, a, q] < 0:
            continue
        forward, backward = stage_s(stages, j, i, k, a, q)
        load = stages.micro_batches * (forward + backward)
        work[1] = min(work[1], load)
        if load >= limit_s or forward + backward + behind >= limit_s:
            continue
        if not (holds_work(stages, i, k) and fits(stages, route, s, j)):
            continue
        late, update = ending_s(stages, j, i, k, a, q, backward)
        load += late + update
        if load < best:
            best, work[0] = load, forward + backward
    return best
