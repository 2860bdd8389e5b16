"""What tests of the agent and its networks share: a small environment and encoded problems for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems


@pytest.fixture(autouse=True)
def fixed_weights() -> None:
    """Networks begin with the same weights in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def env() -> PipelineEnv:
    """Up to four stages on up to eighteen devices."""
    return PipelineEnv(max_stages=4, max_devices=18)


@pytest.fixture(scope="session")
def problems(random_problems: Callable[..., list[StagedProblem]]) -> Problems:
    """24 small problems of two to four stages on 16 points."""
    return Problems.from_encoded(encode(random_problems(11, 24)))


@pytest.fixture(scope="session")
def states(env: PipelineEnv, problems: Problems) -> Partial:
    """A state for each problem, some that cut instructions and some that cut devices, after random legal decisions."""
    generator = torch.Generator().manual_seed(5)
    until = (torch.rand(len(problems.stages), generator=generator) * env.episode_steps(problems)).long()
    partial = env.reset(problems)
    for t in range(int(until.max())):
        action = torch.multinomial(env.legal(problems, partial).float() + 1e-9, 1, generator=generator).squeeze(1)
        after, _, _ = env.step(problems, partial, action)
        going = (until > t).unsqueeze(1)
        partial = Partial(
            torch.where(going, after.cuts, partial.cuts),
            torch.where(going, after.device_cuts, partial.device_cuts),
            torch.where(going.squeeze(1), after.step, partial.step),
        )
    return partial
