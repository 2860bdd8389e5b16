"""Data sets are reproducible, resumable, and never two in one folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from automap_models.datagen import shards
from automap_models.datagen.shards import Job, produce
from automap_models.envs.pipeline.encoding import EncodedProblems
from automap_models.errors import BadInput
from automap_models.formats.dataset import read_dataset, read_manifest

MakeJob = Callable[..., Job]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make(job: Job, part: int = 0, parts: int = 1) -> list[bool]:
    return [missing for _, missing in produce(job, part, parts)]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(make_job: MakeJob) -> None:
    first, second = make_job(folder="first"), make_job(folder="second")
    other = make_job("seed=6", folder="other")
    for job in (first, second, other):
        make(job)
    assert contents(first.folder) == contents(second.folder)
    assert contents(first.folder)["shard-00000.npz"] != contents(other.folder)["shard-00000.npz"]


def test_no_two_shards_are_alike(make_job: MakeJob) -> None:
    job = make_job()
    make(job)
    arrays = read_dataset(job.folder)["arrays"]
    assert len(np.unique(arrays.reshape(len(arrays), -1), axis=0)) == job.groups


def test_an_interrupted_run_is_completed_without_redoing_what_is_whole(make_job: MakeJob) -> None:
    unbroken, broken = make_job(folder="unbroken"), make_job(folder="broken")
    make(unbroken)
    run = produce(broken)
    next(run)
    run.close()
    assert not (broken.folder / "manifest.json").exists()
    (broken.folder / ".automap-0123.tmp").write_bytes(b"half a shard")
    (broken.folder / "shard-00001.npz").write_bytes(b"a shard whose companion was never written")
    assert make(broken) == [False, True, True]
    assert contents(broken.folder) == contents(unbroken.folder)
    assert make(broken) == [False, False, False]


def test_nothing_is_written_where_a_second_part_may_sweep_up(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that starts alone removes half-written files: it must find the folder locked while one is written."""
    job, written = make_job(), []

    def write_json(path: Path, value: object) -> None:
        second = os.open(job.folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(second)
        written.append(path.name)
        original(path, value)

    original = shards.write_json
    monkeypatch.setattr(shards, "write_json", write_json)
    make(job)
    assert {"settings.json", "shard-00000.json", "manifest.json"} <= set(written)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "companion"])
def test_a_damaged_shard_is_made_again_and_only_that(make_job: MakeJob, damage: str) -> None:
    job = make_job()
    make(job)
    before = contents(job.folder)
    shard = job.shard_file(1)
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    elif damage == "truncate":
        shard.write_bytes(content[:-100])
    elif damage == "remove":
        shard.unlink()
    else:
        shard.with_suffix(".json").write_text("{")
    assert make(job) == [False, True, False]
    assert contents(job.folder) == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_parts_make_what_one_run_makes(make_job: MakeJob, order: tuple[int, int]) -> None:
    whole, parts = make_job(folder="whole"), make_job(folder="parts")
    make(whole)
    for done, part in enumerate(order):
        assert (parts.folder / "manifest.json").exists() is False
        make(parts, part, 2)
        assert (parts.folder / "manifest.json").exists() is bool(done)
    assert contents(parts.folder) == contents(whole.folder)


def test_what_another_part_is_writing_is_left_alone(make_job: MakeJob) -> None:
    job = make_job()
    run = produce(job, 0, 2)
    next(run)
    other = job.folder / ".automap-4567.tmp"
    other.write_bytes(b"being written")
    make(job, 1, 2)
    assert other.exists()
    run.close()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seed=6", "seed = 5, not 6"),
        ("groups=200", "groups = 300, not 200"),
        ("dist.weights.cnn=9", "dist.weights.cnn = 2.5, not 9"),
        ("problem.micro_batches=[2, 8]", "problem.micro_batches"),
        ("dist=normal", "dist."),
    ],
)
def test_a_folder_with_another_data_set_is_refused_by_the_key_that_differs(
    make_job: MakeJob, override: str, key: str
) -> None:
    job = make_job()
    make(job)
    before = contents(job.folder)
    with pytest.raises(BadInput) as error:
        make(make_job(override))
    assert key in str(error.value)
    assert "out=" in str(error.value)
    assert contents(job.folder) == before


def test_the_manifest_says_what_the_shards_hold(make_job: MakeJob) -> None:
    job = make_job("groups=250")
    make(job)
    manifest = read_manifest(job.folder)
    groups = EncodedProblems.from_mapping(read_dataset(job.folder))
    assert [shard.count for shard in manifest.shards] == [100, 100, 50]
    assert manifest.groups == len(groups) == 250
    assert manifest.granularity == groups.arrays.shape[2]
    assert manifest.seed == 5
    assert manifest.config["problem"]["instructions"] == [16, 4096]
    for name, values in groups.as_dict().items():
        if values.ndim == 1:
            assert manifest.ranges[name] == (values.min(), values.max())
    assert json.loads((job.folder / "settings.json").read_text())["seed"] == 5


def test_a_recipe_that_cannot_be_drawn_leaves_nothing_behind(make_job: MakeJob) -> None:
    job = make_job("dist=lognormal", "dist.parameters.mu=1000")
    with pytest.raises(BadInput, match="float32"):
        make(job)
    assert not job.folder.exists()
