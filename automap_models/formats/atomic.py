"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

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


def _unwritable(path: str | os.PathLike[str], error: OSError | ValueError) -> BadInput:
    return BadInput(
        f"cannot be written ({getattr(error, 'strerror', None) or error})", where=str(path), do="write somewhere else"
    )
