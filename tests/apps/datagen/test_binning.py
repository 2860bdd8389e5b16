"""Bins stand for the instructions that the grid of core.coarsen puts together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.coarsen import Grid
from automap_models.datagen.binning import Bins
from automap_models.datagen.distributions import Exponential


def bins_of(n: int, points: int) -> Bins:
    return Bins.create(np.array([n], dtype=np.int32), 2 * points)


@given(n=st.integers(2, 5000), points=st.integers(2, 200))
def test_the_bins_up_to_a_point_hold_the_instructions_up_to_it(n: int, points: int) -> None:
    bins = bins_of(n, points)
    point_bins = bins.point_bins(points)[0]
    covered = np.cumsum(bins.span[0])[point_bins]
    np.testing.assert_array_equal(covered - 1, Grid(n, points).instruction_of_point)


@given(n=st.integers(2, 5000), points=st.integers(2, 200))
def test_every_instruction_is_in_one_bin(n: int, points: int) -> None:
    bins = bins_of(n, points)
    assert bins.span.sum() == n
    np.testing.assert_array_equal(bins.first[0, 1:], bins.first[0, :-1] + bins.span[0, :-1])
    assert bins.span[0, bins.last[0]] >= 1
    assert bins.span[0, bins.last[0] + 1 :].sum() == 0


@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_the_sum_of_a_run_has_the_moments_of_a_sum_over_its_instructions(zeros: float) -> None:
    """Each of k instructions is 0 with probability p, else exponential: mean kq, variance kq + kq·p (q = 1 - p)."""
    rng, k, q, groups = np.random.default_rng(4), 6, 1 - zeros, 2000
    bins = Bins.create(np.full(groups, 128 * k, dtype=np.int32), 128)
    marginal = Exponential(1.0)
    count = bins.how_many(rng, np.full((groups, 1), q, dtype=np.float32))
    sums = bins.totals(marginal.draw(rng, bins.shape), marginal.mean, count).astype(np.float64)
    assert sums.min() >= 0
    assert sums.mean() == pytest.approx(k * q, rel=0.01)
    assert sums.var() == pytest.approx(k * q + k * q * zeros, rel=0.02)
    assert (sums == 0).mean() == pytest.approx(zeros**k, abs=0.01)


def test_an_instruction_a_cell_is_drawn_as_it_is() -> None:
    rng = np.random.default_rng(5)
    bins = Bins.create(np.array([3, 4], dtype=np.int32), 4)
    values = rng.random(bins.shape, dtype=np.float32)
    expected = values.copy()
    expected[0, 3] = 0  # past the end of the shorter model
    np.testing.assert_array_equal(bins.totals(values, 0.5, bins.span), expected)
