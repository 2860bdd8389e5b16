"""automap-profile: another tool's profile becomes a profile.npz."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__

from .console import CommandParser, run_command

if TYPE_CHECKING:
    from automap_models.core.profile import Profile

NAME = "automap-profile"
SHOWN_CHARACTERS = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 2 bad input, 130 interrupted)."""
    return run_command(NAME, lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=NAME,
        description="Convert a profiled training step into profile.npz, which automap-infer plans from.",
        epilog="The format is recognised from the content: .npz, or graph.txt of PipeDream and DAPPLE. "
        "A graph is put into the execution order with the fewest bytes crossing all cuts.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="profile to read")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="profile.npz to write")
    parser.add_argument("--model", metavar="NAME", help="name of the model, as plans will tell it")
    parser.add_argument("--show", action="store_true", help="print every instruction; needs no -o")
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from automap_models.errors import BadInput
    from automap_models.formats.files import read_profile, require_writable
    from automap_models.formats.npz import write_npz

    if arguments.out is None and not arguments.show:
        raise BadInput("nothing to do", where="-o", do="give -o profile.npz to write it or --show to print it")
    if arguments.out is not None:
        require_writable(arguments.out)
    profile = read_profile(arguments.file)
    if arguments.model is not None:
        profile = _renamed(profile, arguments.model)
    if arguments.out is not None:
        write_npz(arguments.out, profile)
    if arguments.show:
        print(_table(profile))
    print(_summary(profile), file=sys.stderr)
    return 0


def _renamed(profile: Profile, model: str) -> Profile:
    from dataclasses import replace

    return replace(profile, meta={**profile.meta, "model": model})


def _summary(profile: Profile) -> str:
    return (
        f"{profile.model}: {len(profile)} instructions, {profile.C.sum():.4g} s a micro-batch, "
        f"{profile.W.sum() / 1e6:.4g} MB of parameters, {_smallest_cut(profile)}"
    )


def _smallest_cut(profile: Profile) -> str:
    """The cut with the fewest bytes among those with work on both sides."""
    done = profile.C.cumsum()
    cuts = ((done > 0) & (done < done[-1])).nonzero()[0]
    if not cuts.size:
        return "all work in one instruction"
    cut = int(cuts[profile.A[cuts].argmin()])
    return f"smallest cut {profile.A[cut] / 1e6:.4g} MB after {profile.name(cut)}"


def _table(profile: Profile) -> str:
    """One line an instruction: index, the five arrays, name and layer."""
    lines = [f"{'':>6} {'forward s':>12} {'backward s':>12} {'cut bytes':>14} {'parameters':>14} {'stash':>14}  name"]
    for i in range(len(profile)):
        layer = profile.layer(i)
        shown = layer if len(layer) <= SHOWN_CHARACTERS else f"{layer[: SHOWN_CHARACTERS - 1]}…"
        lines.append(
            f"{i:>6} {profile.C_fwd[i]:>12.6g} {profile.C[i] - profile.C_fwd[i]:>12.6g} {profile.A[i]:>14.10g} "
            f"{profile.W[i]:>14.10g} {profile.stash[i]:>14.10g}  {profile.name(i)}  {shown}".rstrip()
        )
    return "\n".join(lines)
