"""Learning targets against values worked out by hand and against slow loops."""

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


def test_single_q_takes_the_largest_legal_value() -> None:
    assert agent.rated_choice(Q_TARGET, Q_TARGET, LEGAL).tolist() == [30.0, 50.0, 0.0]


def test_illegal_actions_are_worth_minus_infinity() -> None:
    assert agent.masked(Q_ONLINE, LEGAL)[1].tolist() == [2.0, 1.0, -math.inf]


def test_arguments_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 3\) and mask \(3, 2\)"):
        agent.masked(Q_ONLINE, LEGAL[:, :2])
    with pytest.raises(ValueError, match=r"\(3,\), \(3,\), \(3, 1\)"):
        agent.n_step_target(torch.zeros(3), torch.zeros(3), torch.zeros(3, 1))


@given(st.integers(0, 2**32), st.integers(1, 8), st.floats(0.1, 1.0))
def test_n_steps_to_the_end_are_the_monte_carlo_return_and_fewer_bootstrap(
    seed: int, length: int, gamma: float
) -> None:
    """Where the value function is the return itself, every n gives the return."""
    rewards = np.random.default_rng(seed).normal(size=length)
    returns = [sum(gamma ** (k - t) * rewards[k] for k in range(t, length)) for t in range(length + 1)]
    for n in range(1, length + 1):
        r = sum(gamma**k * rewards[k] for k in range(n))
        discount, value = (0.0, 1e9) if n == length else (gamma**n, returns[n])
        ours = agent.n_step_target(*(torch.tensor([x], dtype=torch.float64) for x in (r, discount, value)))
        assert float(ours) == pytest.approx(returns[0], rel=1e-12, abs=1e-12)


# --- rescaling and losses ----------------------------------------------------------------------------------------


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


def test_huber_is_a_parabola_inside_and_a_line_outside() -> None:
    """½e² up to δ, then δ(|e| - ½δ): continuous at δ with slope δ."""
    error = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0])
    assert agent.huber(error).tolist() == [2.5, 0.5, 0.0, 0.125, 1.5]
    assert agent.huber(error, delta=2.0).tolist() == [4.0, 0.5, 0.0, 0.125, 2.0]
    ours = agent.huber(error, delta=0.7)
    torch.testing.assert_close(ours, torch.nn.functional.huber_loss(error, torch.zeros(5), "none", 0.7))
