"""The least value that is enough, by halving an interval."""

from __future__ import annotations

from collections.abc import Callable

HALVINGS = 60
"""As many as change anything: a double has 53 binary digits."""


def least_enough(high: float, enough: Callable[[float], bool]) -> float:
    """The least value from 0 to `high` that is enough, up to rounding; `high` where nothing smaller is.

    Args:
        high: a value that is enough.
        enough: whether a value is; with one that is, every larger one is, too.
    """
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
