"""Decisions in the replay: sums of rewards against loops over plain numbers, and whole episodes recovered."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.rl.agent import AgentConfig
from automap_models.rl.decisions import (
    DecisionLearner,
    Moment,
    ShardingAgent,
    ShardingQNetwork,
    empty_decision,
    n_step_sums,
    returns,
    transitions,
)
from automap_models.rl.learner import LearnerConfig
from automap_models.rl.replay import PrioritisedReplay

EPISODES = 6
Played = tuple[ShardingTables, Decided, list[Moment]]


def make_agent(tables: ShardingTables, config: AgentConfig) -> ShardingAgent:
    online, target = (ShardingQNetwork(len(tables.order), hidden=16, layers=1) for _ in range(2))
    return ShardingAgent(tables, online, target, config)


@pytest.fixture(params=[True, False], ids=["linkage groups", "no groups"])
def played(request: pytest.FixtureRequest, random_sharding_problem: Callable[..., ShardingProblem]) -> Played:
    """Episodes that end at different times, one of them greedy; without linkage groups some in a conflict."""
    tables = ShardingTables.from_problem(random_sharding_problem(5, classes=(8, 10)), linkage_groups=request.param)
    agent = make_agent(tables, AgentConfig(log_values=False))
    start = tables.reset(EPISODES)
    epsilon = torch.tensor([0.0, *[0.9] * (EPISODES - 1)])
    return tables, start, list(agent.play(start, epsilon, torch.Generator().manual_seed(1)))


def test_the_episode_without_exploration_is_greedy(played: Played) -> None:
    _, _, moments = played
    assert not any(bool(moment.explored[moment.rows == 0].any()) for moment in moments)
    assert any(bool(moment.explored.any()) for moment in moments)


@pytest.mark.parametrize(("gamma", "n_steps"), [(0.6, 1), (0.6, 3), (1.0, 50)])
def test_transitions_are_those_that_were_played(played: Played, gamma: float, n_steps: int) -> None:
    """Episode by episode from the moments: the n rewards up to the end or the next exploratory action."""
    _, start, moments = played
    items = transitions(start, moments, AgentConfig(gamma=gamma, n_steps=n_steps, log_values=False))
    expected = []
    for episode in range(EPISODES):
        own = [(m, int((m.rows == episode).nonzero())) for m in moments if (m.rows == episode).any()]
        for t, (moment, row) in enumerate(own):
            until = t + 1
            while until < min(len(own), t + n_steps) and not own[until][0].explored[own[until][1]]:
                until += 1
            rewards = [float(m.r_t[r]) for m, r in own[t:]]
            after, at = own[until - 1]
            expected.append(
                (
                    moment.s_tm1.classes[row].tolist(),
                    int(moment.a_tm1[row]),
                    sum(gamma**i * reward for i, reward in enumerate(rewards[: until - t])),
                    0.0 if until == len(own) else gamma ** (until - t),
                    after.s_t.classes[at].tolist(),
                    int(after.s_t.position[at]),
                    sum(gamma**i * reward for i, reward in enumerate(rewards)),
                )
            )
    assert len(expected) == sum(len(moment.rows) for moment in moments)
    for i, (before, action, r_t, discount_t, after_classes, position, return_t) in enumerate(expected):
        assert items["classes"][i].tolist() == before
        assert int(items["action"][i]) == action
        assert float(items["r_t"][i]) == pytest.approx(r_t, abs=1e-5)
        assert float(items["discount_t"][i]) == pytest.approx(discount_t)
        assert items["classes_t"][i].tolist() == after_classes
        assert int(items["position_t"][i]) == position
        assert float(items["return_t"][i]) == pytest.approx(return_t, abs=1e-5)


def test_rows_come_back_from_the_replay_as_they_were(played: Played) -> None:
    tables, start, moments = played
    items = transitions(start, moments, AgentConfig(log_values=False))
    replay = PrioritisedReplay(len(items["action"]), empty_decision(tables), 0.5, 0.5)
    replay.add(items)
    assert {name: column.dtype for name, column in replay.items.items()} == {n: c.dtype for n, c in items.items()}
    assert all(np.array_equal(replay.items[name], column) for name, column in items.items())


def test_sums_stop_before_an_exploratory_action() -> None:
    """Rewards 1, 2, 4, 8 with γ 0.5; the third action was exploratory, the episode has four."""
    reward = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    explored = torch.tensor([[False, False, True, False]])
    total, reached = n_step_sums(
        reward, explored, torch.tensor([4]), AgentConfig(gamma=0.5, n_steps=9, log_values=False)
    )
    assert total.tolist() == [[2.0, 2.0, 8.0, 8.0]]
    assert reached.tolist() == [[2, 2, 4, 4]]
    assert returns(reward, 0.5).tolist() == [[4.0, 6.0, 8.0, 8.0]]


def test_the_values_of_a_fixed_policy_are_learned(random_sharding_problem: Callable[..., ShardingProblem]) -> None:
    """γ 0 leaves the immediate reward, which the network can learn to a few per cent on a small problem."""
    torch.manual_seed(0)
    tables = ShardingTables.from_problem(random_sharding_problem(5, classes=(8, 10)), linkage_groups=True)
    agent = make_agent(tables, AgentConfig(gamma=0.0, log_values=False))
    start = tables.reset(EPISODES)
    config = LearnerConfig(learning_rate=5e-3, batch=64, replay=2_000, gradient_clip=10.0)
    learner = DecisionLearner(agent, config, np.random.default_rng(0))
    for seed in range(20):
        moments = list(agent.play(start, 1.0, torch.Generator().manual_seed(seed)))
        learner.remember(start, moments)
    for _ in range(400):
        learner.learn()
    assert (learner.replay.mass >= 0).all()
    moments = list(agent.play(start, 1.0, torch.Generator().manual_seed(99)))
    with torch.no_grad():
        errors = [agent.q(agent.online, m.s_tm1).gather(1, m.a_tm1.unsqueeze(1)).squeeze(1) - m.r_t for m in moments]
    assert float(torch.cat(errors).abs().mean()) < 0.1


def test_more_rows_than_the_replay_holds_leave_the_last(played: Played) -> None:
    tables, start, moments = played
    agent = make_agent(tables, AgentConfig(log_values=False))
    learner = DecisionLearner(agent, LearnerConfig(replay=4), np.random.default_rng(0))
    learner.remember(start, moments)
    items = transitions(start, moments, agent.config)
    assert len(learner.replay) == 4
    assert np.array_equal(learner.replay.items["classes"], items["classes"][-4:])


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
    agent, start = ShardingAgent(tables, online, target, config), tables.reset(EPISODES)
    rows = transitions(start, list(agent.play(start, 0.5, torch.Generator().manual_seed(1))), config)
    weights = torch.rand(len(rows["r_t"]), generator=torch.Generator().manual_seed(2)) + 0.1
    loss, errors = agent.loss(rows, weights)
    losses = []
    for i in range(len(weights)):
        before, after = (
            Decided(*(torch.from_numpy(rows[name][[i]]) for name in names))
            for names in (("classes", "position"), ("classes_t", "position_t"))
        )
        goal = float(rows["r_t"][i])
        if rows["discount_t"][i]:
            legal = tables.legal(after)[0].nonzero().squeeze(1)
            rated, chooser = (agent.q(network, after)[0, legal].detach() for network in (target, online))
            best = (chooser if config.double else rated).argmax()
            goal += float(rows["discount_t"][i] * rated[best])
        goal = max(goal, float(rows["return_t"][i])) if config.best_known else goal
        error = float(agent.q(online, before)[0, rows["action"][i]].detach()) - goal
        assert float(errors[i]) == pytest.approx(abs(error), rel=1e-4, abs=1e-5)
        losses.append(float(weights[i]) * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5))
    assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert loss.requires_grad and not errors.requires_grad
    loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in online.parameters())
    assert all(p.grad is None for p in target.parameters())
