"""The agent: what it explores, what it remembers and what it learns from, against slow loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, terminal_reward
from automap_models.errors import BadInput
from automap_models.rl.agent import AgentConfig, explore
from automap_models.rl.networks.pipeline import FlatQNetwork, NetworkSize
from automap_models.rl.offline import (
    MAX_STEPS,
    Episodes,
    PipelineAgent,
    action_at,
    empty_transition,
    next_explored,
    replayed,
    rollout,
    transitions,
    unpack,
)
from automap_models.rl.replay import Items, PrioritisedReplay

POINTS = 16
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


# --- episodes and transitions ------------------------------------------------------------------------------------


def agent(env: PipelineEnv, config: AgentConfig) -> PipelineAgent:
    """Online and target networks of different random weights."""
    size = NetworkSize(POINTS, env.max_stages, env.max_devices, hidden=16)
    return PipelineAgent(env, FlatQNetwork(size), FlatQNetwork(size), config)


def play(env: PipelineEnv, problems: Problems, epsilon: float = 0.5, seed: int = 0) -> Episodes:
    return rollout(agent(env, PLAIN), problems, epsilon, generator(seed))


def test_episodes_are_legal_complete_and_paid(env: PipelineEnv, problems: Problems) -> None:
    episodes = play(env, problems)
    assert torch.equal(episodes.steps, 2 * (problems.stages.long() - 1))
    assert torch.equal(episodes.complete.step, episodes.steps)
    torch.testing.assert_close(episodes.reward, terminal_reward(problems, episodes.complete))
    for t in range(int(episodes.steps.max())):
        rows = (episodes.steps > t).nonzero().squeeze(1)
        complete, step = episodes.complete.take(rows), torch.full((len(rows),), t)
        legal = env.legal(problems.take(rows), complete.at_step(step))
        assert legal.gather(1, action_at(complete, step, POINTS).unsqueeze(1)).all()


def test_a_decision_is_marked_where_it_is_not_the_greedy_one(env: PipelineEnv, problems: Problems) -> None:
    learner = agent(env, PLAIN)
    episodes = rollout(learner, problems, 0.5, generator())
    for t in range(int(episodes.steps.max())):
        rows = (episodes.steps > t).nonzero().squeeze(1)
        step = torch.full((len(rows),), t)
        here, state = problems.take(rows), episodes.complete.take(rows).at_step(step)
        q = torch.where(env.legal(here, state), learner.q(learner.online, here, state), -torch.inf)
        other = action_at(episodes.complete.take(rows), step, POINTS) != q.argmax(1)
        assert torch.equal((episodes.explored[rows] >> t) % 2 == 1, other)
    assert not (episodes.explored >> episodes.steps).any()
    assert not rollout(learner, problems, 0.0, generator()).explored.any()


def test_the_same_seed_plays_the_same_episodes(env: PipelineEnv, problems: Problems) -> None:
    learner = agent(env, PLAIN)
    one, same, other = (rollout(learner, problems, 1.0, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.complete.cuts, same.complete.cuts)
    assert torch.equal(one.reward, same.reward)
    assert not torch.equal(one.complete.cuts, other.complete.cuts)


def test_every_decision_is_remembered_and_comes_back_from_the_replay(env: PipelineEnv, problems: Problems) -> None:
    episodes = play(env, problems)
    index = torch.arange(len(problems.stages)) + 100
    items = transitions(index, episodes)
    expected = [(e + 100, t) for e in range(len(index)) for t in range(int(episodes.steps[e]))]
    assert list(zip(items["problem"].tolist(), items["step"].tolist(), strict=True)) == expected
    replay = PrioritisedReplay(len(expected), empty_transition(env.max_stages), 0.5, 0.5)
    replay.add(items)
    complete, step, reward, explored = unpack(replay.items, torch.device("cpu"))
    episode = torch.from_numpy(items["problem"]) - 100
    assert torch.equal(complete.cuts, episodes.complete.cuts[episode])
    assert torch.equal(complete.device_cuts, episodes.complete.device_cuts[episode])
    assert torch.equal(complete.step, episodes.steps[episode])
    assert torch.equal(reward, episodes.reward[episode])
    assert torch.equal(explored, episodes.explored[episode])
    assert step.tolist() == [t for _, t in expected]


def test_the_actions_of_a_plan_lead_to_it(env: PipelineEnv, problems: Problems) -> None:
    episodes = play(env, problems)
    for i in range(len(problems.stages)):
        row, complete = problems.take(torch.tensor([i])), episodes.complete.take(torch.tensor([i]))
        partial = env.reset(row)
        for t in range(int(episodes.steps[i])):
            partial, _, _ = env.step(row, partial, action_at(complete, torch.tensor([t]), POINTS))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(partial, complete, strict=True))


def test_the_next_exploratory_decision_lies_strictly_behind() -> None:
    """Bits 1, 3 and 4 of 0b11010."""
    explored = torch.full((6,), 0b11010)
    assert next_explored(explored, torch.arange(6)).tolist() == [1, 3, 3, 4, MAX_STEPS, MAX_STEPS]
    assert next_explored(torch.tensor([0, 1 << (MAX_STEPS - 1)]), torch.tensor([0, 0])).tolist() == [62, 61]


# --- the loss ----------------------------------------------------------------------------------------------------


def slow_target(
    learner: PipelineAgent, problems: Problems, items: Items, i: int
) -> tuple[float, int, Partial, Problems]:
    """Target of row i, its action and its state: replayed decision by decision, targets in plain floats."""
    config, row = learner.config, problems.take(torch.tensor([i]))
    cuts, device_cuts = items["cuts"][i], items["device_cuts"][i]
    actions = [int(a) for pair in zip(cuts, device_cuts + POINTS - 1, strict=True) for a in pair][
        : 2 * (int(problems.stages[i]) - 1)
    ]
    states = [learner.env.reset(row)]
    for action in actions:
        states.append(learner.env.step(row, states[-1], torch.tensor([action]))[0])
    reward = float(items["reward"][i])
    if config.log_values:
        reward = max(-5.0, math.log(reward)) if reward > 0 else -6.0
    t, explored, end = int(items["step"][i]), int(items["explored"][i]), len(actions)
    stop = t + 1
    while stop < end and stop < t + config.n_steps and not (explored >> stop) & 1:
        stop += 1
    monte_carlo = config.gamma ** (end - 1 - t) * reward
    r, discount = (monte_carlo, 0.0) if stop == end else (0.0, config.gamma ** (stop - t))
    target = r + discount * (_slow_value(learner, row, states[stop]) if stop < end else 0.0)
    return max(target, monte_carlo) if config.best_known else target, actions[t], states[t], row


def _slow_value(learner: PipelineAgent, row: Problems, state: Partial) -> float:
    """What the target network says of the action chosen."""
    chooser = learner.online if learner.config.double else learner.target
    with torch.no_grad():
        rating = learner.target(learner.target.describe(row, state))[0].numpy()
        choice = chooser(chooser.describe(row, state))[0].numpy()
    legal = np.flatnonzero(learner.env.legal(row, state)[0].numpy())
    return float(rating[legal[int(np.argmax(choice[legal]))]])


CONFIGS = {
    "one step": PLAIN,
    "as in the paper": AgentConfig(gamma=0.6, log_values=False),
    "single Q": AgentConfig(double=False),
    "two steps": AgentConfig(n_steps=2),
    "as far as exploration allows": AgentConfig(gamma=0.9, n_steps=10, log_values=False),
    "best known": AgentConfig(best_known=True),
    "best known, discounted": AgentConfig(gamma=0.8, n_steps=2, log_values=False, best_known=True),
    "logarithms": AgentConfig(),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_loss_is_the_weighted_huber_loss_against_slow_targets(
    env: PipelineEnv, problems: Problems, config: AgentConfig
) -> None:
    learner, (rows, items, weights) = agent(env, config), replayable(env, problems)
    loss, errors = learner.loss(rows, replayed(learner.config, rows, items), weights)
    expected, losses = [], []
    for i in range(len(weights)):
        target, action, state, row = slow_target(learner, rows, items, i)
        error = float(learner.q(learner.online, row, state)[0, action].detach()) - target
        expected.append(abs(error))
        losses.append(float(weights[i]) * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5))
    np.testing.assert_allclose(errors, expected, rtol=1e-4, atol=1e-5)
    assert float(loss.detach()) == pytest.approx(float(np.mean(losses)), rel=1e-4)
    assert loss.requires_grad
    assert not errors.requires_grad


def test_a_gradient_flows_into_the_online_network_only(env: PipelineEnv, problems: Problems) -> None:
    learner, (rows, items, weights) = agent(env, CONFIGS["logarithms"]), replayable(env, problems)
    learner.loss(rows, replayed(learner.config, rows, items), weights)[0].backward()
    assert any(p.grad is not None and p.grad.any() for p in learner.online.parameters())  # type: ignore[attr-defined]
    assert all(p.grad is None for p in learner.target.parameters())  # type: ignore[attr-defined]


def replayable(env: PipelineEnv, problems: Problems) -> tuple[Problems, Items, Tensor]:
    """All decisions of an episode on each problem, half of them exploratory, in a random order, with weights."""
    episodes = play(env, problems)
    items = transitions(torch.arange(len(problems.stages)), episodes)
    order = np.random.default_rng(0).permutation(len(items["step"]))
    items = {name: column[order] for name, column in items.items()}
    assert {0, 1} <= {int(explored) >> int(t) & 1 for explored, t in zip(items["explored"], items["step"], strict=True)}
    assert (items["reward"] == -1).any()
    weights = torch.rand(len(order), generator=generator(1)) + 0.1
    return problems.take(torch.from_numpy(items["problem"])), items, weights
