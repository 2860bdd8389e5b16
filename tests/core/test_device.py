"""What products of matrices reach of a device's peak, worked out by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.device import TILES, Device, StepConstants
from automap_models.errors import BadInput

WHOLE = StepConstants(
    product_efficiency=1.0,
    half_size=0.0,
    attention_efficiency=1.0,
    bandwidth_efficiency=1.0,
    launch_s=0.0,
    intra_efficiency=1.0,
    inter_efficiency=1.0,
    overlap=0.0,
)
"""Every tile loses nothing by its size, so that the best one fills multiprocessors best."""


def _share(constants: StepConstants, multiprocessors: int | None, *sizes: float) -> float:
    return float(constants.product_efficiencies(np.array([sizes]), multiprocessors)[0])


def test_the_last_round_of_multiprocessors_is_filled_in_part() -> None:
    """NVIDIA's guide, "Wave Quantization": 1792 × 1792 is 98 tiles of 256 × 128 on the 108 multiprocessors of an A100,
    one round; 1793 needs 7 · 15 or 8 · 14, and 2048 × 1792 has 112 tiles: a second round for four of them."""
    large = StepConstants(1.0, 1e5, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)  # other tiles lose by their size
    deep = 1e12  # and depth nothing
    assert _share(large, 108, 1, 1792, 1792, deep) == pytest.approx(98 / 108, rel=1e-6)
    assert _share(large, 108, 1, 2048, 1792, deep) == pytest.approx(112 / 216, rel=1e-6)
    assert _share(large, None, 1, 2048, 1792, deep) == pytest.approx(1.0, rel=1e-6)


def test_products_beside_one_another_fill_rounds_together() -> None:
    large = StepConstants(1.0, 1e5, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    assert _share(large, 80, 40, 256, 256, 1e12) == pytest.approx(1.0, rel=1e-6)


def test_small_tiles_read_more_operands_for_a_product() -> None:
    """64 × 64 reads 2/64 for each, 256 × 128 reads 3/256: with a half size of 64 it is 1 / (1 + 64 · 5/256) = 4/9."""
    constants = StepConstants(0.9, 64.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    assert _share(constants, None, 1, 64, 64, 192) == pytest.approx(0.9 * 4 / 9 * 192 / 256)


@given(st.integers(1, 60), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 200))
def test_no_tile_fills_rounds_better_than_the_one_that_counts(
    count: int, rows: int, columns: int, multiprocessors: int
) -> None:
    best = 0.0
    for high, wide in TILES:
        tiles = count * math.ceil(rows / high) * math.ceil(columns / wide)
        rounds = math.ceil(tiles / multiprocessors)
        best = max(best, count * rows * columns / (rounds * multiprocessors * high * wide))
    assert _share(WHOLE, multiprocessors, count, rows, columns, 64) == pytest.approx(best)


def test_a_device_has_at_least_one_multiprocessor() -> None:
    with pytest.raises(BadInput, match="multiprocessors is 0; give a number ≥ 1"):
        Device("d", {"float32": 1e12}, 1e12, 1e12, 1.0, 1.0, multiprocessors=0)
