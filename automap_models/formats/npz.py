"""profile.npz: a profiled model, five arrays with names and a JSON note (formats.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.version import __version__

REQUIRED = ("C", "A", "W")
OPTIONAL = ("C_fwd", "stash")
LABELS = ("names", "layers")

_REMAKE = "write it again with automap-profile or numpy.savez_compressed"


def read_npz(path: str | os.PathLike[str]) -> Profile:
    """The profile in an .npz file; nothing in it is ever unpickled.

    Raises:
        BadInput: naming the array and the index at fault, see formats.md for all that is refused.
    """
    source = str(path)
    with _open(Path(path), source) as archive:
        numbers: dict[str, Any] = {
            key: _floats(archive, key, source) for key in (*REQUIRED, *OPTIONAL) if _present(archive, key, source)
        }
        labels = {key: _labels(archive, key, numbers["C"].size, source) for key in LABELS if key in archive}
        meta = _meta(archive, source) if "meta" in archive else {}
    return Profile.create(
        **numbers,
        names=labels.get("names", ()),
        layers=labels.get("layers", ()),
        meta=meta,
        source=source,
    )


def write_npz(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile; its meta gets the fingerprint and this version, and equal profiles give equal bytes.

    Raises:
        BadInput: the file cannot be written.
    """
    meta = {**profile.meta, "fingerprint": profile.fingerprint, "automap_version": __version__}
    arrays: dict[str, Any] = {key: getattr(profile, key) for key in (*REQUIRED, *OPTIONAL)}
    arrays |= {key: np.array(getattr(profile, key), dtype=np.str_) for key in LABELS if getattr(profile, key)}
    arrays["meta"] = np.array(json.dumps(meta, sort_keys=True, allow_nan=False))

    def write(file: BinaryIO) -> None:
        np.savez_compressed(file, **arrays)

    write_atomically(path, write)


def _open(path: Path, source: str) -> NpzFile:
    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=source, do="check the path and its permissions"
        ) from None
    except Exception as error:  # zipfile and numpy raise a dozen kinds on broken files
        raise BadInput("is truncated or no .npz file", where=source, do=_REMAKE) from error
    if not isinstance(loaded, NpzFile):
        raise BadInput("is a single array, not an .npz file with C, A and W", where=source, do=_REMAKE)
    return loaded


def _present(archive: NpzFile, key: str, source: str) -> bool:
    if key in REQUIRED and key not in archive:
        raise BadInput(f"array {key} is missing", where=source, do=f"a profile needs {', '.join(REQUIRED)}")
    return key in archive


def _load(archive: NpzFile, key: str, source: str) -> NDArray[np.generic]:
    try:
        array = archive[key]
    except Exception as error:  # as above: members are read when asked for
        if "Object arrays" in str(error):
            raise BadInput(f"array {key} holds Python objects", where=source, do="save plain numbers or text") from None
        raise BadInput(f"array {key} is truncated or damaged", where=source, do=_REMAKE) from error
    if not isinstance(array, np.ndarray):
        raise BadInput(f"{key} is no array", where=source, do=_REMAKE)
    return array


def _floats(archive: NpzFile, key: str, source: str) -> NDArray[np.generic]:
    array = _load(archive, key, source)
    if array.dtype.kind != "f":
        raise BadInput(f"array {key} has dtype {array.dtype}, not float64", where=source, do="save it as float64")
    return array


def _labels(archive: NpzFile, key: str, n: int, source: str) -> list[str]:
    array = _load(archive, key, source)
    if array.dtype.kind != "U" or array.shape != (n,):
        raise BadInput(
            f"array {key} has dtype {array.dtype} and shape {array.shape}, not one text for each of {n} instructions",
            where=source,
            do="save it as an array of str, or leave it out",
        )
    return [str(label) for label in array]


def _meta(archive: NpzFile, source: str) -> Mapping[str, object]:
    array = _load(archive, "meta", source)
    if array.dtype.kind != "U" or array.ndim:
        raise BadInput(
            f"meta has dtype {array.dtype} and shape {array.shape}, not a single text", where=source, do=_JSON
        )
    try:
        meta = json.loads(str(array), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"meta is not valid JSON ({error})", where=source, do=_JSON) from None
    if not isinstance(meta, dict):
        raise BadInput(f"meta is a JSON {type(meta).__name__}, not an object", where=source, do=_JSON)
    return meta


_JSON = "save it as the text of a JSON object, or leave it out"


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
