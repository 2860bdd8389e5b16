"""Buckets of gradients: what a backward pass hides of their all-reduces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.cost.overlap import Bucket, exposed_s, gradient_buckets

MIB = 2.0**20


def test_the_parameter_that_reaches_the_limit_closes_a_bucket() -> None:
    """From the last instruction on: 20 + 10 MiB close the first bucket, 5 + 5 are what is left."""
    weights = np.array([5.0, 5.0, 0.0, 10.0, 20.0]) * MIB
    buckets = gradient_buckets(weights, weights / MIB, np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert buckets == (Bucket(-7.0, 30.0), Bucket(0.0, 10.0))


def test_the_picture_of_the_module() -> None:
    """5 and 4 are ready after 6 s and take 5; 3 and 2 after 15 take 7; 1 after 18 waits for them: 5 s are exposed."""
    weights = np.array([5.0, 20.0, 20.0, 20.0, 20.0]) * MIB
    seconds = np.array([1.0, 3.0, 4.0, 2.0, 3.0])
    buckets = gradient_buckets(weights, seconds, np.array([3.0, 3.0, 6.0, 3.0, 3.0]))
    assert buckets == (Bucket(-12.0, 5.0), Bucket(-3.0, 7.0), Bucket(0.0, 1.0))
    assert exposed_s(buckets) == 5.0


def test_nothing_to_reduce_is_no_bucket_and_nothing_is_exposed() -> None:
    assert gradient_buckets(np.array([MIB, MIB]), np.zeros(2), np.ones(2)) == ()
    assert exposed_s(()) == 0.0


def test_gradients_of_early_instructions_alone_may_be_hidden_by_none() -> None:
    assert exposed_s(gradient_buckets(np.array([MIB, 0.0]), np.array([2.0, 0.0]), np.array([1.0, 9.0]))) == 2.0
    assert exposed_s(gradient_buckets(np.array([0.0, MIB]), np.array([0.0, 2.0]), np.array([9.0, 1.0]))) == 0.0


parts = st.lists(st.tuples(st.floats(0, 60), st.floats(0, 3)), min_size=1, max_size=30)


@given(parts, st.floats(0.001, 1.0))
def test_what_is_exposed_lies_between_what_no_pass_can_hide_and_everything(
    instructions: list[tuple[float, float]], rate: float
) -> None:
    megabytes, backward = np.array(instructions).T
    reduce = megabytes * rate
    buckets = gradient_buckets(megabytes * MIB, reduce, backward)
    exposed = exposed_s(buckets)
    assert sum(bucket.all_reduce_s for bucket in buckets) == pytest.approx(reduce.sum())
    assert all(-backward.sum() - 1e-9 <= bucket.ready_s <= 0 for bucket in buckets)
    # At the earliest every gradient is reduced by itself as soon as its own backward pass is done.
    before = np.cumsum(backward) - backward
    least = max(0.0, float((np.cumsum(reduce) - before).max()))
    assert least - 1e-9 <= exposed <= reduce.sum() + 1e-9
