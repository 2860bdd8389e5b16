"""Array tools of the exact search: fronts of many small groups at once, ragged ranges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray

IntArray = NDArray[np.int64]


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
    from automap_models.planners.staged import search_kernel  # numba takes half a second to import

    front: IntArray = search_kernel.undominated(group, np.ascontiguousarray(numbers))
    return front


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
