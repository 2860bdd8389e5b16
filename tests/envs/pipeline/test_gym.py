"""The gymnasium wrapper: checked by gymnasium itself, and against the batched environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import EncodedProblems, encode
from automap_models.envs.pipeline.env import Problems, terminal_reward
from automap_models.envs.pipeline.gym import PipelineGymEnv
from automap_models.errors import BadInput

ENV_ID = "automap-test/Pipeline-v0"
DrawProblems = Callable[..., list[StagedProblem]]


@pytest.fixture(scope="module")
def encoded(random_problems: DrawProblems) -> EncodedProblems:
    return encode(random_problems(1, 12))


@pytest.fixture
def registered(encoded: EncodedProblems) -> Iterator[str]:
    """The environment under a name, so that the checker can also make copies of it."""
    gymnasium.register(ENV_ID, entry_point=PipelineGymEnv, kwargs={"encoded": encoded})
    yield ENV_ID
    del gymnasium.registry[ENV_ID]


def test_gymnasiums_checker_finds_nothing(registered: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(5):
            env = gymnasium.make(registered)
            env.action_space.seed(seed)
            check_env(env.unwrapped)


def test_episodes_of_legal_actions_earn_what_the_batched_environment_pays(encoded: EncodedProblems) -> None:
    env = PipelineGymEnv(encoded, max_stages=6, max_devices=20)
    problems = Problems.from_encoded(encoded)
    random = np.random.default_rng(0)
    for i in range(len(encoded)):
        observation, info = env.reset(options={"problem": i})
        assert info["problem"] == i
        for t in range(2 * (int(encoded.stages[i]) - 1)):
            assert observation in env.observation_space
            np.testing.assert_array_equal(info["action_mask"], env.action_masks())
            action = np.int64(random.choice(np.flatnonzero(info["action_mask"])))
            observation, reward, terminated, truncated, info = env.step(action)
            assert (terminated, truncated) == (t + 1 == 2 * (int(encoded.stages[i]) - 1), False)
            assert info["legal"]
            assert terminated or reward == 0.0
        assert terminated
        assert observation in env.observation_space
        assert reward == float(terminal_reward(problems.take(torch.tensor([i])), env.plan))
        assert not env.action_masks().any()


def test_an_illegal_action_ends_the_episode_with_the_penalty(encoded: EncodedProblems) -> None:
    env = PipelineGymEnv(encoded)
    before, info = env.reset(seed=2)
    illegal = np.int64(np.flatnonzero(~info["action_mask"])[0])
    after, reward, terminated, truncated, info = env.step(illegal)
    assert (reward, terminated, truncated, info["legal"]) == (-1.0, True, False, False)
    assert not info["action_mask"].any()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_step_outside_an_episode_asks_for_a_reset(encoded: EncodedProblems) -> None:
    env = PipelineGymEnv(encoded)
    assert not env.action_masks().any()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(np.int64(0))
    _, info = env.reset(seed=2)
    env.step(np.int64(np.flatnonzero(~info["action_mask"])[0]))
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(np.int64(0))


def test_the_seed_decides_which_problems_come(encoded: EncodedProblems) -> None:
    def drawn(seed: int) -> list[int]:
        env = PipelineGymEnv(encoded)
        return [env.reset(seed=seed)[1]["problem"], *(env.reset()[1]["problem"] for _ in range(50))]

    assert drawn(7) == drawn(7) != drawn(8)
    assert set(drawn(7)) == set(range(len(encoded)))


def test_actions_and_problems_that_do_not_exist_are_refused(encoded: EncodedProblems) -> None:
    env = PipelineGymEnv(encoded)
    with pytest.raises(BadInput, match=r"problem 12; choose one of 0\.\.11"):
        env.reset(options={"problem": 12})
    env.reset(seed=0)
    with pytest.raises(BadInput, match=rf"whole number of 0\.\.{env.action_space.n - 1}"):
        env.step(env.action_space.n)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"max_stages": 2}, "has more than 2 stages; raise max_stages"),
        ({"max_devices": 2}, "has more than 2 devices; raise max_devices"),
    ],
)
def test_problems_that_do_not_fit_the_spaces_are_refused(
    encoded: EncodedProblems, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        PipelineGymEnv(encoded, **sizes)


def test_problems_without_a_decision_are_refused(random_problems: DrawProblems, encoded: EncodedProblems) -> None:
    with pytest.raises(BadInput, match="problem 1 has one stage and nothing to decide"):
        PipelineGymEnv(encode([*random_problems(0, 1), *random_problems(0, 1, stages=(1, 1))]))
    with pytest.raises(BadInput, match="no problems"):
        PipelineGymEnv(encoded.take(slice(0, 0)))
