"""Cases and what takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call of a command: its arguments, and the files of its folder that are not as they always are."""

    arguments: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)


Case = bytes | Call
"""The content of a file, or the call of a command."""


@dataclass(frozen=True)
class Target:
    """Something that takes what a user gives.

    Attributes:
        valid: cases that work, of one of which a case is made.
        run: the reader or the command, in a folder of its own; AutomapError is a refusal.
        change: makes a case of a valid one.
        share: which share of the cases that are asked for it runs, less than 1 where one takes long.
    """

    valid: Sequence[Any]
    run: Callable[[Any], object]
    change: Callable[[Any, Any], Any]
    share: float = 1.0


def of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A run that writes a case into a file and reads that."""

    def run(content: bytes) -> object:
        path = Path(name)
        path.write_bytes(content)
        return read(path)

    return run
