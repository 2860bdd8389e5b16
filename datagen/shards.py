"""A data set made shard by shard: any of them alone, whole or not at all, none of them twice."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_json
from automap_models.formats.dataset import KIND, MANIFEST, SCHEMA, ShardEntry, write_shard
from automap_models.formats.schema import read_json
from automap_models.version import __version__

from .generate import Recipe, draw_groups

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Job:
    """A data set to make.

    Attributes:
        folder: where it goes; made when it is not there.
        recipe: what its groups are drawn from.
        identity: the config that decides its content, seed included; a folder holds one data set.
        seed: with a shard's number it decides the shard.
        groups: how many.
        shard_size: groups in each shard but the last.
    """

    folder: Path
    recipe: Recipe
    identity: Mapping[str, Any]
    seed: int
    groups: int
    shard_size: int

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.groups // self.shard_size)

    def shard_count(self, index: int) -> int:
        """Groups in that shard."""
        return min(self.shard_size, self.groups - index * self.shard_size)

    def shard_file(self, index: int) -> Path:
        """The shard's file; its companion .json beside it says that it is finished, with its checksum."""
        return self.folder / f"shard-{index:05d}.npz"


def produce(job: Job, part: int = 0, parts: int = 1) -> Iterator[tuple[int, bool]]:
    """Make the shards whose number is `part` modulo `parts`, then the manifest if all the others are there too.

    Yields:
        (groups in the shard, whether it was made now rather than found whole), after each shard.

    Raises:
        BadInput: the recipe cannot be drawn; the folder cannot be written or holds a data set of another config.
    """
    draw_groups(job.recipe, np.random.default_rng(job.seed), 64)  # before anything is written
    with _at_work(job.folder):
        _claim(job)
        for index in range(part, job.shards, parts):
            missing = finished_entry(job, index) is None
            if missing:
                _make_shard(job, index)
            yield job.shard_count(index), missing
        _write_manifest(job)


def finished_entry(job: Job, index: int) -> ShardEntry | None:
    """The manifest entry of a shard that is there and whole, else None."""
    path = job.shard_file(index)
    try:
        entry = read_json(path.with_suffix(".json"), ShardEntry)
        with path.open("rb") as file:
            is_complete = hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except (OSError, BadInput):
        return None
    return entry if is_complete and (entry.file, entry.count) == (path.name, job.shard_count(index)) else None


def _make_shard(job: Job, index: int) -> None:
    seed = np.random.SeedSequence(job.seed, spawn_key=(index,))
    arrays = draw_groups(job.recipe, np.random.default_rng(seed), job.shard_count(index))
    path = job.shard_file(index)
    write_json(path.with_suffix(".json"), write_shard(path, arrays))


@contextlib.contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """Share the folder, made where needed, with other parts; who comes first removes what a killed run left there.

    Everything is written under the shared lock: outside of it another part would take a file that is just being
    written for a left-over.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(
            f"the folder cannot be made ({error.strerror})", where=f"out={folder}", do="write somewhere else"
        ) from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks: what is left over stays
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in folder.glob(".automap-*.tmp"):
                leftover.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _claim(job: Job) -> None:
    """Make the folder this data set's, or make sure that it is."""
    path = job.folder / SETTINGS
    identity = json.loads(json.dumps(job.identity))
    if not path.exists() or not any(job.folder.glob("shard-*.npz")):
        write_json(path, identity)
        return
    there = dict(_flat(read_json(path, dict[str, Any], do="give another folder with out=")))
    wanted = dict(_flat(identity))
    for key in sorted(there.keys() | wanted.keys()):
        old, new = there.get(key, "nothing"), wanted.get(key, "nothing")
        if old != new:
            do = "give another folder with out=, or the same settings to complete it"
            raise BadInput(f"holds a data set with {key} = {old}, not {new}", where=f"out={job.folder}", do=do)


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _write_manifest(job: Job) -> None:
    entries = [finished_entry(job, index) for index in range(job.shards)]
    if any(entry is None for entry in entries):
        return
    shards = [entry for entry in entries if entry is not None]
    ends = {name: list(zip(*(shard.ranges[name] for shard in shards), strict=True)) for name in shards[0].ranges}
    ranges = {name: [min(lows), max(highs)] for name, (lows, highs) in ends.items()}
    manifest = {
        "schema": SCHEMA,
        "kind": KIND,
        "automap_version": __version__,
        "granularity": job.recipe.granularity,
        "groups": job.groups,
        "seed": job.seed,
        "distributions": list(job.recipe.mixture.names),
        "ranges": ranges,
        "shards": [msgspec.structs.asdict(shard) for shard in shards],
        "config": dict(job.identity),
    }
    write_json(job.folder / MANIFEST, manifest)
