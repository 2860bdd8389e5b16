"""Arguments that say which training step is meant, shared by the commands that trace one."""

from __future__ import annotations

import argparse
from collections.abc import Callable

LARGEST = 2**31 - 1  # number given as an argument


def add_step_arguments(group: argparse._ArgumentGroup) -> None:
    """--batch, --sequence, --dtype and --trainable."""
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
