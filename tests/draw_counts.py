"""How many random cases a law is tested with: a few in the fast tests, hundreds in the slow ones, thousands by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

BY_HAND = (pytest.mark.slow, pytest.mark.thorough)


def counts(fast: int | None, slow: int, by_hand: int) -> list[Any]:
    """Values of an argument that says how many cases to draw; each more than the one before, from the same seed.

    Args:
        fast: in `make test`, if at all.
        slow: in `make test-slow`.
        by_hand: in `make test-thorough`.
    """
    few = [] if fast is None else [fast]
    return [*few, pytest.param(slow, marks=pytest.mark.slow), pytest.param(by_hand, marks=BY_HAND)]


def parts(slow: int, of: int) -> Iterable[Any]:
    """Numbers of the parts of a long test, the first of which are slow tests, and all others tests by hand."""
    return [pytest.param(part, marks=pytest.mark.slow if part < slow else BY_HAND) for part in range(of)]
