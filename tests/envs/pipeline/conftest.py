"""Plans that are drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems


@pytest.fixture(scope="session")
def random_plans() -> Callable[[Problems, PipelineEnv, int], tuple[Partial, torch.Tensor]]:
    """A function that draws complete plans of uniform legal actions from a seed, and says what the environment pays."""
    return draw_plans


def draw_plans(problems: Problems, env: PipelineEnv, seed: int) -> tuple[Partial, torch.Tensor]:
    """See `random_plans`."""
    generator = torch.Generator().manual_seed(seed)
    partial, steps = env.reset(problems), env.episode_steps(problems)
    rewards = torch.zeros(len(steps))
    for t in range(int(steps.max())):
        rows = (steps > t).nonzero().squeeze(1)
        here, before = problems.take(rows), partial.take(rows)
        action = torch.multinomial(env.legal(here, before).float(), 1, generator=generator).squeeze(1)
        after, reward, _ = env.step(here, before, action)
        rewards[rows] = reward
        partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, after, strict=True)))
    return partial, rewards
