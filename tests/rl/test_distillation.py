"""Lessons of a teacher: which states they are about, what the teacher says, and what is learned from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, apply, terminal_reward
from automap_models.rl import lessons as lessons_module
from automap_models.rl.agent import AgentConfig
from automap_models.rl.distillation import (
    DERIVED,
    LOWEST,
    LossSettings,
    _loss,
    derived,
    empty_lesson,
    lesson_loss,
    taught,
)
from automap_models.rl.lessons import FINE, Lessons, legal_first
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


@pytest.fixture
def lessons(agent: PipelineAgent, teacher: LookAheadQNetwork) -> Lessons:
    assert isinstance(agent.online, OneStepQNetwork)
    return Lessons(agent.online, teacher)


def rows_of(
    agent: PipelineAgent, lessons: Lessons, problems: Problems, episodes: int = 2, epsilon: float = 0.5
) -> tuple[Items, torch.Tensor]:
    index = torch.arange(len(problems.stages))
    return taught(agent, lessons, index, problems, episodes, epsilon, torch.Generator().manual_seed(1))


def states_of(items: Items) -> Partial:
    return Partial(*(torch.from_numpy(items[name]).long() for name in ("cuts", "device_cuts", "step")))


def test_there_is_a_lesson_for_every_different_state_with_two_stages_or_more_behind_it(
    agent: PipelineAgent, lessons: Lessons, problems: Problems
) -> None:
    """Of S stages 2(S-1) decisions are made, and the last two are taken, not learned."""
    items, promised = rows_of(agent, lessons, problems, episodes=3)
    stages = problems.stages.long().numpy()
    steps = [items["step"][items["problem"] == i] for i in range(len(stages))]
    for count, decided in zip(stages, steps, strict=True):
        by_step = np.bincount(decided, minlength=2 * (count - 2))
        assert len(by_step) == 2 * (count - 2)
        assert not len(by_step) or by_step[0] == 1
        assert ((by_step >= 1) & (by_step <= 3)).all()
    state = np.concatenate([items["problem"][:, None], items["cuts"], items["device_cuts"]], 1)
    assert len(np.unique(state, axis=0)) == len(state)
    assert len(promised) == 3 * (stages > 2).sum()
    assert {name: column[0].dtype for name, column in items.items()} == {
        name: np.asarray(column).dtype for name, column in empty_lesson(SIZE).items()
    }


def test_greedy_episodes_come_through_the_states_of_a_rollout(
    agent: PipelineAgent, lessons: Lessons, problems: Problems
) -> None:
    """The same network played by other code, which knows nothing of lessons and sees all candidates in their order."""
    items, _ = rows_of(agent, lessons, problems, episodes=3, epsilon=0.0)
    complete = rollout(agent, problems, 0.0, torch.Generator()).complete
    owner, states = torch.from_numpy(items["problem"]), states_of(items)
    assert len(owner) == int((2 * (problems.stages - 2)).sum())
    for got, expected in zip(states, complete.take(owner).at_step(states.step), strict=True):
        torch.testing.assert_close(got, expected)


def test_the_teacher_values_legal_actions_only_and_as_its_look_ahead_does(
    env: PipelineEnv, lessons: Lessons, problems: Problems
) -> None:
    """With one stage left its look-ahead is the reward itself, whoever asks."""
    two = problems.take((problems.stages == 2).nonzero().squeeze(1))
    (rows, limit, fineness), owner = lessons.classes(two)[0], torch.arange(len(two.stages))
    assert len(rows) == len(owner)
    two = lessons.prepare(two, fineness)
    start = env.reset(two)
    after = apply(start, lessons.promised(two, owner, start, limit).argmax(1), two.points)
    values = lessons.promised(two, owner, after, limit)
    legal = env.legal(two, after)[:, two.points :]
    assert (values[~legal] == -torch.inf).all()
    for device in legal.any(0).nonzero().squeeze(1).tolist():
        rows = legal[:, device].nonzero().squeeze(1)
        complete = apply(after.take(rows), torch.full_like(rows, two.points + device), two.points)
        paid = log_rescale(terminal_reward(two.take(rows), complete))
        torch.testing.assert_close(values[rows, device], paid, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_under_a_schedule_the_teacher_s_plans_take_steps_no_longer_than_its_plans_for_the_length(
    teacher: LookAheadQNetwork, problems: Problems, schedule: str
) -> None:
    """Acting greedily on values of simulated plans, against acting on the look-ahead's estimates of L: on average
    shorter, and every decision is learned, the last two included."""
    size = replace(SIZE, objective=schedule)
    env = PipelineEnv(size.max_stages, size.max_devices, objective=schedule)
    steps = {}
    for name, own in (("length", SIZE), ("step", size)):
        lessons, taken = Lessons(OneStepQNetwork(own), teacher), torch.full_like(problems.stages, torch.inf)
        for rows, limit, fineness in lessons.classes(problems):
            here, owner = lessons.prepare(problems.take(rows), fineness), torch.arange(len(rows))
            complete, states = env.reset(here), env.reset(here)
            while len(owner):
                best = lessons.promised(here, owner, states, limit).argmax(1)
                states = apply(states, best + int(states.step[0] % 2) * here.points, here.points)
                complete = Partial(*(a.index_put((owner,), b) for a, b in zip(complete, states, strict=True)))
                going = states.step < env.episode_steps(here)[owner]
                owner, states = owner[going], states.take(going)
            time, fits = env.taken(here, complete)
            taken[rows] = torch.where(fits, time, torch.inf)
        steps[name] = taken
    both = steps["length"].isfinite() & steps["step"].isfinite()
    assert int(steps["step"].isfinite().sum()) >= int(steps["length"].isfinite().sum())
    assert int(both.sum()) > 8
    ratios = steps["step"][both] / steps["length"][both]
    assert float(ratios.mean()) < 1.0
    assert float((ratios > 1 + 1e-4).float().mean()) < 0.2
    agent = PipelineAgent(env, OneStepQNetwork(size), OneStepQNetwork(size), AgentConfig())
    assert isinstance(agent.online, OneStepQNetwork)
    index, skip = torch.arange(len(problems.stages)), agent.online.exact_last
    lessons = Lessons(agent.online, teacher)
    items, _ = taught(agent, lessons, index, problems, 1, 0.0, torch.Generator(), skip)
    assert skip == 0
    assert len(items["step"]) == int((2 * (problems.stages - 1)).sum())


@pytest.mark.parametrize("few", [1, 7, 18])
def test_a_state_is_valued_the_same_whatever_it_is_looked_at_with(
    lessons: Lessons, problems: Problems, states: Partial, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of another size, beside other states, among problems of another class."""
    rows = ((states.step % 2 == 1) & (problems.stages > 1)).nonzero().squeeze(1)
    problems, states = problems.take(rows), states.take(rows)
    fineness = FINE[0][1]
    prepared, owner, most = lessons.prepare(problems, fineness), torch.arange(len(rows)), SIZE.max_devices
    seen, promises = lessons.seen(prepared, owner, states, most), lessons.promised(prepared, owner, states, most)
    monkeypatch.setattr(lessons_module, "FINE", ((few, fineness), (None, fineness)))
    reached = 0
    for some, limit, _ in lessons.classes(problems):
        here = lessons.prepare(problems.take(some), fineness)
        for i, row in enumerate(some.tolist()):
            alone = torch.tensor([i]), states.take(torch.tensor([row])), limit
            for one, all_of_them in zip(lessons.seen(here, *alone), seen, strict=True):
                expected = all_of_them[row : row + 1]
                expected = expected[:, : one.shape[1]] if one.dim() > 1 and one.shape[1] == limit - 1 else expected
                torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                lessons.promised(here, *alone), promises[row : row + 1, : limit - 1], rtol=1e-5, atol=1e-6
            )
            reached += 1
    assert reached == len(rows)


