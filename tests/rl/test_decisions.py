"""Decisions in the replay: whole episodes recovered, and their loss against loops over plain numbers."""

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
    transitions,
)
from automap_models.rl.learner import LearnerConfig
from automap_models.rl.replay import PrioritisedReplay

EPISODES = 6
Played = tuple[ShardingTables, list[Moment]]


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
    return tables, list(agent.play(start, epsilon, torch.Generator().manual_seed(1)))


def test_the_episode_without_exploration_is_greedy(played: Played) -> None:
    tables, moments = played
    agent = make_agent(tables, AgentConfig(log_values=False))
    greedy = list(agent.play(tables.reset(1), 0.0, torch.Generator().manual_seed(2)))
    for moment in greedy:
        legal = tables.legal(moment.s_tm1)
        assert torch.equal(moment.a_tm1, torch.where(legal, agent.q(agent.online, moment.s_tm1), -torch.inf).argmax(1))
    assert len({tuple(m.a_tm1[m.rows == row].tolist()) for m in moments for row in range(EPISODES)}) > 1


def test_transitions_are_those_that_were_played_episode_by_episode(played: Played) -> None:
    _, moments = played
    items, i = transitions(moments), 0
    for episode in range(EPISODES):
        for moment in moments:
            for row in (moment.rows == episode).nonzero().flatten().tolist():
                assert items["classes"][i].tolist() == moment.s_tm1.classes[row].tolist()
                assert items["position"][i] == moment.s_tm1.position[row]
                assert items["action"][i] == moment.a_tm1[row]
                assert items["r_t"][i] == moment.r_t[row]
                assert items["classes_t"][i].tolist() == moment.s_t.classes[row].tolist()
                assert items["position_t"][i] == moment.s_t.position[row]
                i += 1
    assert len(items["r_t"]) == i == sum(len(moment.rows) for moment in moments)


def test_rows_come_back_from_the_replay_as_they_were(played: Played) -> None:
    tables, moments = played
    items = transitions(moments)
    replay = PrioritisedReplay(len(items["action"]), empty_decision(tables), 0.5, 0.5)
    replay.add(items)
    assert {name: column.dtype for name, column in replay.items.items()} == {n: c.dtype for n, c in items.items()}
    assert all(np.array_equal(replay.items[name], column) for name, column in items.items())


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
        learner.remember(moments)
    for _ in range(400):
        learner.learn()
    assert (learner.replay.mass >= 0).all()
    moments = list(agent.play(start, 1.0, torch.Generator().manual_seed(99)))
    with torch.no_grad():
        errors = [agent.q(agent.online, m.s_tm1).gather(1, m.a_tm1.unsqueeze(1)).squeeze(1) - m.r_t for m in moments]
    assert float(torch.cat(errors).abs().mean()) < 0.1


def test_more_rows_than_the_replay_holds_leave_the_last(played: Played) -> None:
    tables, moments = played
    agent = make_agent(tables, AgentConfig(log_values=False))
    learner = DecisionLearner(agent, LearnerConfig(replay=4), np.random.default_rng(0))
    learner.remember(moments)
    items = transitions(moments)
    assert len(learner.replay) == 4
    assert np.array_equal(learner.replay.items["classes"], items["classes"][-4:])


def test_the_loss_is_the_weighted_huber_loss_against_slow_targets(
    random_sharding_problem: Callable[..., ShardingProblem],
) -> None:
    tables = ShardingTables.from_problem(random_sharding_problem(5, classes=(8, 10)), linkage_groups=True)
    online, target = (ShardingQNetwork(len(tables.order), hidden=16, layers=1) for _ in range(2))
    agent, start = (
        ShardingAgent(tables, online, target, AgentConfig(gamma=0.6, log_values=False)),
        tables.reset(EPISODES),
    )
    rows = transitions(list(agent.play(start, 0.5, torch.Generator().manual_seed(1))))
    weights = torch.rand(len(rows["r_t"]), generator=torch.Generator().manual_seed(2)) + 0.1
    loss, errors = agent.loss(rows, weights)
    losses = []
    for i in range(len(weights)):
        before, after = (
            Decided(*(torch.from_numpy(rows[name][[i]]) for name in names))
            for names in (("classes", "position"), ("classes_t", "position_t"))
        )
        goal = float(rows["r_t"][i])
        if len(legal := tables.legal(after)[0].nonzero().squeeze(1)):
            rated, chooser = (agent.q(network, after)[0, legal].detach() for network in (target, online))
            goal += 0.6 * float(rated[chooser.argmax()])
        error = float(agent.q(online, before)[0, rows["action"][i]].detach()) - goal
        assert float(errors[i]) == pytest.approx(abs(error), rel=1e-4, abs=1e-5)
        losses.append(float(weights[i]) * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5))
    assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert loss.requires_grad and not errors.requires_grad
    loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in online.parameters())
    assert all(p.grad is None for p in target.parameters())
