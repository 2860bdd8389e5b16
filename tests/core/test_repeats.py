"""Runs on a busy machine: how many are made, which counts, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from automap_models.core.repeats import repeated, settled


def _runs(seconds: list[float], repeats: int) -> tuple[list[float], bool]:
    given: Iterator[float] = iter(seconds)
    return repeated(lambda: next(given), float, repeats)


def test_runs_go_on_until_as_many_as_asked_for_agree_with_the_least() -> None:
    """One model took 440, 34.7 and 12.9 ms in three profiles of a busy machine; the median of each was believed."""
    assert _runs([440.0, 34.7, 12.9, 13.1, 13.0, 99.0], 3) == ([440.0, 34.7, 12.9, 13.1, 13.0], True)


def test_runs_that_agree_at_once_are_not_repeated() -> None:
    assert _runs([1.0, 1.05, 1.09, 0.1], 3) == ([1.0, 1.05, 1.09], True)


def test_runs_that_never_agree_end_and_say_so() -> None:
    runs, steady = _runs([2.0**k for k in range(100)], 2)
    assert (len(runs), steady) == (2 * 6, False)


@pytest.mark.parametrize(("seconds", "expected"), [([1.0], True), ([1.0, 2.0], False), ([1.0, 2.0, 1.1], True)])
def test_others_agree_within_a_tenth(seconds: list[float], expected: bool) -> None:
    assert settled(seconds, min(2, len(seconds))) is expected
