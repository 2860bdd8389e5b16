"""The loops of planners.strategies.bounds, compiled by numba; numpy's ways are there, for where it is not installed."""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray

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
    seconds: float, corners: FloatArray, counts: IntArray, spent: FloatArray, room: FloatArray, unit: float
) -> float:
    """Work that all ranks do in so many seconds, at most."""
    whole = 0.0
    for rank in range(spent.size):
        left, most = max(seconds - spent[rank], 0.0), np.inf
        for vertex in range(counts[rank]):
            most = min(most, corners[rank, vertex, 0] * left + corners[rank, vertex, 1] * room[rank])
        whole += np.floor(most / unit + SLACK) * unit if unit > 0.0 else most
    return whole


@jit
def _largest(amounts: FloatArray) -> float:
    """Of [S, n]; numpy's own takes half a second to compile."""
    largest = 0.0
    for i in range(amounts.shape[0]):
        for j in range(amounts.shape[1]):
            largest = max(largest, amounts[i, j])
    return largest


@jit
def _same_rank(rank: int, times: FloatArray, held: FloatArray) -> bool:
    """Whether a rank's columns are those of the one before."""
    differing = rank == 0
    for j in range(times.shape[1] if rank else 0):
        differing = differing or times[rank, j] != times[rank - 1, j] or held[rank, j] != held[rank - 1, j]
    return not differing


@jit
def _vertices_of_ranks(
    times: FloatArray, held: FloatArray, work: FloatArray, corners: FloatArray, counts: IntArray
) -> None:
    """Fill [S, count, 2] of `corners` with the vertices of each rank, and [S] counts."""
    ranks, columns = times.shape
    scale_t, scale_m = _largest(times), max(_largest(held), 1e-30)
    t, m = np.empty(columns), np.empty(columns)
    for rank in range(ranks):
        if _same_rank(rank, times, held):
            counts[rank] = counts[rank - 1]
            for vertex in range(counts[rank]):
                corners[rank, vertex, 0] = corners[rank - 1, vertex, 0]
                corners[rank, vertex, 1] = corners[rank - 1, vertex, 1]
            continue
        for j in range(columns):
            t[j], m[j] = times[rank, j] / scale_t, held[rank, j] / scale_m
        counts[rank] = _vertices(t, m, work, corners[rank])
        for vertex in range(counts[rank]):
            corners[rank, vertex, 0] /= scale_t
            corners[rank, vertex, 1] /= scale_m


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
    corners, counts = np.empty((ranks, 2 + columns * (columns - 1) // 2, 2)), np.zeros(ranks, np.int64)
    _vertices_of_ranks(times, held, work, corners, counts)
    needed = whole * (1 - SLACK)
    if enough_s < np.inf and _done(enough_s, corners, counts, spent, room, unit) < needed:
        return enough_s
    low, least = 0.0, np.inf
    for rank in range(ranks):
        low = max(low, spent[rank])
    for j in range(columns):
        least = min(least, work[j])
    high = low + _largest(times) * whole / least
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
def sorted_by(keys: FloatArray, count: int) -> IntArray:
    """The first so many places in the order of their keys, equal ones as they come: a few, by insertion.

    numpy's sorts take seconds to compile.
    """
    order = np.empty(count, np.int64)
    for i in range(count):
        place = i
        while place > 0 and keys[order[place - 1]] > keys[i]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i
    return order


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
    for i in sorted_by(rates, count):
        piece = min(sizes[i], blocks - filled)
        total += piece * rates[i]
        filled += sizes[i]
        if filled >= blocks:
            return float(total)
    return total if filled >= blocks * (1 - SLACK) else np.inf
