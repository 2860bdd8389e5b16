"""Files that appear whole or not at all, and results kept between runs, which are such files, too.

A file is written under a temporary name in the same folder, then renamed. A kept result is an entry named by what it is
the result of and checked when it is read: a line `automap-cache 1 SHA-256` and what that is the checksum of. One that
is truncated, damaged or of another version is as good as none. What is read is data, never code.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

import msgspec
import numpy as np

from automap_models.errors import BadInput


def require_writable(path: str | os.PathLike[str]) -> Path:
    """Fail before long work when its result could not be written; a link is followed to what it points at.

    Returns:
        The real path of the file.

    Raises:
        BadInput: the folder is missing or not writable, or the path is a folder, a device or write-protected.
    """
    try:
        target = Path(os.path.realpath(path))
        folder = target.parent
        there = folder.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
        raise _unwritable(path, error) from None
    if not there:
        raise BadInput(f"there is no folder {folder}", where=str(path), do="create it or write somewhere else")
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise _unwritable(path, error) from None
    if mode is not None and stat.S_ISDIR(mode):
        raise BadInput("is a folder", where=str(path), do="give the name of a file")
    if mode is not None and not stat.S_ISREG(mode):
        raise BadInput("is not a regular file", where=str(path), do="give the name of a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"folder {folder} is not writable", where=str(path), do="write somewhere else")
    if mode is not None and not os.access(target, os.W_OK):
        raise BadInput("the file is write-protected", where=str(path), do="write somewhere else")
    return target


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place of whatever is there.

    Whatever `write` raises passes through, the temporary file is removed and the old file stays as it was.
    An existing file's permissions are kept.

    Raises:
        BadInput: the file cannot be written, see `require_writable`, or the disk is full.
    """
    target = require_writable(path)
    temporary = target.with_name(f".automap-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Put a file with that content in place of whatever is there, see `write_atomically`.

    Raises:
        BadInput: the file cannot be written.
    """

    def write(file: BinaryIO) -> None:
        file.write(content)

    write_atomically(path, write)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same for text in UTF-8; what has no place in it, such as half a surrogate pair, is escaped."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def json_text(document: Mapping[str, Any]) -> str:
    """The document as JSON text.

    Raises:
        BadInput: a figure in it is not finite, which only a profile or cluster with absurd figures can bring about.
    """
    try:
        return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError:
        do = "check the units of what was given, such as a profile and a cluster"
        raise BadInput("a figure of the result is too large for a number", where="result", do=do) from None


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write a document as JSON, whole or not at all.

    Raises:
        BadInput: the file cannot be written, or a figure in the document is not finite.
    """
    write_text(path, json_text(document) + "\n")


def _unwritable(path: str | os.PathLike[str], error: OSError | ValueError) -> BadInput:
    what = f"cannot be written ({getattr(error, 'strerror', None) or error})"
    return BadInput(what, where=str(path), do="write somewhere else")


T = TypeVar("T")
_MAGIC = b"automap-cache 1 "


def cache_folder() -> Path:
    """$AUTOMAP_CACHE, else automap in $XDG_CACHE_HOME, else ~/.cache/automap."""
    folder, shared = os.environ.get("AUTOMAP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if folder:
        return Path(folder)
    return (Path(shared) if shared else Path.home() / ".cache") / "automap"


def fingerprint(facts: Mapping[str, object]) -> str:
    """SHA-256 over plain data: numbers, texts, lists and dictionaries of them."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Cache:
    """Entries in a folder, which is made when the first is written.

    Args:
        folder: None keeps nothing and finds nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self, key: str) -> bytes | None:
        """The entry of that name; None where there is none, or none that is whole."""
        if self.folder is None:
            return None
        try:
            path = self.folder / key
            if path.stat().st_size > 1 << 30:  # none of ours
                return None
            head, _, payload = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        return payload if head == _head(payload) else None

    def write(self, key: str, payload: bytes) -> None:
        """Keep an entry in place of whatever has its name; where that cannot be done nothing happens."""
        if self.folder is None:
            return

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self.folder / key, _head(payload) + b"\n" + payload)
        except (OSError, BadInput):  # a full disk or a read-only home is no reason to lose a result
            return

    def once(self, key: str, kind: type[T], make: Callable[[], T]) -> T:
        """The record of that name and type; where there is none, it is made and kept."""
        entry = self.read(key)
        if entry is not None:
            with contextlib.suppress(BadInput):
                return decode_record(entry, kind)
        record = make()
        self.write(key, encode_record(record))
        return record


def _head(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode()


def encode_record(record: Any) -> bytes:
    """The document of a data class whose parts are such, arrays and plain values; equal records give equal bytes."""
    return msgspec.json.encode(record, enc_hook=lambda array: [array.shape, array.tobytes()])


def decode_record(content: bytes, kind: type[T]) -> T:
    """The record of that type in a document of `encode_record`; its arrays are read-only.

    Raises:
        BadInput: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=kind, dec_hook=_array)
    except (msgspec.MsgspecError, ValueError, TypeError):
        raise BadInput(f"is no {kind.__name__} of this version", where="cache", do="delete the entry") from None


def _array(kind: Any, value: Any) -> Any:
    """The array of a declared type, NDArray[scalar type]; a value that may be of any type as it is."""
    if kind is object:
        return value
    shape, content = value
    return np.frombuffer(base64.b64decode(content), get_args(get_args(kind)[1])[0]).reshape(shape)
