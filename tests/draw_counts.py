"""How many random cases a law is tested with: a few, hundreds where there is time, thousands by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def counts(fewest: int | None, some: int, many: int) -> list[Any]:
    """Values of an argument that says how many cases to draw; each more than the one before, from the same seed.

    Args:
        fewest: in `make test`, if at all.
        some: in `make test-slow` or `make test-thorough`.
        many: in `make test-random`.
    """
    return [*([] if fewest is None else [fewest]), some, pytest.param(many, marks=pytest.mark.random)]


def parts(some: int, of: int) -> Iterable[Any]:
    """Numbers of the parts of a long test: the first ones, and those of `make test-random`."""
    return [part if part < some else pytest.param(part, marks=pytest.mark.random) for part in range(of)]
