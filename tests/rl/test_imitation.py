"""Imitation: the cross-entropy of a planner's decisions, by hand, and plans as episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems
from automap_models.rl.agent import AgentConfig
from automap_models.rl.imitation import as_episodes, imitation_loss
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.whole_plans import PipelineAgent, rollout, transitions


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
