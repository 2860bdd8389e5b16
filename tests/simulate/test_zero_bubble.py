"""Orders made for given times wait as little as published ones, within the memory that they may take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.schedules import Schedule, build_schedule, most_held
from automap_models.errors import BadInput
from automap_models.simulate.engine import Timeline, simulate
from automap_models.simulate.zero_bubble import zero_bubble_schedule

SEQUENCE = 1024
SMALL, MIDDLE, LARGE = (2304, 24), (4096, 32), (5120, 40)
"""Hidden size and heads of GPT with 1.5, 6.2 and 14.6 billion parameters."""
PUBLISHED = [
    (8, 24, SMALL, (18.522, 18.086, 9.337, 0.601), (0.1585, 0.0433)),
    (8, 32, SMALL, (18.513, 18.086, 9.331, 0.626), (0.1242, 0.0039)),
    (8, 64, SMALL, (18.546, 18.097, 9.321, 0.762), (0.0674, 0.0026)),
    (8, 24, MIDDLE, (29.718, 29.444, 19.927, 0.527), (0.1323, 0.0029)),
    (8, 32, MIDDLE, (29.802, 29.428, 19.530, 0.577), (0.1045, 0.0022)),
    (8, 64, MIDDLE, (29.935, 29.621, 19.388, 0.535), (0.0554, 0.0010)),
    (16, 48, LARGE, (11.347, 11.248, 8.132, 0.377), (0.1397, 0.0066)),
    pytest.param(16, 64, LARGE, (11.307, 11.254, 8.101, 0.379), (0.1088, 0.0054), marks=pytest.mark.slow),
    pytest.param(16, 128, LARGE, (11.325, 11.308, 8.109, 0.378), (0.0576, 0.0028), marks=pytest.mark.slow),
]
"""S, M, model, profiled milliseconds of F, I, W and transfers, bubble rates of ZB-1p and ZB-2p: 2401.10241, Table 5."""
LAW = settings(max_examples=60, deadline=None, derandomize=True)


def _run(
    built: Schedule, forward: np.ndarray, inputs: np.ndarray, weights: np.ndarray, transfer: np.ndarray
) -> Timeline:
    return simulate(forward, inputs + weights, transfer, 0 * forward, built, weight_s=weights)


@pytest.mark.parametrize(("ranks", "micro_batches", "model", "times", "rates"), PUBLISHED)
def test_bubble_rates_are_within_half_a_percentage_point_of_the_published_ones(
    ranks: int,
    micro_batches: int,
    model: tuple[int, int],
    times: tuple[float, float, float, float],
    rates: tuple[float, float],
) -> None:
    """A layer saves s·b·(34·h + 5·a·s) bytes (Korthikanti et al., eq. 1), of which W needs 32·s·b·h."""
    hidden, heads = model
    kept = 32 * hidden / (34 * hidden + 5 * heads * SEQUENCE)
    forward, inputs, weights = (np.full(ranks, value) for value in times[:3])
    transfer = np.full(ranks - 1, times[3])
    for share, rate in zip((1, 2), rates, strict=True):
        limit = share * ranks
        built = zero_bubble_schedule(forward, inputs + weights, weights, transfer, micro_batches, limit, kept)
        assert built.name == f"zb-{share}p"
        assert max(most_held(built, kept=[kept] * ranks)) <= limit + 1e-9
        assert _run(built, forward, inputs, weights, transfer).bubble_rate == pytest.approx(rate, abs=0.005)


def test_where_all_passes_take_equally_long_no_rank_waits() -> None:
    one = np.ones(4)
    built = zero_bubble_schedule(one, 2 * one, one, 0 * one[1:], 12)
    assert _run(built, one, one, one, 0 * one[1:]).bubble_rate == pytest.approx(0.0)


@LAW
@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.sampled_from([0.0, 0.25, 1.0]))
def test_an_order_holds_no_more_than_its_limit_and_is_no_longer_than_the_handcrafted_ones(
    data: st.DataObject, ranks: int, micro_batches: int, kept: float
) -> None:
    def times(size: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(0, 32), min_size=size, max_size=size)), dtype=np.float64) / 8

    forward, inputs, weights, transfer = times(ranks), times(ranks), times(ranks), times(ranks - 1)
    limit = data.draw(st.sampled_from([1.0, 1.5, float(ranks), 2.0 * ranks]))
    built = zero_bubble_schedule(forward, inputs + weights, weights, transfer, micro_batches, limit, kept)
    assert max(most_held(built, kept=[kept] * ranks)) <= limit + 1e-9
    if limit == 2 * ranks:
        longest_s, _ = _run(built, forward, inputs, weights, transfer).longest_rank
        handcrafted = build_schedule("zb-h2", ranks, micro_batches)
        assert longest_s <= _run(handcrafted, forward, inputs, weights, transfer).longest_rank[0]


def test_what_cannot_be_is_refused() -> None:
    one = np.ones(2)
    for changed, what in (
        ({"limit": 0.5}, "a limit of 0.5"),
        ({"limit": float("nan")}, "a limit of nan"),
        ({"kept": 1.5}, "a share of 1.5"),
        ({"micro_batches": 0}, "0 micro-batches"),
        ({"weight_s": 3 * one}, "less than no time"),
        ({"weight_s": np.ones(3)}, "forward passes of 2 stages"),
    ):
        arguments = {
            "forward_s": one,
            "backward_s": 2 * one,
            "weight_s": one,
            "transfer_s": one[:1],
            "micro_batches": 2,
        }
        with pytest.raises(BadInput, match=what):
            zero_bubble_schedule(**{**arguments, **changed})  # type: ignore[arg-type]
