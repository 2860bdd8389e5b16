"""The agent: what it explores, and what it learns from, against slow loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.env import Decided, ShardingEnv, ShardingTables
from automap_models.errors import BadInput
from automap_models.rl.agent import Agent, AgentConfig, explore
from automap_models.rl.learner import replayed, transitions
from automap_models.rl.networks.sharding import ShardingQNetwork

PLAIN = AgentConfig(log_values=False)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- exploration -------------------------------------------------------------------------------------------------

Q = torch.tensor([[0.0, 9.0, 3.0, 2.0, 1.0, 8.0, 7.0, 4.0]])
LEGAL = torch.tensor([[True, False, True, True, False, True, True, True]])  # greedy: action 5


def explored_actions(epsilon: float, config: AgentConfig, draws: int = 6000) -> tuple[Tensor, Tensor]:
    return explore(Q.expand(draws, -1), LEGAL.expand(draws, -1), epsilon, config, generator())


def test_without_epsilon_the_best_legal_action_is_taken() -> None:
    action, explored = explored_actions(0.0, PLAIN)
    assert (action == 5).all()
    assert not explored.any()


def test_with_full_epsilon_every_legal_action_is_equally_likely_and_no_other_is_taken() -> None:
    """Pearson's statistic over six legal actions: below the 99.9 % quantile of χ² with 5 degrees of freedom."""
    action, _ = explored_actions(1.0, replace(PLAIN, local_share=0.0))
    counts = torch.bincount(action, minlength=8)
    assert not counts[~LEGAL[0]].any()
    assert float(((counts[LEGAL[0]] - 1000.0) ** 2 / 1000).sum()) < 20.52


def test_local_exploration_stays_near_the_greedy_action() -> None:
    """Within 2 of action 5: 3, 5, 6 and 7, as 4 is illegal."""
    action, _ = explored_actions(1.0, replace(PLAIN, local_share=1.0, local_radius=2))
    counts = torch.bincount(action, minlength=8)
    assert counts.nonzero().squeeze(1).tolist() == [3, 5, 6, 7]
    assert float(((counts[[3, 5, 6, 7]] - 1500.0) ** 2 / 1500).sum()) < 16.27


def test_epsilon_is_the_share_of_draws_and_only_other_actions_count_as_explored() -> None:
    """ε = 0.3 uniform over six actions of which one is greedy: 0.25 are others; five standard deviations are 0.028."""
    action, explored = explored_actions(0.3, replace(PLAIN, local_share=0.0))
    assert torch.equal(explored, action != 5)
    assert float(explored.float().mean()) == pytest.approx(0.25, abs=0.028)


def test_epsilon_falls_along_a_line_and_stays() -> None:
    config = AgentConfig(epsilon_start=1.0, epsilon_end=0.2, epsilon_iterations=100)
    assert [config.epsilon(i) for i in (0, 25, 50, 100, 10_000)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_logarithms_of_rewards_cannot_be_discounted() -> None:
    with pytest.raises(BadInput, match=r"log_values with gamma 0\.6"):
        AgentConfig(gamma=0.6, log_values=True)


# --- the loss, on decisions of shardings ------------------------------------------------------------------------------

CONFIGS = {
    "as in the paper": AgentConfig(gamma=0.6, log_values=False),
    "single Q": AgentConfig(gamma=0.6, log_values=False, double=False),
    "two steps": AgentConfig(gamma=0.9, n_steps=2, log_values=False),
    "best known": AgentConfig(gamma=0.8, n_steps=2, log_values=False, best_known=True),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_loss_is_the_weighted_huber_loss_against_slow_targets(
    random_sharding_problem: Callable[..., ShardingProblem], config: AgentConfig
) -> None:
    tables = ShardingTables.from_problem(random_sharding_problem(5, classes=(8, 10)), linkage_groups=True)
    online, target = (ShardingQNetwork(len(tables.order), hidden=16, layers=1) for _ in range(2))
    learner = Agent(ShardingEnv(6), online, target, config)
    start = learner.env.reset(tables)
    played = list(learner.play(tables, start, 0.5, generator(1)))
    batch = replayed(transitions(start, played, config), Decided)
    weights = torch.rand(len(batch.r_t), generator=generator(2)) + 0.1
    loss, errors = learner.loss(tables, batch, weights)
    losses = []
    for i in range(len(batch.r_t)):
        goal, after = float(batch.r_t[i]), batch.s_t.take(torch.tensor([i]))
        if batch.discount_t[i]:
            legal = learner.env.legal(tables, after)[0].nonzero().squeeze(1)
            rated, chooser = (learner.q(network, tables, after)[0, legal].detach() for network in (target, online))
            best = (chooser if config.double else rated).argmax()
            goal += float(batch.discount_t[i] * rated[best])
        goal = max(goal, float(batch.return_t[i])) if config.best_known else goal
        before = batch.s_tm1.take(torch.tensor([i]))
        error = float(learner.q(online, tables, before)[0, batch.a_tm1[i]].detach()) - goal
        assert float(errors[i]) == pytest.approx(abs(error), rel=1e-4, abs=1e-5)
        losses.append(float(weights[i]) * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5))
    assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert loss.requires_grad and not errors.requires_grad
    loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in online.parameters())
    assert all(p.grad is None for p in target.parameters())
