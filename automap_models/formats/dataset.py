"""A data set on disk: a folder of checksummed .npz shards and a manifest.json that says what they hold.

A shard is a mapping from names to arrays with one entry a group along the first axis; what the names mean is the
business of envs.pipeline.encoding. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically

SCHEMA = 1
KIND = "pipeline-dataset"
MANIFEST = "manifest.json"

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
    _write_bytes(path, content)
    return {
        "file": Path(path).name,
        "count": len(next(iter(arrays.values()))),
        "sha256": hashlib.sha256(content).hexdigest(),
        "ranges": {name: [a.min().item(), a.max().item()] for name, a in arrays.items() if a.ndim == 1},
    }


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write a JSON file atomically.

    Raises:
        BadInput: the file cannot be written.
    """
    _write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def _write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    def write(file: BinaryIO) -> None:
        file.write(content)

    write_atomically(path, write)


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a data set.

    Returns:
        `schema`, `kind`, `granularity`, `groups`, `seed`, `config`, `distributions` (names; the shards'
        `distribution` indexes them), `shards` (see `write_shard`) and `ranges` over all shards.

    Raises:
        BadInput: there is none, or it is no manifest that this version can read.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(
            f"there is no {MANIFEST}", where=str(folder), do="give the folder of a finished data set (datagen/run.py)"
        ) from None
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where=str(path), do="check its permissions") from None
    except ValueError:
        raise BadInput("is not valid JSON", where=str(path), do=_REMAKE) from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise BadInput("is not the manifest of a data set", where=str(path), do=_REMAKE)
    if manifest.get("schema") != SCHEMA:
        raise BadInput(f"has schema {manifest.get('schema')}, this version reads {SCHEMA}", where=str(path), do=_REMAKE)
    shards = manifest.get("shards")
    if not isinstance(shards, list) or not shards or not all(map(_is_entry, shards)):
        raise BadInput("its list of shards is damaged", where=str(path), do=_REMAKE)
    return manifest


def _is_entry(entry: object) -> bool:
    """Whether this can be a shard's entry; its file is in the folder itself."""
    if not isinstance(entry, dict):
        return False
    file, count, digest = (entry.get(key) for key in ("file", "count", "sha256"))
    return isinstance(file, str) and Path(file).name == file and isinstance(count, int) and isinstance(digest, str)


_REMAKE = "make the data set again with datagen/run.py: it keeps the shards that are whole"


def read_shard(folder: str | os.PathLike[str], entry: Mapping[str, Any]) -> Arrays:
    """One shard's arrays, after its checksum was compared.

    Args:
        folder: the data set.
        entry: the shard's entry in the manifest.

    Raises:
        BadInput: the shard is missing, damaged or not the one the manifest means.
    """
    path = Path(folder) / str(entry["file"])
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where=str(path), do=_REMAKE) from None
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise BadInput("does not have the checksum of the manifest: it is damaged", where=str(path), do=_REMAKE)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile and numpy raise a dozen kinds on what is no shard
        raise BadInput("is no .npz of plain arrays", where=str(path), do=_REMAKE) from error


def read_dataset(folder: str | os.PathLike[str], groups: int | None = None) -> Arrays:
    """The arrays of a data set, whole or its first `groups` groups; only the shards needed are opened.

    Returns:
        Name → array over all groups, in shard order.

    Raises:
        BadInput: see `read_manifest` and `read_shard`; more groups asked for than there are; shards that differ
            in what they hold.
    """
    manifest = read_manifest(folder)
    available = sum(int(entry["count"]) for entry in manifest["shards"])
    wanted = available if groups is None else groups
    if not 1 <= wanted <= available:
        raise BadInput(f"has {available} groups, not {wanted}", where=str(folder), do="ask for fewer or make more")
    result: Arrays = {}
    start = 0
    for entry in manifest["shards"]:
        if start == wanted:
            break
        stop = min(wanted, start + int(entry["count"]))
        _fill(result, read_shard(folder, entry), slice(start, stop), wanted, f"{folder}/{entry['file']}")
        start = stop
    return result


def _fill(result: Arrays, shard: Arrays, rows: slice, total: int, where: str) -> None:
    """Copy a shard's groups into the arrays of the whole, which the first shard shapes."""
    if not result:
        result.update({name: np.empty((total, *array.shape[1:]), array.dtype) for name, array in shard.items()})
    count = rows.stop - rows.start
    for name, array in result.items():
        fits = name in shard and shard[name].shape[1:] == array.shape[1:] and shard[name].dtype == array.dtype
        if not fits or len(shard[name]) < count:
            raise BadInput(f"array {name} does not fit the other shards", where=where, do=_REMAKE)
        array[rows] = shard[name][:count]
