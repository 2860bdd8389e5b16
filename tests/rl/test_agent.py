"""What agents explore."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from automap_models.errors import BadInput
from automap_models.rl.agent import AgentConfig, explore

PLAIN = AgentConfig(log_values=False)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


Q = torch.tensor([[0.0, 9.0, 3.0, 2.0, 1.0, 8.0, 7.0, 4.0]])
LEGAL = torch.tensor([[True, False, True, True, False, True, True, True]])  # greedy: action 5


def explored_actions(epsilon: float, config: AgentConfig, draws: int = 6000) -> Tensor:
    return explore(Q.expand(draws, -1), LEGAL.expand(draws, -1), epsilon, config, generator())


def test_without_epsilon_the_best_legal_action_is_taken() -> None:
    assert (explored_actions(0.0, PLAIN) == 5).all()


def test_with_full_epsilon_every_legal_action_is_equally_likely_and_no_other_is_taken() -> None:
    """Pearson's statistic over six legal actions: below the 99.9 % quantile of χ² with 5 degrees of freedom."""
    action = explored_actions(1.0, replace(PLAIN, local_share=0.0))
    counts = torch.bincount(action, minlength=8)
    assert not counts[~LEGAL[0]].any()
    assert float(((counts[LEGAL[0]] - 1000.0) ** 2 / 1000).sum()) < 20.52


def test_local_exploration_stays_near_the_greedy_action() -> None:
    """Within 2 of action 5: 3, 5, 6 and 7, as 4 is illegal."""
    action = explored_actions(1.0, replace(PLAIN, local_share=1.0, local_radius=2))
    counts = torch.bincount(action, minlength=8)
    assert counts.nonzero().squeeze(1).tolist() == [3, 5, 6, 7]
    assert float(((counts[[3, 5, 6, 7]] - 1500.0) ** 2 / 1500).sum()) < 16.27


def test_epsilon_is_the_share_of_draws() -> None:
    """ε = 0.3 uniform over six actions of which one is greedy: 0.25 are others; five standard deviations are 0.028."""
    action = explored_actions(0.3, replace(PLAIN, local_share=0.0))
    assert float((action != 5).float().mean()) == pytest.approx(0.25, abs=0.028)


def test_epsilon_falls_along_a_line_and_stays() -> None:
    config = AgentConfig(epsilon_start=1.0, epsilon_end=0.2, epsilon_iterations=100)
    assert [config.epsilon(i) for i in (0, 25, 50, 100, 10_000)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_logarithms_of_rewards_cannot_be_discounted() -> None:
    with pytest.raises(BadInput, match=r"log_values with gamma 0\.6"):
        AgentConfig(gamma=0.6, log_values=True)
