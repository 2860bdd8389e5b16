"""Lessons of a teacher: which states they are about, what the teacher says, and what is learned from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import PipelineEnv, Problems, apply, terminal_reward
from automap_models.rl.agent import AgentConfig
from automap_models.rl.distillation import (
    DERIVED,
    LOWEST,
    _loss,
    derived,
    empty_lesson,
    lesson_loss,
    taught,
    teacher_values,
)
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.offline import PipelineAgent, rollout
from automap_models.rl.replay import Items
from automap_models.rl.targets import log_rescale

SIZE = NetworkSize(points=16, max_stages=4, max_devices=18, hidden=16, residual="none")


@pytest.fixture(scope="module")
def teacher() -> LookAheadQNetwork:
    return LookAheadQNetwork(replace(SIZE, residual="log"))


@pytest.fixture
def agent(env: PipelineEnv) -> PipelineAgent:
    network = OneStepQNetwork(SIZE)
    return PipelineAgent(env, network, network, AgentConfig())


def lessons(agent: PipelineAgent, teacher: LookAheadQNetwork, problems: Problems, episodes: int = 2) -> Items:
    index = torch.arange(len(problems.stages))
    return taught(agent, teacher, index, problems, episodes, 0.5, torch.Generator().manual_seed(1))[0]


def test_there_is_a_lesson_for_every_decision_with_two_stages_or_more_behind_it(
    agent: PipelineAgent, teacher: LookAheadQNetwork, problems: Problems
) -> None:
    """Of S stages 2(S-1) decisions are made, and the last two are taken, not learned."""
    items = lessons(agent, teacher, problems, episodes=3)
    stages = problems.stages.long().numpy()
    count = np.bincount(items["problem"], minlength=len(stages))
    np.testing.assert_array_equal(count, 3 * 2 * (stages - 2))
    assert {name: column[0].dtype for name, column in items.items()} == {
        name: np.asarray(column).dtype for name, column in empty_lesson(SIZE).items()
    }


def test_the_teacher_values_legal_actions_only_and_as_its_look_ahead_does(
    env: PipelineEnv, teacher: LookAheadQNetwork, problems: Problems
) -> None:
    """With one stage left its look-ahead is the reward itself, whoever asks."""
    two = problems.take((problems.stages == 2).nonzero().squeeze(1))
    start = env.reset(two)
    after = apply(start, teacher_values(teacher, two, start).argmax(1), two.points)
    values = teacher_values(teacher, two, after)
    legal = env.legal(two, after)
    assert (values[~legal] == -torch.inf).all()
    for action in legal.any(0).nonzero().squeeze(1).tolist():
        rows = legal[:, action].nonzero().squeeze(1)
        complete = apply(after.take(rows), torch.full_like(rows, action), two.points)
        paid = log_rescale(terminal_reward(two.take(rows), complete))
        torch.testing.assert_close(values[rows, action], paid, rtol=1e-4, atol=1e-4)


def test_what_the_teacher_would_choose_costs_nothing_and_a_constant_changes_little() -> None:
    wanted = torch.tensor([[-0.3, -0.2, -3.0, LOWEST], [-1.0, -1.0, -1.0, -0.9]])
    legal = wanted > LOWEST / 2
    loss, divergence = _loss(wanted, wanted, legal, [0.02, 0.5], 0.02)
    torch.testing.assert_close(loss, torch.zeros(2), atol=1e-5, rtol=0)
    shifted, still = _loss(wanted + 0.5, wanted, legal, [0.02, 0.5], 0.02)
    torch.testing.assert_close(still, divergence, atol=1e-4, rtol=0)
    assert (shifted > loss).all()


def test_a_divergence_is_that_of_two_softmaxes() -> None:
    """Two actions at temperature 1: p = softmax(0, log 3) = (1/4, 3/4) against q = (1/2, 1/2)."""
    wanted, q = torch.tensor([[0.0, float(np.log(3.0))]]), torch.zeros(1, 2)
    expected = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    divergence = _loss(q, wanted, torch.ones(1, 2, dtype=torch.bool), [1.0], 1.0)[1]
    assert float(divergence) == pytest.approx(expected, rel=1e-5)


def test_what_a_row_is_described_by_follows_from_its_problem_and_its_plan(
    agent: PipelineAgent, teacher: LookAheadQNetwork, problems: Problems
) -> None:
    """So that a checkpoint can leave it out."""
    items = lessons(agent, teacher, problems)
    again = derived(agent.online, problems.take(torch.from_numpy(items["problem"])), items)
    assert set(again) == set(DERIVED)
    for name in DERIVED:
        np.testing.assert_allclose(again[name], items[name], rtol=2e-3, atol=1e-5, err_msg=name)


def test_replayed_rows_are_valued_as_the_network_values_their_states(
    agent: PipelineAgent, teacher: LookAheadQNetwork, problems: Problems
) -> None:
    """If the teacher says what the pupil thinks, there is nothing to learn: but for half precision."""
    items = lessons(agent, teacher, problems)
    rows = problems.take(torch.from_numpy(items["problem"]))
    states = agent.env.reset(rows)._replace(
        **{name: torch.from_numpy(items[name]).long() for name in ("cuts", "device_cuts", "step")}
    )
    q = agent.q(agent.online, rows, states)
    own = torch.where(agent.env.legal(rows, states), q, LOWEST).detach().numpy().astype(np.float16)
    loss, errors = lesson_loss(agent.online, {**items, "values": own}, torch.ones(len(own)), [0.1], 0.02)
    assert float(errors.max()) < 0.05
    assert float(loss.detach()) < 0.05


@pytest.mark.slow
def test_a_pupil_that_sees_one_step_comes_near_its_teacher(
    random_problems: Callable[..., list[StagedProblem]], teacher: LookAheadQNetwork
) -> None:
    """From random weights to 0.95 of what the teacher's own look-ahead earns, greedily, on 24 problems."""
    torch.manual_seed(0)
    problems = Problems.from_encoded(encode(random_problems(3, 24, 16, stages=(3, 4), memory=(1.5, 20.0))))
    network = OneStepQNetwork(SIZE)
    agent = PipelineAgent(PipelineEnv(4, 18), network, network, AgentConfig())
    look_ahead = LookAheadQNetwork(replace(SIZE, residual="log"))
    for half in (look_ahead.cut, look_ahead.device_cut):
        torch.nn.init.zeros_(half.advantage.weight)  # type: ignore[union-attr,arg-type]
    planner = PipelineAgent(agent.env, look_ahead, look_ahead, AgentConfig())
    generator = torch.Generator().manual_seed(1)
    best = rollout(planner, problems, 0.0, generator).reward
    before = rollout(agent, problems, 0.0, generator).reward
    optimizer, random = torch.optim.Adam(network.parameters(), lr=3e-3), np.random.default_rng(1)
    for _ in range(6):
        items = lessons(agent, teacher, problems)
        for _ in range(40):
            rows = random.integers(0, len(items["step"]), 128)
            batch = {name: column[rows] for name, column in items.items()}
            loss = lesson_loss(network, batch, torch.ones(128), [0.02, 0.5], 0.02)[0]
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    after = rollout(agent, problems, 0.0, generator).reward
    assert before.mean() < 0.85 * best.mean()
    assert after.mean() > 0.95 * best.mean()
