"""Branching episodes: what they play, what they keep, and what is learned from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, apply, terminal_reward
from automap_models.rl import targets
from automap_models.rl.agent import AgentConfig
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.offline import (
    COMMON,
    NEAR,
    PipelineAgent,
    branch,
    branch_loss,
    choose_branches,
    empty_branches,
    play,
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
    values, floor = learner.online(described).detach(), learner.online.floor(described)
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
