"""Branching episodes and imitation: what they play, what they keep, and what is learned from them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, apply, terminal_reward
from automap_models.rl import targets
from automap_models.rl.agent import AgentConfig
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.offline import (
    COMMON,
    NEAR,
    PipelineAgent,
    as_episodes,
    branch,
    branch_loss,
    choose_branches,
    empty_branches,
    imitation_loss,
    play,
    rollout,
    transitions,
)
from automap_models.rl.replay import PrioritisedReplay

BRANCHES = 5


@pytest.fixture
def learner(env: PipelineEnv, problems: Problems) -> PipelineAgent:
    torch.manual_seed(0)
    network = LookAheadQNetwork(NetworkSize(problems.points, env.max_stages, env.max_devices, hidden=8))
    return PipelineAgent(env, network, network, AgentConfig(huber=0.1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_branches_are_different_legal_actions_and_the_greedy_one_comes_first() -> None:
    q, legal = torch.randn(200, 30, generator=generator(1)), torch.rand(200, 30, generator=generator(2)) < 0.3
    legal[:, 3] = True
    actions, taken = choose_branches(q, legal, BRANCHES, generator(3))
    assert torch.equal(actions[:, 0], targets.masked(q, legal).argmax(1))
    for row in range(200):
        chosen = actions[row][taken[row]].tolist()
        assert len(set(chosen)) == len(chosen) == min(BRANCHES, int(legal[row].sum()))
        assert legal[row][chosen].all()


def test_actions_valued_near_the_best_are_tried_before_others() -> None:
    q = torch.tensor([0.0, *[-0.9 * NEAR] * 3, *[-1.1 * NEAR] * 3]).repeat(100, 1)
    actions, _ = choose_branches(q, torch.ones_like(q, dtype=torch.bool), 5, generator())
    assert (actions[:, :4].sort(1).values == torch.arange(4)).all()
    assert (actions[:, 4] >= 4).all()


def test_every_branch_is_the_greedy_episode_after_its_action(
    learner: PipelineAgent, env: PipelineEnv, problems: Problems
) -> None:
    """Played again one by one, with the public functions of the environment."""
    index = torch.arange(len(problems.stages))
    items, greedy = branch(learner, index, problems, BRANCHES, 0.5, generator())
    for i in range(len(index)):
        row = problems.take(torch.tensor([i]))
        state = Partial(*(torch.from_numpy(items[name][i : i + 1]).long() for name in ("cuts", "device_cuts", "step")))
        for action, taken, reward in zip(items["actions"][i], items["taken"][i], items["rewards"][i], strict=True):
            if not taken:
                continue
            complete = apply(state, torch.tensor([int(action)]), problems.points)
            while complete.step < env.episode_steps(row):
                q = targets.masked(learner.q(learner.online, row, complete), env.legal(row, complete))
                complete, _, _ = env.step(row, complete, q.argmax(1))
            assert float(terminal_reward(row, complete)) == pytest.approx(float(reward), rel=1e-5)
        assert float(greedy[i]) == items["rewards"][i][0]


def test_branches_earn_what_their_environment_pays(
    learner: PipelineAgent, env: PipelineEnv, problems: Problems
) -> None:
    """Both rewards of the same branches; the values, not the rewards, choose them."""
    index = torch.arange(len(problems.stages))
    scale_free = branch(learner, index, problems, BRANCHES, 0.5, generator())[0]
    learner.env = replace(env, reward="inverse_length")
    inverse = branch(learner, index, problems, BRANCHES, 0.5, generator())[0]
    assert (scale_free["actions"] == inverse["actions"]).all()
    fits = scale_free["rewards"] > 0
    assert fits.any()
    ideal = (problems.arrays[:, 0, -1] * problems.micro_batches / problems.devices).unsqueeze(1).numpy()
    np.testing.assert_allclose(
        np.where(fits, inverse["rewards"] * ideal, -1), np.where(fits, scale_free["rewards"], -1), rtol=1e-5
    )
    assert (inverse["rewards"][~fits] == scale_free["rewards"][~fits]).all()


def test_the_same_seed_branches_the_same(learner: PipelineAgent, problems: Problems) -> None:
    index = torch.arange(len(problems.stages))
    one, same = (branch(learner, index, problems, BRANCHES, 0.5, generator(7))[0] for _ in range(2))
    assert all((one[name] == same[name]).all() for name in one)


def test_states_whose_decisions_need_no_learning_are_left_out(
    learner: PipelineAgent, env: PipelineEnv, problems: Problems
) -> None:
    many = problems.take((problems.stages > 2).nonzero().squeeze(1).repeat(20))
    items, _ = branch(learner, torch.arange(len(many.stages)), many, 2, 0.5, generator(), skip_last=2)
    assert (torch.from_numpy(items["step"]) < env.episode_steps(many) - 2).all()


def test_the_loss_takes_the_common_error_of_a_state_s_branches_apart_from_each_one_s_own(
    learner: PipelineAgent, env: PipelineEnv, problems: Problems
) -> None:
    """Recomputed branch by branch: Huber losses of log rewards, that of the mean error weighed by COMMON."""
    index = torch.arange(len(problems.stages))
    items, _ = branch(learner, index, problems, BRANCHES, 0.5, generator())
    replay = PrioritisedReplay(len(index), empty_branches(env.max_stages, BRANCHES), 0.5, 0.5)
    replay.add(items)
    weights = torch.rand(len(index), generator=generator(1))
    loss, error = branch_loss(learner, problems, replay.items, weights)
    states = Partial(*(torch.from_numpy(items[name]).long() for name in ("cuts", "device_cuts", "step")))
    described = learner.online.describe(problems, states)
    values, floor = learner.online(described).squeeze(2).detach(), learner.online.floor(described)
    expected = []
    for i in range(len(index)):
        errors = []
        for action, taken, reward in zip(items["actions"][i], items["taken"][i], items["rewards"][i], strict=True):
            if taken:
                goal = max(float(targets.log_rescale(torch.tensor(float(reward)))), float(floor[i]))
                errors.append(float(values[i, int(action)]) - goal)
        common = sum(errors) / len(errors)
        own = [slow_huber(e - common) for e in errors]
        expected.append(float(weights[i]) * (sum(own) / len(own) + COMMON * slow_huber(common)))
        assert float(error[i]) == pytest.approx(sum(map(abs, errors)) / len(errors), rel=1e-4)
    assert float(loss.detach()) == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def slow_huber(error: float) -> float:
    """Quadratic up to 0.1."""
    return 0.5 * error * error if abs(error) <= 0.1 else 0.1 * (abs(error) - 0.05)


def test_a_batch_of_which_every_state_has_one_branch_has_the_common_error_only(
    learner: PipelineAgent, problems: Problems
) -> None:
    items, _ = branch(learner, torch.arange(len(problems.stages)), problems, BRANCHES, 0.5, generator())
    items["taken"][:, 1:] = False
    loss, error = branch_loss(learner, problems, items, torch.ones(len(problems.stages)))
    expected = [COMMON * slow_huber(e) for e in error.tolist()]
    assert float(loss.detach()) == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_playing_on_stops_each_plan_where_it_is_told(
    learner: PipelineAgent, env: PipelineEnv, problems: Problems
) -> None:
    until = torch.arange(len(problems.stages)) % 3
    until = torch.minimum(until, env.episode_steps(problems))
    partial = play(learner, problems, env.reset(problems), until, 0.5, generator())
    assert torch.equal(partial.step, until)


class Fixed:
    """A network whose action values are given, whatever the state."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def describe(self, problems: Problems, states: Partial) -> None:
        return None

    def __call__(self, described: None) -> Tensor:
        return self.values.unsqueeze(2)


