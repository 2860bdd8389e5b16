"""Tables that construct plans: the stages of a pipeline whose largest load is least, for the cost of a table.

    load(i, k, a, q) = max(M · (C[k] - C[i]) / parts + reduce(a, q) · W, M · message(a, q) · A[k])
    best[t, i, a]    = min over k, q of max(load(i, k, a, q), best[t-1, k, q])         best[0, m, D] = 0

t counts stages from the last one, so that what a stage holds of activations, which depends on how many come after it
under 1F1B, is known. Boundaries are some of the grid's, devices lie in groups: a plan of the tables is where moves
(move_kernel) set out from, not an answer. The all-reduce counts in full, or not at all as if it were hidden, and a
message as if its receiver had as many devices as its sender, both of which moves then see as they are.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.beam_kernel import reduced_s, state_bytes, weights_bytes
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, C, H, PlainStages, W
from automap_models.planners.staged.plan_kernel import holds_work, message_s
from automap_models.planners.staged.scheduled_stages import ScheduledStages

POINTS, GROUPS = 32, 16
"""Boundaries and groups of devices of a table, at most: 16 stages take some ten milliseconds."""


def constructed(problem: StagedProblem, plain: PlainStages, own: ScheduledStages) -> list[IntArray]:
    """[2, S+1] boundaries and devices where the stages of the tables' plans begin, and the end; none where none fits.

    Args:
        problem: of several stages on equal nodes.
        plain, own: its stages between the cuts of its grid, or others.
    """
    points = _spread(plain.sums[C], max(POINTS, 2 * problem.stages))
    devices = plain.parts.size - 1
    groups = min(devices, max(GROUPS, 2 * problem.stages))
    bounds = np.unique(np.rint(np.arange(groups + 1) * devices / groups).astype(np.int64))
    tables = [least_bottleneck(plain, own, points, bounds, reduced) for reduced in (1.0, 0.0)]
    return [route for load_s, route in tables if np.isfinite(load_s)]


def _spread(C: FloatArray, most: int) -> IntArray:
    """Up to so many boundaries between even shares of the work, the first and the last one among them."""
    last = C.size - 1
    if last <= most:
        return np.arange(last + 1)
    even = np.searchsorted(C, np.arange(1, most) * C[-1] / most)
    return np.unique(np.concatenate(([0], even, [last]))).astype(np.int64)


@jit
def least_bottleneck(
    plain: PlainStages, own: ScheduledStages, points: IntArray, bounds: IntArray, reduced: float
) -> tuple[float, IntArray]:
    """The largest load of the best plan, inf where none fits; and its route, [2, S+1].

    Args:
        plain, own: the problem.
        points: [P+1] boundaries where stages may begin, from 0 to the end.
        bounds: [G+1] devices where they may begin, from 0 to all.
        reduced: the share of the all-reduces that counts.
    """
    stages, last, end = plain.held.size, points.size - 1, bounds.size - 1
    best = np.full((stages + 1, last + 1, end + 1), np.inf)
    to = np.zeros((2, stages + 1, last + 1, end + 1), dtype=np.int64)
    best[0, last, end] = 0.0
    for t in range(1, stages + 1):
        s = stages - t  # so many stages come before, each of a boundary and a group of devices at least
        for a in range(min(s, end), end if s else 1):
            for q in range(a + 1, end + 1 - (t - 1)):
                first, stop = bounds[a], bounds[q]
                if stop - first > plain.most_replicas:
                    break
                parts, ring = plain.parts[stop - first], reduced * reduced_s(plain, first, stop)
                message = (
                    message_s(plain, own.buckets, first, stop, min(2 * stop - first, bounds[end])) if q < end else 0.0
                )
                for i in range(s, last if s else 1):
                    for k in range(i + 1, last + 1):
                        rounds_s = plain.micro_batches * (plain.sums[C, points[k]] - plain.sums[C, points[i]]) / parts
                        if rounds_s >= best[t, i, a]:
                            break  # and so it is for stages that end later
                        if best[t - 1, k, q] >= best[t, i, a]:
                            continue
                        load = stage_load(plain, s, points[i], points[k], parts, ring, message)
                        load = max(load, best[t - 1, k, q])
                        if load < best[t, i, a]:
                            best[t, i, a] = load
                            to[0, t, i, a], to[1, t, i, a] = k, q
    route = np.zeros((2, stages + 1), dtype=np.int64)
    i, a = 0, 0
    for s in range(stages):
        i, a = to[0, stages - s, i, a], to[1, stages - s, i, a]
        route[0, s + 1], route[1, s + 1] = points[i], bounds[a]
    return best[stages, 0, 0], route


@jit
def stage_load(plain: PlainStages, s: int, i: int, k: int, parts: float, ring: float, message: float) -> float:
    """The load of stage s between two boundaries, s; inf where it does not fit or holds no work."""
    both, nbytes = plain.sums[C, k] - plain.sums[C, i], weights_bytes(plain, i, k)
    held = state_bytes(plain, i, k) + plain.held[s] * (plain.sums[H, k] - plain.sums[H, i]) / parts
    if held > plain.memory or not holds_work(plain, both, plain.sums[W, k] - plain.sums[W, i]):
        return np.inf
    rounds = plain.micro_batches
    return max(rounds * both / parts + ring * nbytes, rounds * message * plain.sums[A, k])  # type: ignore[no-any-return]
