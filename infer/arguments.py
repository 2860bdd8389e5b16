"""Types of arguments, and arguments that several commands share. Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

LARGEST = 2**31 - 1
"""Number given as an argument."""
LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes of a file's name and of a whole path that a file system takes."""
TOPO_HELP = "a shipped cluster (A, B, C, …) or a YAML file"


def add_step_arguments(group: argparse._ArgumentGroup) -> None:
    """--batch, --sequence, --dtype and --trainable: which training step is meant."""
    group.add_argument("--batch", metavar="N", type=at_least(1), help="samples in a micro-batch")
    group.add_argument("--sequence", metavar="N", type=at_least(1), help="tokens in a sample")
    group.add_argument("--dtype", metavar="NAME", help="type that the layers compute in: float32, bfloat16, float16")
    group.add_argument(
        "--trainable",
        metavar="PATTERN",
        action="append",
        help="for HLO files: names of the trainable parameters, such as 'params/*'; may be repeated",
    )


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number from `least` to LARGEST."""

    def number(text: str) -> int:
        if text.isascii() and text.isdigit() and int(text) >= least:
            if int(text) > LARGEST:
                raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST:,}")
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number ≥ {least}")

    return number


def whole_number(text: str) -> int:
    """An argument's type: a whole number of 64 bits, whose limits the library knows."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if abs(number) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} does not fit 64 bits")
    return number


def positive(unit: str) -> Callable[[str], float]:
    """An argument's type: a positive number of that unit."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is no positive number of {unit}")
        return value

    return number


def name_argument(text: str) -> str:
    """An argument's type: a name, or a file that an operating system can have."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be the name of a file") from None
    if b"\0" in encoded:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} holds a NUL character, which no file's name does")
    longest = max(map(len, encoded.split(b"/")))
    if longest > LONGEST_NAME or len(encoded) > LONGEST_PATH:
        what = f"a name of {longest} bytes" if longest > LONGEST_NAME else f"a path of {len(encoded)} bytes"
        most = LONGEST_NAME if longest > LONGEST_NAME else LONGEST_PATH
        raise argparse.ArgumentTypeError(f"{what} ({text[:20]}…); a file can have at most {most}")
    return text


def file_argument(text: str) -> Path:
    """An argument's type: the path of a file."""
    return Path(name_argument(text))


MESH_AXES = ("data", "model")
"""Names of a mesh's axes; core.mesh knows them, too, and a test holds them together."""
MeshSizes = tuple[tuple[str, int], ...]


def mesh_argument(text: str) -> int | MeshSizes:
    """An argument's type: `4`, devices along the one axis, or `data=2,model=4`, named axes."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST:
        return int(text)
    axes = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in axes]
    numbered = all(size.isascii() and size.isdigit() and size[0] != "0" for _, _, size in axes)
    if not numbered or len(set(names)) < len(names) or not set(names) <= set(MESH_AXES):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of devices nor axes such as data=2,model=4")
    if any(int(size) > LARGEST for _, _, size in axes):
        raise argparse.ArgumentTypeError(f"{text!r} has more than {LARGEST:,} devices")
    return tuple((name, int(size)) for name, _, size in axes)
