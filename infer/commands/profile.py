"""`automap-profile`: from a model, or another tool's profile, to profile.npz (formats.md, "Commands")."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput

from ..arguments import add_step_arguments, at_least
from ..runner import CommandParser, run_command

if TYPE_CHECKING:
    from automap_models.core.profile import Profile

NAME = "automap-profile"
EXAMPLES = """MODEL|FILE is one of
  a built-in model           bert48, t5_base, vgg19, …: see --list
  a factory                  my_package.my_module:make_step returns a JAX training step and its arguments' shapes,
                             with --framework torch an nn.Module and its inputs
  HLO or StableHLO           XLA's *before_optimizations.txt, jax.jit(step).lower(…).as_text(debug_info=True)
  another tool's profile     PipeDream's and DAPPLE's graph.txt, JSON of dnn-partitioning and Piper; or an .npz
A file's format is recognised from its content.

examples:
  automap-profile bert48 -o bert48.npz                         the times that a V100's roofline gives
  automap-profile t5_base --batch 8 --dtype bfloat16 --device a100 -o t5.npz
  automap-profile my_models:make_step --show                   your JAX step: totals, heaviest parts, cheapest cuts
  automap-profile my_models:make_model --framework torch --measure -o mine.npz   real times of this machine
  automap-profile step.before_optimizations.txt --trainable 'params/*' -o step.npz
  automap-profile graph.txt -o profile.npz                     PipeDream's profile converted
  automap-profile bert48.npz --plot bert48.png                 the arrays as a planner sees them

exit codes: 0 done, 2 the input or the arguments are bad, 1 a defect of ours
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 2 bad input, 130 interrupted)."""
    return run_command(NAME, lambda: _run(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = CommandParser(
        prog=NAME,
        description="Make profile.npz, which automap-infer plans from: what every instruction of a model's training "
        "step takes in time (C), sends over a cut (A) and holds in parameters (W).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    made.add_argument("--list", action="store_true", help="print the built-in models and the devices")
    made.add_argument("what", metavar="MODEL|FILE", nargs="?", help="what to profile, see below")
    model = made.add_argument_group("which training step")
    model.add_argument(
        "--framework", choices=("jax", "torch"), help="what a factory's model is written in (default jax)"
    )
    add_step_arguments(model)
    model.add_argument("--model", metavar="NAME", help="name of the model, as plans will tell it")
    times = made.add_argument_group("where the times come from")
    times.add_argument(
        "--device", metavar="NAME|FILE", help="roofline of a known device or one in a YAML file (default v100)"
    )
    times.add_argument("--measure", action="store_true", help="run the step on this machine and read the clock")
    times.add_argument(
        "--repeats",
        metavar="N",
        type=at_least(1),
        help="runs of which the median counts (default 5 for JAX, 10 for PyTorch)",
    )
    times.add_argument(
        "--warmup", metavar="N", type=at_least(0), help="runs before them (default 2 for JAX, 3 for PyTorch)"
    )
    times.add_argument("--seed", metavar="N", type=at_least(0), help="of the random inputs (default 0)")
    out = made.add_argument_group("what to write")
    out.add_argument("-o", "--out", metavar="FILE", type=Path, help="profile.npz to write")
    out.add_argument("--show", action="store_true", help="print totals, heaviest parts and cheapest cuts")
    out.add_argument("--instructions", action="store_true", help="print every instruction")
    out.add_argument("--json", action="store_true", help="print what --show does as JSON and nothing else")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw the arrays (.png, .svg, .pdf)")
    return made


def _run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, make the profile, then write: after a mistake nothing is written."""
    if arguments.list:
        return _list(arguments)
    if arguments.what is None:
        raise BadInput("no MODEL|FILE is given", do=f"see {NAME} --help")
    _require_outputs(arguments)
    from ..sources import kind_of, profile_of, require_fitting

    kind = kind_of(arguments.what)
    require_fitting(kind, arguments)
    profile = profile_of(kind, arguments)
    _write(arguments, profile)
    _print(arguments, profile)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    if arguments.what is not None:
        raise BadInput(f"{arguments.what} is given, too", where="--list", do="leave one of them out")
    from ..reports.known_models import print_list

    print_list()
    return 0


def _require_outputs(arguments: argparse.Namespace) -> None:
    """There is something to do, and every output can be written; a profile may be written over itself."""
    from automap_models.formats.files import require_writable

    if not any((arguments.out, arguments.show, arguments.instructions, arguments.json, arguments.plot)):
        raise BadInput("nothing to do", where="-o", do="give -o profile.npz to write it or --show to print it")
    if arguments.json and (arguments.show or arguments.instructions):
        raise BadInput("prints JSON and nothing else", where="--json", do="leave --show and --instructions out")
    if arguments.out:
        require_writable(arguments.out)
    if arguments.plot:
        from ..plots.pipeline import require_plotting

        if arguments.plot.resolve() in {path.resolve() for path in (arguments.out, Path(arguments.what)) if path}:
            raise BadInput("is another file's name, too", where=f"--plot {arguments.plot}", do="give another name")
        require_plotting(arguments.plot)


def _write(arguments: argparse.Namespace, profile: Profile) -> None:
    """Write what was asked for, each file whole or not at all."""
    if arguments.out:
        from automap_models.formats.npz import write_npz

        write_npz(arguments.out, profile)
    if arguments.plot:
        from ..plots.profile import write_profile_plot

        write_profile_plot(arguments.plot, profile)


def _print(arguments: argparse.Namespace, profile: Profile) -> None:
    """Results to stdout; warnings and the summary to stderr."""
    from ..reports.profile import every_instruction, print_profile, summary_document, summary_line
    from ..reports.profile_facts import warnings

    if arguments.json:
        print(json.dumps(summary_document(profile), indent=1, allow_nan=False))
    if arguments.show:
        print_profile(profile)
    if arguments.instructions:
        for line in every_instruction(profile):
            print(line)
    for warning in warnings(profile):
        print(f"{NAME}: warning: {warning}", file=sys.stderr)
    print(summary_line(profile), file=sys.stderr)