def test_a_network_values_candidates_the_same_in_any_order(
    agent: PipelineAgent, lessons: Lessons, problems: Problems, states: Partial
) -> None:
    rows = (states.step % 2 == 0).nonzero().squeeze(1)
    described = lessons.seen(problems.take(rows), torch.arange(len(rows)), states.take(rows), SIZE.max_devices)
    candidates, order = legal_first(described)
    with torch.no_grad():
        expected, got = (agent.online.cut(d) for d in (described, candidates))
    assert candidates.legal.shape[1] < described.legal.shape[1]
    assert int(candidates.legal.sum()) == int(described.legal.sum())
    back = expected.gather(1, order)
    torch.testing.assert_close(got[candidates.legal], back[candidates.legal], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiled_functions_see_and_say_the_same(agent: PipelineAgent, lessons: Lessons, problems: Problems) -> None:
    """A minute of compiling."""
    compiled = Lessons(lessons.online, lessons.teacher, compiled=True)
    items, _ = rows_of(agent, lessons, problems)
    again, _ = rows_of(agent, compiled, problems)
    for name in items:
        np.testing.assert_allclose(again[name], items[name], rtol=2e-3, atol=1e-4, err_msg=name)


def test_what_the_teacher_would_choose_costs_nothing_and_a_constant_changes_little() -> None:
    wanted = torch.tensor([[-0.3, -0.2, -3.0, LOWEST], [-1.0, -1.0, -1.0, -0.9]])
    legal = wanted > LOWEST / 2
    loss, divergence = _loss(wanted, wanted, legal, LossSettings([0.02, 0.5], 0.02))
    torch.testing.assert_close(loss, torch.zeros(2), atol=1e-5, rtol=0)
    shifted, still = _loss(wanted + 0.5, wanted, legal, LossSettings([0.02, 0.5], 0.02))
    torch.testing.assert_close(still, divergence, atol=1e-4, rtol=0)
    assert (shifted > loss).all()


def test_a_divergence_is_that_of_two_softmaxes() -> None:
    """Two actions at temperature 1: p = softmax(0, log 3) = (1/4, 3/4) against q = (1/2, 1/2)."""
    wanted, q = torch.tensor([[0.0, float(np.log(3.0))]]), torch.zeros(1, 2)
    expected = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    divergence = _loss(q, wanted, torch.ones(1, 2, dtype=torch.bool), LossSettings([1.0], 1.0))[1]
    assert float(divergence) == pytest.approx(expected, rel=1e-5)


def test_the_regret_is_what_a_softmax_loses_on_average() -> None:
    """q = (0, 0.5·log 3) at temperature 0.5 chooses with 1/4 and 3/4; the second loses 0.4, the third is illegal."""
    wanted = torch.tensor([[-0.1, -0.5, -9.1]])
    q, legal = torch.tensor([[0.0, 0.5 * float(np.log(3.0)), 5.0]]), torch.tensor([[True, True, False]])
    without, weighted = (_loss(q, wanted, legal, LossSettings([0.5], 1.0, regret))[0] for regret in (0.0, 10.0))
    assert float(weighted - without) == pytest.approx(10 * 0.75 * 0.4, rel=1e-5)


def test_what_a_row_is_described_by_follows_from_its_problem_and_its_plan(
    agent: PipelineAgent, lessons: Lessons, problems: Problems
) -> None:
    """So that a checkpoint can leave it out."""
    items, _ = rows_of(agent, lessons, problems)
    again = derived(lessons, problems.take(torch.from_numpy(items["problem"])), items)
    assert set(again) == set(DERIVED)
    for name in DERIVED:
        np.testing.assert_allclose(again[name], items[name], rtol=2e-3, atol=1e-5, err_msg=name)


def test_replayed_rows_are_valued_as_the_network_values_their_states(
    agent: PipelineAgent, lessons: Lessons, problems: Problems
) -> None:
    """If the teacher says what the pupil thinks, there is nothing to learn: but for half precision."""
    items, _ = rows_of(agent, lessons, problems)
    rows = problems.take(torch.from_numpy(items["problem"]))
    states = states_of(items)
    with torch.no_grad():
        q = agent.q(agent.online, rows, states)
    legal = agent.env.legal(rows, states)
    own = np.full_like(items["values"], LOWEST)
    for i in range(len(own)):
        values = q[i][legal[i]].numpy()
        own[i, : len(values)] = values
    settings = LossSettings([0.1], 0.02)
    loss, errors = lesson_loss(lessons.online, {**items, "values": own}, torch.ones(len(own)), settings)
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
    lessons = Lessons(network, teacher)
    optimizer, random = torch.optim.Adam(network.parameters(), lr=3e-3), np.random.default_rng(1)
    for _ in range(6):
        items, _ = rows_of(agent, lessons, problems)
        for _ in range(40):
            rows = random.integers(0, len(items["step"]), 128)
            batch = {name: column[rows] for name, column in items.items()}
            loss = lesson_loss(network, batch, torch.ones(128), LossSettings([0.02, 0.5], 0.02))[0]
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    after = rollout(agent, problems, 0.0, generator).reward
    assert before.mean() < 0.85 * best.mean()
    assert after.mean() > 0.95 * best.mean()
