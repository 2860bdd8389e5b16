"""The loops of planners.strategies.bounds, compiled by numba; numpy's ways are there, for where it is not installed."""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray

SLACK = 1e-9
"""Relative; what is infeasible by less counts as feasible."""


@jit
def _covered(alpha: float, beta: float, t: FloatArray, m: FloatArray, work: FloatArray) -> bool:
    """Whether a point is in the dual's polyhedron: no column does more work for its seconds and bytes."""
    if not (alpha >= 0.0 and beta >= 0.0 and alpha + beta < np.inf):
        return False
    uncovered = 0
    for j in range(work.size):
        uncovered += not (alpha * t[j] + beta * m[j] >= work[j] * (1 - SLACK))
    return uncovered == 0


@jit
def _vertices(t: FloatArray, m: FloatArray, work: FloatArray, corners: FloatArray) -> int:
    """How many vertices the dual of a rank has; [count, 2] of `corners` become their alpha and beta."""
    count = 0
    for axis in range(2):
        own, most = t if axis == 0 else m, 0.0
        for j in range(work.size):
            most = max(most, work[j] / own[j])
        alpha, beta = (most, 0.0) if axis == 0 else (0.0, most)
        if _covered(alpha, beta, t, m, work):
            corners[count, 0], corners[count, 1] = alpha, beta
            count += 1
    for i in range(work.size):
        for j in range(i + 1, work.size):
            determinant = t[i] * m[j] - t[j] * m[i]
            if determinant == 0.0:
                continue
            alpha = (work[i] * m[j] - work[j] * m[i]) / determinant
            beta = (t[i] * work[j] - t[j] * work[i]) / determinant
            if _covered(alpha, beta, t, m, work):
                corners[count, 0], corners[count, 1] = alpha, beta
                count += 1
    return count


@jit
def _done(
    seconds: float, corners: FloatArray, counts: FloatArray, spent: FloatArray, room: FloatArray, unit: float
) -> float:
    """Work that all ranks do in so many seconds, at most."""
    whole = 0.0
    for rank in range(spent.size):
        left, most = max(seconds - spent[rank], 0.0), np.inf
        for vertex in range(int(counts[rank])):
            most = min(most, corners[rank, vertex, 0] * left + corners[rank, vertex, 1] * room[rank])
        whole += np.floor(most / unit + SLACK) * unit if unit > 0.0 else most
    return whole


@jit
def least_time(
    times: FloatArray,
    held: FloatArray,
    work: FloatArray,
    spent: FloatArray,
    room: FloatArray,
    whole: float,
    unit: float,
    enough_s: float,
    halvings: int,
) -> float:
    """Seconds in which ranks do the whole work; see bounds._least_time, which is the same in numpy."""
    ranks, columns = times.shape
    scale_t, scale_m = times.max(), max(held.max(), 1e-30)
    corners = np.empty((ranks, 2 + columns * (columns - 1) // 2, 2))
    counts = np.zeros(ranks)
    for rank in range(ranks):
        alike = rank > 0
        if alike:
            for j in range(columns):
                if times[rank, j] != times[rank - 1, j] or held[rank, j] != held[rank - 1, j]:
                    alike = False
                    break
        if alike:
            corners[rank], counts[rank] = corners[rank - 1], counts[rank - 1]
            continue
        count = _vertices(times[rank] / scale_t, held[rank] / scale_m, work, corners[rank])
        for vertex in range(count):
            corners[rank, vertex, 0] /= scale_t
            corners[rank, vertex, 1] /= scale_m
        counts[rank] = count
    needed = whole * (1 - SLACK)
    if enough_s < np.inf and _done(enough_s, corners, counts, spent, room, unit) < needed:
        return enough_s
    low = spent.max()
    high = low + scale_t * whole / work.min()
    if _done(high, corners, counts, spent, room, unit) < needed:
        return np.inf
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        if _done(middle, corners, counts, spent, room, unit) >= needed:
            high = middle
        else:
            low = middle
    return float(low)


@jit
def dealt_out(seconds: FloatArray, most: FloatArray, blocks: float) -> float:
    """Least seconds of so many blocks on all ranks; see bounds._dealt_out, which is the same in numpy."""
    ranks, kinds = seconds.shape
    rates, sizes, count = np.empty(ranks * kinds), np.empty(ranks * kinds), 0
    for rank in range(ranks):
        here, spent = 0.0, 0.0
        while True:
            chosen, rate = -1, np.inf
            for j in range(kinds):
                if most[rank, j] > here * (1 + SLACK):
                    slope = (most[rank, j] * seconds[rank, j] - spent) / (most[rank, j] - here)
                    if slope < rate:
                        chosen, rate = j, slope
            if chosen < 0:
                break
            rates[count], sizes[count] = rate, most[rank, chosen] - here
            count += 1
            spent, here = most[rank, chosen] * seconds[rank, chosen], most[rank, chosen]
    filled, total = 0.0, 0.0
    for i in np.argsort(rates[:count], kind="mergesort"):
        piece = min(sizes[i], blocks - filled)
        total += piece * rates[i]
        filled += sizes[i]
        if filled >= blocks:
            return float(total)
    return total if filled >= blocks * (1 - SLACK) else np.inf
