"""Array tools of the exact search: fronts of many small groups at once, ragged ranges, minima over windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import is_compiled
from automap_models.core.profile import FloatArray

IntArray = NDArray[np.int64]


@cache
def compiled_search() -> ModuleType | None:
    """The compiled loops of the exact search; None where numba is not installed."""
    from automap_models.planners.staged import search_kernel  # numba takes half a second to import

    return search_kernel if is_compiled(search_kernel.undominated) else None


def pareto_front(group: IntArray, numbers: FloatArray) -> IntArray:
    """Indices of the entries that no entry of their own group dominates, ascending by group.

    An entry dies when another has all numbers no larger; of equal entries one stays. Of more than two numbers some
    dominated entries may stay, too: those that none of a few entries of their group dominates.

    Args:
        group: [n] group of each entry, ascending.
        numbers: [c, n] the numbers to keep small, c ≥ 2.
    """
    if not group.size:
        return np.zeros(0, dtype=np.int64)
    kernel = compiled_search()
    if kernel is not None:
        front: IntArray = kernel.undominated(group, np.ascontiguousarray(numbers))
        return front
    alive = _beyond_pivots(group, numbers)
    order = alive[np.lexsort((*numbers[::-1, alive], group[alive]))]
    if len(numbers) > 2:
        return order[_beyond_some_before(group[order], numbers[1:, order])]
    return order[_below_all_before(group[order], numbers[1, order])]


def _beyond_some_before(group: IntArray, numbers: FloatArray) -> NDArray[np.bool_]:
    """[n] whether an entry is alive when compared with a few of the earlier ones of its group.

    These are the least by each of the numbers, and by their sum.
    """
    alive = np.ones(group.size, dtype=bool)
    for value in (*numbers, numbers.sum(0)):
        before = _least_before(group, value)
        alive &= (before < 0) | (numbers < numbers[:, before]).any(axis=0)
    return alive


def _least_before(group: IntArray, value: FloatArray) -> IntArray:
    """[n] index of the least of the earlier entries of its group; -1 for the first (a segmented running minimum)."""
    least = np.arange(group.size)
    step = 1
    while step < group.size:
        same = group[step:] == group[:-step]
        if not same.any():
            break
        earlier, own = least[:-step].copy(), least[step:]
        least[step:] = np.where(same & (value[earlier] <= value[own]), earlier, own)
        step *= 2
    before = np.full(group.size, -1)
    before[1:] = np.where(group[1:] == group[:-1], least[:-1], -1)
    return before


def _beyond_pivots(group: IntArray, numbers: FloatArray) -> IntArray:
    """Indices of the entries that their group's pivot, the one of least sum, leaves alive.

    The pivot is on the front, and near-convex fronts keep little else: sorting what is left is cheap.
    """
    starts = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    length = np.diff(np.append(starts, group.size))
    total = numbers.sum(0)
    least = np.repeat(np.minimum.reduceat(total, starts), length)
    at_least = np.flatnonzero(total == least)
    mark = group[at_least]
    pivot = at_least[np.concatenate(([True], mark[1:] != mark[:-1]))]
    alive = np.array((numbers < np.repeat(numbers[:, pivot], length, axis=1)).any(axis=0))
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


def in_blocks(entries: IntArray, most: int) -> Iterator[IntArray]:
    """Successive indices of places, of each of which [n] entries: at most so many in all unless one place has more."""
    cumulated = np.cumsum(entries)
    limits = np.searchsorted(cumulated, np.arange(most, cumulated[-1] if cumulated.size else 0, most))
    yield from (some for some in np.split(np.arange(entries.size), np.unique(limits)) if some.size)


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
