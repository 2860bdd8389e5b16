"""profile.npz: a profiled model, its arrays with names and a JSON note (formats.md), and how any .npz file is read.

An archive is compressed, so that a small file can hold arrays that fill the memory: what every array's header declares
is compared with what its reader takes before a value is read. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import MAX_INSTRUCTIONS, Profile, SharedParameter
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.schema import Amount, Document, Index, decode_json, open_file, unreadable
from automap_models.version import __version__

T = TypeVar("T")

REQUIRED = ("C", "A", "W")
OPTIONAL = ("C_fwd", "stash", "frozen")
LABELS = ("names", "layers")
SHARED = ("shared_parameters", "shared_frozen")


_REMAKE = "write it again with automap profile or numpy.savez_compressed"
_JSON = "save it as the text of a JSON document, or leave it out"


class SharedDocument(Document):
    """A parameter that several instructions use, see core.profile.SharedParameter."""

    name: str
    bytes: Amount
    instructions: list[Index]

    def parameter(self) -> SharedParameter:
        """The record."""
        return SharedParameter(self.name, self.bytes, tuple(self.instructions))


class Archive:
    """The arrays of an .npz file; each is read when asked for.

    Args:
        file: its path, or the open file.
        where: what messages call it.
        do: what the user should do about a damaged one, for messages.

    Raises:
        BadInput: the file cannot be read or is no .npz file.
    """

    def __init__(self, file: str | os.PathLike[str] | BinaryIO, where: str, do: str = _REMAKE) -> None:
        self.where, self.do = where, do
        try:
            self._zip = zipfile.ZipFile(file)
        except OSError as error:
            raise unreadable(where, error) from None
        except Exception as error:  # zipfile raises a dozen kinds on broken files
            what = "is a single array, not an .npz file" if _is_single(file) else "is truncated or no .npz file"
            raise BadInput(what, where=where, do=do) from error
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]
        if len(self.names) > 4_096:
            self._zip.close()
            raise BadInput(f"holds {len(self.names):,} arrays", where=where, do=do)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def nbytes(self) -> int:
        """Of all arrays, unpacked."""
        return sum(member.file_size for member in self._zip.infolist())

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str, largest_bytes: int) -> NDArray[Any]:
        """An array of numbers or text.

        Args:
            name: of the array.
            largest_bytes: that it may take.

        Raises:
            BadInput: it is missing, larger, damaged, or holds Python objects.
        """
        if name not in self.names:
            raise BadInput(f"array {name} is missing", where=self.where, do=self.do)
        try:
            with self._zip.open(f"{name}.npy") as member:
                shape, _, dtype = _header(member)
            nbytes = math.prod(shape) * dtype.itemsize
            if dtype.hasobject:
                what = f"array {name} holds Python objects"
                raise BadInput(what, where=self.where, do="save plain numbers or text")
            if nbytes > largest_bytes or max(shape, default=0) > largest_bytes:
                sizes = " × ".join(f"{size:,}" for size in shape[:4])
                what = f"array {name} of shape {sizes} takes more than {largest_bytes:,} bytes"
                raise BadInput(what, where=self.where, do="check which file it is")
            with self._zip.open(f"{name}.npy") as member:
                array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        except BadInput:
            raise
        except Exception as error:  # as above
            raise BadInput(f"array {name} is truncated or damaged", where=self.where, do=self.do) from error
        return array


def _header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)


def _is_single(file: str | os.PathLike[str] | BinaryIO) -> bool:
    try:
        if not isinstance(file, (str, os.PathLike)):
            return False
        with open_file(file) as opened:
            return opened.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def read_npz(path: str | os.PathLike[str] | BinaryIO, where: str | None = None, most_bytes: int = 1 << 40) -> Profile:
    """The profile in an .npz file.

    Args:
        path: its path, or the open file.
        where: what messages call it; None is the path.
        most_bytes: that all arrays may take together.

    Raises:
        BadInput: naming the array and the index at fault, see formats.md for all that is refused.
    """
    source = str(path) if where is None else where
    with Archive(path, source) as archive:
        if archive.nbytes > most_bytes:
            raise BadInput(f"holds more than {most_bytes:,} bytes", where=source, do="check which file it is")
        for key in REQUIRED:
            if key not in archive:
                raise BadInput(f"array {key} is missing", where=source, do=f"a profile needs {', '.join(REQUIRED)}")
        numbers: dict[str, Any] = {key: _floats(archive, key) for key in (*REQUIRED, *OPTIONAL) if key in archive}
        labels = {key: _labels(archive, key, numbers["C"].size) for key in LABELS if key in archive}
        meta = _json(archive, "meta", dict[str, Any]) if "meta" in archive else {}
        shared = {key: _json(archive, key, list[SharedDocument]) for key in SHARED if key in archive}
    return Profile.create(
        **numbers,
        names=labels.get("names", ()),
        layers=labels.get("layers", ()),
        meta=meta,
        **{key: [entry.parameter() for entry in entries] for key, entries in shared.items()},
        source=source,
    )


def shared_document(shared: Sequence[SharedParameter]) -> list[dict[str, object]]:
    """Shared parameters as JSON types, see `SharedDocument`."""
    return [
        {"name": parameter.name, "bytes": parameter.nbytes, "instructions": list(parameter.instructions)}
        for parameter in shared
    ]


def write_npz(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile; its meta gets the fingerprint and this version, and equal profiles give equal bytes.

    Raises:
        BadInput: the file cannot be written.
    """
    meta = {**profile.meta, "fingerprint": profile.fingerprint, "automap_version": __version__}
    arrays: dict[str, Any] = {key: getattr(profile, key) for key in (*REQUIRED, *OPTIONAL)}
    if not profile.frozen.any():
        del arrays["frozen"]
    arrays |= {key: np.array(getattr(profile, key), dtype=np.str_) for key in LABELS if getattr(profile, key)}
    for key in SHARED:
        if shared := getattr(profile, key):
            arrays[key] = np.array(json.dumps(shared_document(shared), allow_nan=False))
    arrays["meta"] = np.array(json.dumps(meta, sort_keys=True, allow_nan=False))

    def write(file: BinaryIO) -> None:
        np.savez_compressed(file, **arrays)

    write_atomically(path, write)


