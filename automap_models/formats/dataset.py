"""A data set on disk: a folder of checksummed .npz shards and a manifest.json that says what they hold.

A shard is a mapping from names to arrays with one entry a group along the first axis; what the names mean is the
business of envs.pipeline.encoding. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_bytes
from automap_models.formats.npz import Archive
from automap_models.formats.schema import Count, Document, read_json

SCHEMA = 1
KIND = "pipeline-dataset"
MANIFEST = "manifest.json"
MAX_GROUPS = 1_000_000_000
MAX_SHARDS = 100_000
"""Of a data set; their files are numbered with five digits."""

Arrays = dict[str, NDArray[Any]]


def write_shard(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write one shard, atomically; equal arrays give equal bytes.

    Args:
        path: where to.
        arrays: name → array, all with the same first length.

    Returns:
        The shard's entry in a manifest: file, count, sha256 and ranges ([min, max] of every one-dimensional array).

    Raises:
        BadInput: the file cannot be written.
    """
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getbuffer()
    write_bytes(path, content)
    return {
        "file": Path(path).name,
        "count": len(next(iter(arrays.values()))),
        "sha256": hashlib.sha256(content).hexdigest(),
        "ranges": {name: [a.min().item(), a.max().item()] for name, a in arrays.items() if a.ndim == 1},
    }


class ShardEntry(Document):
    """What a manifest says of a shard; its file is in the folder itself."""

    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=255)]
    count: Annotated[int, Meta(ge=1, le=MAX_GROUPS)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    ranges: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)


class Manifest(Document):
    """What a data set holds.

    Attributes:
        granularity: points of each array.
        groups: how many problems in all.
        seed: what they were drawn from.
        distributions: names; the shards' `distribution` indexes them.
        shards: in order.
        ranges: [min, max] over all shards of every one-dimensional array.
        config: the settings that decide what the data set holds.
    """

    schema: Literal[1]
    kind: Literal["pipeline-dataset"]
    shards: Annotated[list[ShardEntry], Meta(min_length=1, max_length=MAX_SHARDS)]
    groups: Annotated[int, Meta(ge=1, le=MAX_GROUPS)]
    granularity: Count
    seed: int
    distributions: list[str]
    ranges: dict[str, tuple[float, float]]
    config: dict[str, Any]
    automap_version: str = ""


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a data set.

    Raises:
        BadInput: there is none, or it is no manifest that this version can read.
    """
    path = Path(folder) / MANIFEST
    if not os.path.lexists(path):
        what = f"there is no {MANIFEST}"
        raise BadInput(what, where=str(folder), do="give the folder of a finished data set (datagen/run.py)")
    return read_json(path, Manifest, do=_REMAKE)


_REMAKE = "make the data set again with datagen/run.py: it keeps the shards that are whole"


def read_shard(folder: str | os.PathLike[str], entry: ShardEntry) -> Arrays:
    """One shard's arrays, after its checksum was compared.

    Args:
        folder: the data set.
        entry: the shard's entry in the manifest.

    Raises:
        BadInput: the shard is missing, damaged or not the one the manifest means.
    """
    path = Path(folder) / entry.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where=str(path), do=_REMAKE) from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise BadInput("does not have the checksum of the manifest: it is damaged", where=str(path), do=_REMAKE)
    with Archive(io.BytesIO(content), str(path), do=_REMAKE) as archive:  # shards are not compressed
        arrays = {name: archive.read(name, largest_bytes=len(content)) for name in archive.names}
    for name, array in arrays.items():
        if array.ndim < 1 or len(array) != entry.count:
            raise BadInput(f"array {name} does not hold {entry.count:,} groups", where=str(path), do=_REMAKE)
    return arrays


def read_dataset(folder: str | os.PathLike[str], groups: int | None = None) -> Arrays:
    """The arrays of a data set, whole or its first `groups` groups; only the shards needed are opened.

    Returns:
        Name → array over all groups, in shard order.

    Raises:
        BadInput: see `read_manifest` and `read_shard`; more groups asked for than there are; shards that differ
            in what they hold.
    """
    manifest = read_manifest(folder)
    available = sum(entry.count for entry in manifest.shards)
    wanted = available if groups is None else groups
    if not 1 <= wanted <= available:
        raise BadInput(f"has {available} groups, not {wanted}", where=str(folder), do="ask for fewer or make more")
    result: Arrays = {}
    start = 0
    for entry in manifest.shards:
        if start == wanted:
            break
        where = f"{folder}/{entry.file}"
        stop = min(wanted, start + entry.count)
        shard = read_shard(folder, entry)
        if not result:
            files = [Path(folder) / entry.file for entry in manifest.shards]
            nbytes = sum(file.stat().st_size for file in files if file.is_file())
            if sum(array[:1].nbytes for array in shard.values()) * wanted > nbytes:
                raise BadInput("the manifest counts more groups than there are", where=where, do=_REMAKE)
            result = {name: np.empty((wanted, *array.shape[1:]), array.dtype) for name, array in shard.items()}
        _fill(result, shard, slice(start, stop), where)
        start = stop
    return result


def _fill(result: Arrays, shard: Arrays, rows: slice, where: str) -> None:
    """Copy a shard's groups into the arrays of the whole, which the first shard shapes."""
    for name, array in result.items():
        if name not in shard or shard[name].shape[1:] != array.shape[1:] or shard[name].dtype != array.dtype:
            raise BadInput(f"array {name} does not fit the other shards", where=where, do=_REMAKE)
        array[rows] = shard[name][: rows.stop - rows.start]
