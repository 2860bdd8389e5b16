"""Results kept between runs: entries named by what they are the result of, checked when they are read.

An entry is a line `automap-cache 1 SHA-256` and what that is the checksum of. One that is truncated, damaged or of
another version is as good as none. What is read is data, never code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically

_MAGIC = b"automap-cache 1 "
LARGEST_BYTES = 1 << 30
"""Of an entry that is read; a larger file is none of ours."""


def cache_folder() -> Path:
    """$AUTOMAP_CACHE, else automap in $XDG_CACHE_HOME, else ~/.cache/automap."""
    own, shared = os.environ.get("AUTOMAP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    return (Path(shared) if shared else Path.home() / ".cache") / "automap"


def fingerprint(of: Mapping[str, object]) -> str:
    """SHA-256 over plain data: numbers, texts, lists and dictionaries of them."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


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
            if path.stat().st_size > LARGEST_BYTES:
                return None
            head, _, payload = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        return payload if head == _head(payload) else None

    def write(self, key: str, payload: bytes) -> None:
        """Keep an entry in place of whatever has its name; where that cannot be done nothing happens."""
        if self.folder is None:
            return

        def write(file: BinaryIO) -> None:
            file.write(_head(payload) + b"\n" + payload)

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / key, write)
        except (OSError, BadInput):  # a full disk or a read-only home is no reason to lose a result
            return


def _head(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode()
