"""Data sets small enough for tests, from the shipped configs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hydra
import pytest

from automap_models.datagen.command import job_from
from automap_models.datagen.shards import Job
from automap_models.resources import conf_dir

MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """Compose conf/datagen.yaml with overrides: 300 groups in shards of 100 unless said otherwise."""

    def make(*overrides: str, folder: str = "data") -> Job:
        small = ["groups=300", "shard_size=100", "seed=5", f"out={tmp_path / folder}"]
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return job_from(hydra.compose("datagen", overrides=[*small, *overrides]))

    return make