def _floats(archive: Archive, key: str) -> NDArray[np.generic]:
    array = archive.read(key, 16 * MAX_INSTRUCTIONS)
    if array.dtype.kind != "f":
        what = f"array {key} has dtype {array.dtype}, not float64"
        raise BadInput(what, where=archive.where, do="save it as float64")
    return array


def _labels(archive: Archive, key: str, n: int) -> list[str]:
    array = archive.read(key, 256 << 20)  # numpy keeps four bytes a character and pads to the longest
    if array.dtype.kind != "U" or array.shape != (n,):
        what = f"array {key} has dtype {array.dtype} and shape {array.shape}, not one text for each of {n} instructions"
        raise BadInput(what, where=archive.where, do="save it as an array of str, or leave it out")
    labels = [str(label) for label in array]
    for i, label in enumerate(labels):
        if not is_text(label):
            raise BadInput(f"{key}[{i}] is no text", where=archive.where, do="save it as an array of str")
    return labels


def is_text(text: str) -> bool:
    """Whether a string can be written anywhere: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(archive: Archive, key: str, kind: type[T]) -> T:
    array = archive.read(key, 4 << 20)
    if array.dtype.kind != "U" or array.ndim:
        what = f"{key} has dtype {array.dtype} and shape {array.shape}, not a single text"
        raise BadInput(what, where=archive.where, do=_JSON)
    if not is_text(str(array)):
        raise BadInput(f"{key} is no text", where=archive.where, do=_JSON)
    return decode_json(str(array).encode(), kind, where=f"{archive.where}, {key}", do=_JSON)
