"""Learning targets against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from automap_models.rl import agent

Q_ONLINE = torch.tensor([[1.0, 5.0, 3.0], [2.0, 1.0, 9.0], [0.0, 0.0, 0.0]])
Q_TARGET = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0], [70.0, 80.0, 90.0]])
LEGAL = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])


def test_double_q_rates_the_online_choice_by_the_target_network() -> None:
    """Online likes action 1, rated 20 (not 30); where action 2 is illegal, action 0, rated 40; an end is worth 0."""
    assert agent.rated_choice(Q_ONLINE, Q_TARGET, LEGAL).tolist() == [20.0, 40.0, 0.0]


def test_illegal_actions_are_worth_minus_infinity() -> None:
    assert agent.masked(Q_ONLINE, LEGAL)[1].tolist() == [2.0, 1.0, -math.inf]


def test_arguments_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 3\) and mask \(3, 2\)"):
        agent.masked(Q_ONLINE, LEGAL[:, :2])


# --- rescaling ----------------------------------------------------------------------------------------


def test_log_rescale_is_the_logarithm_down_to_its_floor_and_lower_still_for_the_penalty() -> None:
    rewards = torch.tensor([1.0, 0.5, math.exp(-4), math.exp(-5), 1e-4, 1e-30, -1.0], dtype=torch.float64)
    expected = [0.0, -math.log(2), -4.0, -5.0, -5.0, -5.0, -6.0]
    np.testing.assert_allclose(agent.log_rescale(rewards), expected, rtol=1e-12)


@given(st.lists(st.floats(1e-8, 1.0), min_size=2, max_size=20))
def test_log_rescale_never_prefers_the_smaller_reward(rewards: list[float]) -> None:
    ordered = torch.tensor([-1.0, *sorted(rewards)], dtype=torch.float64)
    values = agent.log_rescale(ordered)
    assert (values.diff() >= 0).all()
    assert values[0] < values[1]
