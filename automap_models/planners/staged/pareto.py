"""Array tools of the exact search: fronts of many small groups at once, ragged ranges, minima over windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray

IntArray = NDArray[np.int64]


def pareto_front(group: IntArray, first: FloatArray, second: FloatArray) -> IntArray:
    """Indices of the entries that no entry of their own group dominates, ascending by group.

    An entry dies when another has both numbers no larger; of equal entries one stays.

    Args:
        group: [n] group of each entry, ascending.
        first, second: [n] the two numbers to keep small.
    """
    if not group.size:
        return np.zeros(0, dtype=np.int64)
    alive = _beyond_pivots(group, first, second)
    order = alive[np.lexsort((second[alive], first[alive], group[alive]))]
    return order[_below_all_before(group[order], second[order])]


def _beyond_pivots(group: IntArray, first: FloatArray, second: FloatArray) -> IntArray:
    """Indices of the entries that their group's pivot, the one of least sum, leaves alive.

    The pivot is on the front, and near-convex fronts keep little else: sorting what is left is cheap.
    """
    starts = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    length = np.diff(np.append(starts, group.size))
    total = first + second
    least = np.repeat(np.minimum.reduceat(total, starts), length)
    at_least = np.flatnonzero(total == least)
    mark = group[at_least]
    pivot = at_least[np.concatenate(([True], mark[1:] != mark[:-1]))]
    alive = (first < np.repeat(first[pivot], length)) | (second < np.repeat(second[pivot], length))
    alive[pivot] = True
    return np.flatnonzero(alive)


def _below_all_before(group: IntArray, value: FloatArray) -> NDArray[np.bool_]:
    """[n] whether an entry is strictly below every earlier one of its group (a segmented running minimum)."""
    least = value.copy()
    step = 1
    while step < group.size:
        same = group[step:] == group[:-step]
        if not same.any():
            break
        least[step:] = np.where(same, np.minimum(least[step:], least[:-step]), least[step:])
        step *= 2
    below = np.ones(group.size, dtype=bool)
    below[1:] = (group[1:] != group[:-1]) | (value[1:] < least[:-1])
    return below


def ragged_ranges(start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """The ranges start[j] … stop[j]-1 laid end to end: for each element its j and its value."""
    length = np.maximum(stop - start, 0)
    offset = np.cumsum(length) - length
    owner = np.repeat(np.arange(length.size), length)
    return owner, np.arange(owner.size) - np.repeat(offset - start, length)


def window_minima(values: FloatArray, start: IntArray) -> FloatArray:
    """[c, r, n] minimum of values[c, r, start[r, k] : k] for each k; inf where the window is empty.

    Two overlapping windows of a power of two cover any window.

    Args:
        values: [c, r, n].
        start: [r, n] first index of each window.
    """
    rows, n = start.shape
    levels = n.bit_length()
    tables = np.empty((levels, *values.shape))
    tables[0] = values
    for level in range(1, levels):
        half, before = 1 << (level - 1), tables[level - 1]
        tables[level] = before
        np.minimum(before[..., :-half], before[..., half:], out=tables[level, ..., :-half])
    length = np.arange(n) - start
    level = np.frexp(np.maximum(length, 1))[1].astype(np.int64) - 1
    low = np.minimum(start, n - 1)
    high = np.where(length > 0, np.arange(n) - (1 << level), low)
    # One-dimensional indices are several times as fast as one index an axis.
    row = level * values.size + np.arange(rows)[:, None] * n
    channel = np.arange(values.shape[0])[:, None, None] * (rows * n)
    minima: FloatArray = np.minimum(tables.take(channel + (row + low)), tables.take(channel + (row + high)))
    minima[:, length <= 0] = np.inf
    return minima