@pytest.fixture
def pair() -> Problems:
    """Four instructions on two nodes of two devices, two stages: three legal cuts, then three legal device cuts."""
    cluster = Cluster(nodes=2, devices_per_node=2, intra=1.0, inter=1.0, memory=1.0)
    profile = Profile.create(C=[1.0] * 4, A=[0.0] * 4, W=[0.0] * 4)
    return Problems.from_encoded(encode([StagedProblem(profile, cluster, 2, 3, granularity=4)]))


def fixed_agent(values: Tensor) -> PipelineAgent:
    network: Any = Fixed(values)
    return PipelineAgent(PipelineEnv(max_stages=2, max_devices=4), network, network, AgentConfig())


def test_the_loss_is_the_cross_entropy_over_legal_actions_by_hand(pair: Problems) -> None:
    """The plan cuts at point 1 and at device 2: actions 1 and 4 - 1 + 2 = 5 of seven.

    Scores of the legal cuts 0, 1, 2 are log 2, 0, 0: action 1 has probability 1 / 4. Those of the legal devices,
    actions 4 to 6, are 0, log 3, 0: action 5 has 3 / 5. At temperature 1 / 2 the scores double: 1 / 6 and 9 / 11. What
    illegal actions score, 9, does not matter. Weights are 1 and 3.
    """
    values = torch.tensor([[math.log(2), 0, 0, 9, 9, 9, 9], [9, 9, 9, 9, 0, math.log(3), 0]])
    agent = fixed_agent(values.requires_grad_())
    episodes = as_episodes(agent, pair, torch.tensor([[1]]), torch.tensor([[2]]))
    items = transitions(torch.tensor([0]), episodes)
    assert items["step"].tolist() == [0, 1]
    rows, weights = pair.take(torch.tensor([0, 0])), torch.tensor([1.0, 3.0])
    for temperature, probabilities in ((1.0, (1 / 4, 3 / 5)), (0.5, (1 / 6, 9 / 11))):
        loss, error = imitation_loss(agent, rows, items, weights, temperature)
        expected = [-math.log(p) for p in probabilities]
        assert error.tolist() == pytest.approx(expected, rel=1e-5)
        assert float(loss.detach()) == pytest.approx((expected[0] + 3 * expected[1]) / 2, rel=1e-5)
    values.grad = None
    imitation_loss(agent, rows, items, torch.ones(2), 1.0)[0].backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    expected_grad = torch.tensor([[1 / 2, -3 / 4, 1 / 4, 0, 0, 0, 0], [0, 0, 0, 0, 1 / 5, -2 / 5, 1 / 5]]) / 2
    torch.testing.assert_close(values.grad, expected_grad)


def test_a_plan_is_the_episode_that_makes_it(env: PipelineEnv, problems: Problems) -> None:
    """Episodes played, their plans handed over as a planner's: the same rewards and the same rows for a replay."""
    network = LookAheadQNetwork(NetworkSize(problems.points, env.max_stages, env.max_devices, hidden=8))
    agent = PipelineAgent(env, network, network, AgentConfig())
    played = rollout(agent, problems, 0.0, torch.Generator())
    handed = as_episodes(agent, problems, played.complete.cuts, played.complete.device_cuts)
    assert torch.equal(handed.reward, played.reward)
    index = torch.arange(len(problems.stages))
    ours, theirs = transitions(index, handed), transitions(index, played)
    for name, column in ours.items():
        np.testing.assert_array_equal(column, theirs[name], err_msg=name)


def test_a_problem_without_a_plan_leaves_nothing_to_imitate(env: PipelineEnv, problems: Problems) -> None:
    none = torch.full((len(problems.stages), env.max_stages - 1), -1)
    episodes = as_episodes(fixed_agent(torch.zeros(1, 7)), problems, none, none)
    assert (episodes.reward == -1).all()
    assert len(transitions(torch.arange(len(none)), episodes)["step"]) == 0
