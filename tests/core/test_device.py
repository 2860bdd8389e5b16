"""What products of matrices reach of a device's peak, worked out by hand and by brute force."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_devices import ideal, ideal_device

from automap_models.core.device import TILES, USUAL, Device, StepConstants, alignment_shares
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device

CONSTANTS = StepConstants(
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
    assert _share(large, 1, 1, 2048, 1792, deep) == pytest.approx(1.0, rel=1e-6)


def test_products_beside_one_another_fill_rounds_together() -> None:
    large = StepConstants(1.0, 1e5, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    assert _share(large, 80, 40, 256, 256, 1e12) == pytest.approx(1.0, rel=1e-6)


def test_small_tiles_read_more_operands_for_a_product() -> None:
    """64 × 64 reads 2/64 for each, 256 × 128 reads 3/256: with a half size of 64 it is 1 / (1 + 64 · 5/256) = 4/9."""
    constants = StepConstants(0.9, 64.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    assert _share(constants, 1, 1, 64, 64, 192) == pytest.approx(0.9 * 4 / 9 * 192 / 256)
    assert _share(constants, None, 1, 64, 64, 192) == pytest.approx(0.9 * 192 / 256), "no tiles"


@given(st.integers(1, 60), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 200))
def test_no_tile_fills_rounds_better_than_the_one_that_counts(
    count: int, rows: int, columns: int, multiprocessors: int
) -> None:
    best = 0.0
    for high, wide in TILES:
        tiles = count * math.ceil(rows / high) * math.ceil(columns / wide)
        rounds = math.ceil(tiles / multiprocessors)
        best = max(best, count * rows * columns / (rounds * multiprocessors * high * wide))
    assert _share(CONSTANTS, multiprocessors, count, rows, columns, 64) == pytest.approx(best)


def test_a_device_has_at_least_one_multiprocessor() -> None:
    with pytest.raises(BadInput, match="multiprocessors is 0; give a number ≥ 1"):
        Device("d", {"float32": 1e12}, 1e12, 1e12, multiprocessors=0)


PLAIN = ideal_device("test", {"float32": 5e11, "float16": 4e12}, 2.5e11, 8e10)


def test_the_slower_of_computing_and_moving_counts() -> None:
    times_s = PLAIN.seconds([1e9, 1e6, 0.0], [8e3, 8e6, 0.0], 5e11)
    assert times_s.tolist() == pytest.approx([1e9 / 5e11, 8e6 / 8e10, 0.0])


def test_what_is_no_product_runs_at_the_vector_peak() -> None:
    assert float(PLAIN.seconds(1e9, 0)) == pytest.approx(1e9 / 2.5e11)


def test_a_launch_is_added_to_every_kernel_that_does_something() -> None:
    device = replace(PLAIN, step=ideal(launch_s=1e-6))
    assert device.seconds([0, 5e5], [0, 0], 5e11).tolist() == pytest.approx([0, 2e-6])


def test_work_can_be_an_array_of_any_shape() -> None:
    assert PLAIN.seconds(np.ones((2, 3)), 1.0).shape == (2, 3)


def test_kernels_reach_shares_of_the_peaks_at_the_clock_that_is_sustained() -> None:
    device = replace(PLAIN, sustained=0.9, step=ideal(product=0.5, bandwidth=0.25))
    assert device.matrix_rate("float16") == pytest.approx(0.9 * 4e12 * 0.5)
    assert device.bytes_per_s == pytest.approx(8e10 * 0.25)
    assert device.product_rates(np.array([1, 64, 64, 64.0]), "float32") == pytest.approx(0.9 * 5e11 * 0.5)


def test_sides_that_fill_no_matrix_unit_count_in_types_of_16_bits_only() -> None:
    """0.07 of the rate where a side is odd; none of it where a library pads, in float32, or of a rank below a tile."""
    device, odd = replace(PLAIN, multiprocessors=1), np.array([1, 256.0, 128.0, 127.0])
    slow, padded, single = (
        float(device.product_rates(odd, dtype, aligned))
        for dtype, aligned in (("float16", False), ("float16", True), ("float32", False))
    )
    assert slow == pytest.approx(0.07 * padded)
    assert alignment_shares(np.array([128.0, 10.0, 128.0])) == 0.93
    assert single == pytest.approx(5e11)


def test_a_device_without_a_fit_has_the_means_of_those_that_have_one() -> None:
    """Rounded geometric means of the constants that are shipped for V100, A100 and H100."""
    bare = Device("bare", {"float32": 1e12}, 1e12, 1e12)
    assert bare.constants == USUAL
    for name, usual in asdict(USUAL).items():
        fitted = [getattr(read_device(kind).step, name) for kind in ("v100", "a100", "h100")]
        assert np.exp(np.mean(np.log(fitted))) == pytest.approx(usual, rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth": 0.0}, "device test: bandwidth is 0.0; give a positive number"),
        ({"vector": float("nan")}, "vector is nan"),
        ({"matrix": {"float32": -1.0}}, "matrix float32 is -1.0"),
        ({"matrix": {"float16": 1e12}}, "matrix has no float32"),
        ({"sustained": 1.5}, r"sustained is 1.5; give a share in \(0, 1\]"),
    ],
)
def test_a_number_out_of_range_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(PLAIN, **change)
