"""Episodes of pipelines: what is played, what of it is remembered, and losses recomputed in slow loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from automap_models.envs.pipeline.env import IDEAL, Problems, States, rewards
from automap_models.rl.agent import AgentConfig
from automap_models.rl.episodes import (
    IDEAL_OVER_LENGTH,
    INVERSE_LENGTH,
    PipelineAgent,
    empty_branches,
    empty_decision,
)
from automap_models.rl.networks.pipeline import NETWORKS, NetworkSize
from automap_models.rl.replay import Items, PrioritisedReplay

BRANCHES, MAX_STAGES, COUNT = 5, 4, 24
INDEX = np.arange(COUNT)


def agent(kind: str = "choices", reward: str = IDEAL_OVER_LENGTH, seed: int = 0, **config: Any) -> PipelineAgent:
    """Online and target networks of different weights, as large as trained ones."""
    torch.manual_seed(1)
    size = NetworkSize(16, MAX_STAGES, 18, hidden=8)
    online, target = (NETWORKS[kind](size) for _ in range(2))
    for weight in (*online.parameters(), *target.parameters()):
        torch.nn.init.normal_(weight, std=0.2)
    settings = AgentConfig(**{"huber": 0.1, **config})
    generator = torch.Generator().manual_seed(seed)
    return PipelineAgent(online, target, online.describe(size), MAX_STAGES, reward, settings, generator)


def state(items: Items, i: int) -> States:
    """The state in a row."""
    return States(*(items[name][i : i + 1].astype(np.int64) for name in States._fields))


def worth(network: Any, learner: PipelineAgent, problem: Problems, here: States) -> dict[int, float]:
    """What a network says of each legal choice of a single state."""
    choices = learner.describe(problem, here)
    with torch.no_grad():
        values = network(*(torch.from_numpy(array) for array in (*choices.inputs, choices.legal)))[0].tolist()
    return {choice: value for choice, value in zip(choices.choice[0].tolist(), values, strict=True) if choice >= 0}


def followed(learner: PipelineAgent, problem: Problems, here: States) -> States:
    """The greedy end of a single plan, where settled choices are worth what they earn."""
    while here.step[0] < problem.decisions[0]:
        choices = learner.describe(problem, here)
        rated = worth(learner.online, learner, problem, here)
        if choices.settled[0]:
            rated = dict(zip(choices.choice[0].tolist(), choices.estimate[0].tolist(), strict=True))
            rated.pop(-1, None)
        here = here.after(np.array([max(rated, key=rated.__getitem__)]))
    return here


def slow_huber(error: float) -> float:
    """Quadratic up to 0.1."""
    return 0.5 * error * error if abs(error) <= 0.1 else 0.1 * (abs(error) - 0.05)


def log_reward(reward: float) -> float:
    return max(-5.0, math.log(reward)) if reward > 0 else -6.0


# --- several episodes of a problem -------------------------------------------------------------------------------


def test_what_is_tried_is_different_and_legal_and_the_greedy_choice_comes_first() -> None:
    rng = np.random.default_rng(1)
    legal = rng.random((200, 30)) < 0.3
    legal[:, 3] = True
    rated = np.where(legal, rng.normal(size=legal.shape), -np.inf)
    columns, taken = agent().attempts(rated, legal, BRANCHES)
    assert (columns[:, 0] == rated.argmax(axis=1)).all()
    for row in range(200):
        chosen = columns[row][taken[row]].tolist()
        assert len(set(chosen)) == len(chosen) == min(BRANCHES, legal[row].sum())
        assert legal[row][chosen].all()


def test_of_fewer_choices_than_branches_all_are_tried_once() -> None:
    columns, taken = agent().attempts(np.zeros((7, 3)), np.ones((7, 3), dtype=bool), BRANCHES)
    assert columns.shape == taken.shape == (7, BRANCHES)
    assert (np.sort(columns[:, :3]) == np.arange(3)).all()
    assert (taken == [True, True, True, False, False]).all()


def test_choices_valued_near_the_best_are_tried_before_others_and_one_is_drawn_among_all() -> None:
    rated = np.array([[0.0, *[-0.045] * 3, *[-0.055] * 3]]).repeat(100, axis=0)
    everywhere = np.ones(rated.shape, dtype=bool)
    columns, _ = agent().attempts(rated, everywhere, 5)
    assert (np.sort(columns[:, :4]) == np.arange(4)).all()
    assert set(columns[:, 4].tolist()) == {4, 5, 6}
    columns, _ = agent().attempts(rated, everywhere, 3)
    assert (columns[:, 1] < 4).all() and {1, 4} <= set(columns[:, 2].tolist())


@pytest.mark.parametrize("reward", [IDEAL_OVER_LENGTH, INVERSE_LENGTH])
def test_every_branch_is_what_following_its_choice_greedily_earns(reward: str, problems: Problems) -> None:
    """Played again one by one, and paid by the environment; the states are before the last two decisions."""
    learner = agent(reward=reward)
    items, plans, earnings = learner.branch(INDEX, problems, BRANCHES, 0.5)
    assert (items["step"] <= np.maximum(problems.decisions - 3, 0)).all() and items["step"].max() > 1
    assert items["taken"][:, 0].all() and (items["problem"] == INDEX).all()
    for i in range(COUNT):
        problem = problems.take([i])
        first = worth(learner.online, learner, problem, state(items, i))
        if problem.decisions[0] > 2:
            assert items["choice"][i, 0] == max(first, key=first.__getitem__)
        for choice, earned in zip(items["choice"][i][items["taken"][i]], items["reward"][i], strict=False):
            complete = followed(learner, problem, state(items, i).after(choice[None].astype(np.int64)))
            assert learner.paid(problem, complete)[0] == pytest.approx(earned, rel=1e-5)
    assert earnings == pytest.approx(items["reward"][items["taken"]])
    assert learner.paid(problems.take(items["taken"].nonzero()[0]), plans) == pytest.approx(earnings)


def test_the_inverse_length_is_paid_in_units_of_the_joint_maximum(problems: Problems) -> None:
    complete = agent().planned(problems, 1.0)
    earned = rewards(problems, complete)
    inverse = agent(reward=INVERSE_LENGTH).paid(problems, complete)
    assert (agent().paid(problems, complete) == earned).all()
    fits = earned > 0
    assert 0 < fits.sum() < COUNT
    assert inverse[fits] * problems.numbers[fits, IDEAL] == pytest.approx(earned[fits])
    assert (inverse[~fits] == -1).all()


def test_the_same_seed_branches_the_same(problems: Problems) -> None:
    one, same, other = (agent(seed=seed).branch(INDEX, problems, BRANCHES, 0.5).items for seed in (7, 7, 8))
    assert all((one[name] == same[name]).all() for name in one)
    assert not all((one[name] == other[name]).all() for name in one)


def test_the_loss_takes_the_common_error_of_a_state_apart_from_those_of_its_choices(problems: Problems) -> None:
    """Recomputed branch by branch: Huber losses of log rewards, that of the mean error weighed by a tenth."""
    learner = agent()
    items = learner.branch(INDEX, problems, BRANCHES, 0.5).items
    items["taken"][:3, 1:] = False  # a single branch has the common error only
    replay = PrioritisedReplay(COUNT, empty_branches(MAX_STAGES, BRANCHES), 0.5, 0.5)
    replay.add(items)
    weights = torch.rand(COUNT)
    loss, error = learner.branch_loss(problems, replay.items, weights)
    expected = []
    for i in range(COUNT):
        rated = worth(learner.online, learner, problems.take([i]), state(items, i))
        rows = items["taken"][i].nonzero()[0]
        errors = [rated[int(items["choice"][i, b])] - log_reward(float(items["reward"][i, b])) for b in rows]
        common = sum(errors) / len(errors)
        apart = sum(slow_huber(e - common) for e in errors) / len(errors)
        expected.append(float(weights[i]) * (apart + 0.1 * slow_huber(common)))
        assert float(error[i]) == pytest.approx(sum(map(abs, errors)) / len(errors), rel=1e-4)
    assert float(loss.detach()) == pytest.approx(sum(expected) / COUNT, rel=1e-4)


# --- one episode of a problem ------------------------------------------------------------------------------------


def test_every_decision_of_an_episode_is_remembered(problems: Problems) -> None:
    learner = agent("flat", log_values=False)
    items, complete, earned = learner.decisions(INDEX + 100, problems, 0.5)
    expected = [(i + 100, t) for i in range(COUNT) for t in range(int(problems.decisions[i]))]
    assert list(zip(items["problem"].tolist(), items["step"].tolist(), strict=True)) == expected
    assert {name: column.dtype for name, column in items.items()} == {
        name: row.dtype for name, row in empty_decision(MAX_STAGES).items()
    }
    first = items["step"] == 0
    for name in States._fields[:2]:
        assert (items[name][first] == getattr(complete, name)).all()
    assert rewards(problems, complete) == pytest.approx(earned)
    assert items["reward"][first] == pytest.approx(earned)


CONFIGS: dict[str, dict[str, Any]] = {
    "as in the paper": {"gamma": 0.6, "log_values": False},
    "logarithms": {},
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_loss_of_decisions_is_that_of_slow_targets(kind: str, config: dict[str, Any], problems: Problems) -> None:
    """The last decision is worth what the plan earns, one before it what the next state is worth, discounted."""
    learner = agent(kind, **config)
    items = learner.decisions(INDEX, problems, 0.5).items
    rows = np.random.default_rng(0).permutation(len(items["step"]))
    items = {name: column[rows] for name, column in items.items()}
    weights, here = torch.rand(len(rows)) + 0.1, problems.take(items["problem"])
    loss, errors = learner.decision_loss(here, items, weights)
    losses, differ = [], 0
    for i, step in enumerate(items["step"].tolist()):
        problem, complete = here.take([i]), state(items, i)
        choice = complete.firsts if step % 2 else complete.cuts
        chosen = worth(learner.online, learner, problem, complete.before(np.array([step])))[int(choice[0, step // 2])]
        target = float(items["reward"][i])
        target = log_reward(target) if learner.config.log_values else target
        if step + 1 < problem.decisions[0]:
            online, rated = (
                worth(network, learner, problem, complete.before(np.array([step + 1])))
                for network in (learner.online, learner.target)
            )
            target = learner.config.gamma * rated[max(online, key=online.__getitem__)]
            differ += max(online, key=online.__getitem__) != max(rated, key=rated.__getitem__)
        assert float(errors[i]) == pytest.approx(abs(chosen - target), rel=1e-4, abs=1e-5)
        losses.append(float(weights[i]) * slow_huber(chosen - target))
    assert differ > 10  # else double Q-learning would be none
    assert float(loss.detach()) == pytest.approx(float(np.mean(losses)), rel=1e-4)
    assert loss.requires_grad and not errors.requires_grad
    loss.backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in learner.online.parameters())
    assert all(weight.grad is None for weight in learner.target.parameters())


# --- another device ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_losses_stay_on_the_device_of_the_network(kind: str, problems: Problems) -> None:
    """Shown on torch's `meta` device, which has shapes and no numbers, and refuses tensors of two devices as a GPU."""
    learner = agent(kind)
    branches = learner.branch(INDEX, problems, BRANCHES, 0.5).items
    decisions = learner.decisions(INDEX, problems, 0.5).items
    learner.online.to("meta")
    learner.target.to("meta")
    for loss, items in ((learner.branch_loss, branches), (learner.decision_loss, decisions)):
        weights = torch.ones(len(items["step"]), device="meta")
        for tensor in loss(problems.take(items["problem"]), items, weights):
            assert tensor.device.type == "meta"
