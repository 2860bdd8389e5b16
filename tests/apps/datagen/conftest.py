"""Data sets small enough for tests, from the shipped configs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra_programs import quickly_composed

from automap_models.datagen.command import job_from
from automap_models.datagen.shards import Job

MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """Compose conf/datagen.yaml with overrides: 300 groups in shards of 100 unless said otherwise."""

    def make(*overrides: str, folder: str = "data") -> Job:
        small = ["groups=300", "shard_size=100", "seed=5", f"out={tmp_path / folder}"]
        return job_from(quickly_composed("datagen", *small, *overrides))

    return make
