"""A data set and settings small enough that a whole training takes a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra_programs import quickly_composed
from omegaconf import DictConfig

from automap_models.datagen.command import make

MakeConfig = Callable[..., DictConfig]

SIZES = ("env.points=16", "env.max_stages=4", "env.max_devices=12", "agent.size.hidden=16")
TINY = (
    *SIZES,
    "data.validation_groups=12",
    "data.batch=16",
    "data.steps_per_epoch=4",
    "data.min_stages=2",
    "episodes=256",
    "agent.learner.branches=1",
    "agent.learner.batch=16",
    "agent.learner.iterations=2",
    "agent.learner.replay=500",
    "agent.learner.target_every=3",
    "trainer.threads=1",
    "export=false",
)


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 200 groups on 16 points, clusters of 8 or 12 devices; 188 to train on in TINY."""
    folder = tmp_path_factory.mktemp("groups") / "data"
    cluster = ("problem.cluster.nodes={values: [2, 3], weights: [1, 1]}", "problem.instructions=[4, 200]")
    per_node = "problem.cluster.devices_per_node={values: [4], weights: [1]}"
    make(quickly_composed("datagen", "groups=200", "granularity=16", "seed=3", f"out={folder}", *cluster, per_node))
    return folder


@pytest.fixture(scope="session")
def compose_tiny(groups: Path) -> MakeConfig:
    """Compose conf/train.yaml with tiny sizes on `groups`."""
    return lambda *overrides: quickly_composed("train", *TINY, f"data.path={groups}", *overrides)


@pytest.fixture
def tiny(compose_tiny: MakeConfig, tmp_path: Path) -> MakeConfig:
    """The same with `out` in a folder of the test's."""
    return lambda *overrides, out="run": compose_tiny(f"out={tmp_path / out}", *overrides)


@pytest.fixture
def shipped_agent(groups: Path, tmp_path: Path) -> MakeConfig:
    """Compose conf/train.yaml on tiny data with the agent as it is shipped."""
    kept = [setting for setting in TINY if not setting.startswith("agent")]
    return lambda *overrides: quickly_composed(
        "train", *kept, f"data.path={groups}", f"out={tmp_path / 'run'}", *overrides
    )


@pytest.fixture
def tiny_arguments(groups: Path) -> list[str]:
    """The same as arguments of the command."""
    return [*TINY, f"data.path={groups}"]
