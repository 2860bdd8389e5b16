"""What tests of the agent and its networks share: encoded problems, and states of their plans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline import features
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems, States, follow


@pytest.fixture(autouse=True)
def fixed_weights() -> None:
    """Networks begin with the same weights in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def problems(random_problems: Callable[..., list[StagedProblem]]) -> Problems:
    """24 small problems of two to four stages on 16 points and at most 18 devices."""
    return Problems.from_encoded(encode(random_problems(11, 24)))


@pytest.fixture(scope="session")
def states(problems: Problems) -> States:
    """A state for each problem, some that choose points and some that choose devices, after random decisions."""
    rng = np.random.default_rng(5)
    until = (rng.random(24) * problems.decisions).astype(np.int64)
    begun = States.empty(24, 4)
    return follow(problems, begun, until, features.describe, lambda c: rng.random(c.choice.shape).astype(np.float32))
