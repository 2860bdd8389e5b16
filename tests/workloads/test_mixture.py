"""The mixture of experts: who goes where, and what balances."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.workloads.mixture import balancing_loss, dispatch_tensor
from automap_models.workloads.sizes import capacity


def test_the_published_capacity_is_64_of_512_tokens_with_8_experts() -> None:
    assert capacity(512, 8) == 64
    assert capacity(10, 4) == 3


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_tokens_take_the_places_of_their_expert_in_order_until_it_is_full(seed: int, places: int) -> None:
    choice = np.random.default_rng(seed).integers(0, 3, (2, 7))
    dispatch = np.asarray(dispatch_tensor(jax.nn.one_hot(choice, 3), places))
    expected = np.zeros((2, 7, 3, places))
    for sequence in range(2):
        taken = [0, 0, 0]
        for token, expert in enumerate(choice[sequence]):
            if taken[expert] < places:
                expected[sequence, token, expert, taken[expert]] = 1
            taken[expert] += 1
    np.testing.assert_array_equal(dispatch, expected)


def test_the_balancing_loss_is_one_when_tokens_spread_evenly_and_the_number_of_experts_when_they_do_not() -> None:
    even = jax.nn.one_hot(jnp.arange(8)[None] % 4, 4)
    assert float(balancing_loss(jnp.full((1, 8, 4), 0.25), even)) == pytest.approx(1.0)
    one = jax.nn.one_hot(jnp.zeros((1, 8), int), 4)
    assert float(balancing_loss(one, one)) == pytest.approx(4.0)
