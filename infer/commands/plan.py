"""`automap-plan`: every kind of plan for one model on one cluster, ranked, and the best of them (formats.md)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput

from ..arguments import add_step_arguments, at_least
from ..runner import CommandParser, print_json, run_command

if TYPE_CHECKING:
    from .exploring import Explored

NAME = "automap-plan"
FORBIDDABLE = ("data", "operator", "pipeline")  # core.constraints knows them, too; a test holds them together
OF_LOOKING = (
    *("global_batch", "state_factor", "pin", "keep_together", "max_stages", "memory", "forbid"),
    *("budget", "thorough", "seed", "out", "plot"),
)
"""Options about looking for plans."""
EPILOG = """MODEL|FILE is one of
  a built-in model           bert48, t5_11b, gpt3_7b, …: see automap-profile --list
  a factory                  my_package.my_module:make_step returns a JAX training step and its arguments' shapes
  HLO or StableHLO           XLA's *before_optimizations.txt, jax.jit(step).lower(…).as_text(debug_info=True)
  a profile                  of automap-profile or another tool: no operations, so no plans that partition them

examples:
  automap-plan t5_11b --topo C --global-batch 256                   data, operators, stages, or a hybrid of them?
  automap-plan gpt3_7b --device a100 --topo p4d-4 --out plan.json --plot plans.png
  automap-plan my_models:make_step --topo my-cluster.yaml --thorough
  automap-plan examples/bert48_v100.npz --topo B --forbid data --max-stages 4
  automap-plan bert48 --topo A --memory 16e9 --keep-together 'block_0/*' --pin loss=1
  automap-plan t5_3b --topo B --json | jq .best.length_s
  automap-plan gpt3_7b --device a100 --topo p4d-4 --plan plan.json  cost and show a plan made before

Results are kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else ~/.cache/automap.

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan fits the memory, 1 a defect of ours
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 2 bad input, 3 infeasible, 130 interrupted)."""
    return run_command(NAME, lambda: _run(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = CommandParser(
        prog=NAME,
        description="Find the best way of training a model on a cluster: data parallelism, operator partitioning, "
        "pipeline stages, or stages that do the others inside, all priced by one model and ranked.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    made.add_argument("what", metavar="MODEL|FILE", help="what to train, see below")
    made.add_argument(
        "--topo", metavar="NAME|FILE", required=True, help="a shipped cluster (A, B, C, …) or a YAML file"
    )
    step = made.add_argument_group("which training step")
    add_step_arguments(step)
    step.add_argument("--device", metavar="NAME|FILE", help="what the cluster is made of (default v100), for times")
    step.add_argument(
        "--microbatch-size",
        metavar="N",
        type=at_least(1),
        help="samples in the profiled micro-batch of a silent profile",
    )
    asked = made.add_argument_group("what to plan")
    asked.add_argument(
        "--global-batch",
        metavar="B",
        type=at_least(1),
        help="samples between two updates (default: 16 micro-batches of the profiled size)",
    )
    asked.add_argument(
        "--state-factor",
        metavar="X",
        type=float,
        help="bytes of training state per byte of parameters (default 4: fp32 with Adam; 2 for Adafactor or SGD)",
    )
    limits = made.add_argument_group("what the plan must be like")
    limits.add_argument(
        "--pin", metavar="LAYER=STAGE", action="append", default=[], help="a layer's stage, from 0; may be repeated"
    )
    limits.add_argument(
        "--keep-together",
        metavar="PATTERN",
        action="append",
        default=[],
        help="layers that no cut may part, such as 'decoder/block_3/*'; may be repeated",
    )
    limits.add_argument("--max-stages", metavar="N", type=at_least(1), help="of the deepest pipeline (default 16)")
    limits.add_argument(
        "--memory", metavar="BYTES", type=_memory, help="of a device that plans may use, such as 16e9 (default: all)"
    )
    limits.add_argument(
        "--forbid",
        choices=FORBIDDABLE,
        action="append",
        default=[],
        help="a kind of parallelism that is not to be used; may be repeated",
    )
    how = made.add_argument_group("how long to look")
    how.add_argument(
        "--budget",
        metavar="S",
        type=_budget,
        help="processor time for the exact search of pipelines and hybrids (default 20)",
    )
    how.add_argument(
        "--thorough",
        action="store_true",
        help="search all stages and micro-batches to the end, and train an agent on the model, too",
    )
    how.add_argument("--seed", metavar="N", type=at_least(0), default=0, help="of random draws (default 0)")
    how.add_argument("--no-cache", action="store_true", help="neither read results of former runs nor keep this one")
    how.add_argument(
        "--plan", metavar="FILE", type=Path, help="look for nothing: cost and show the plan.json of a former run"
    )
    out = made.add_argument_group("what to write")
    out.add_argument("--out", metavar="FILE", type=Path, help="write the best plan as JSON")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw what each plan consists of (.png, .svg, .pdf)")
    out.add_argument("--json", action="store_true", help="print all plans as JSON and nothing else")
    return made


def _memory(text: str) -> float:
    return _positive(text, "bytes")


def _budget(text: str) -> float:
    return _positive(text, "seconds")


def _positive(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of {unit}")
    return value


def _run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, explore, then write: after a mistake nothing is written."""
    if arguments.plan:
        return _show(arguments)
    files = _files(arguments)
    from .exploring import explored

    found = explored(arguments)
    _write(arguments, found)
    if arguments.json:
        from ..reports.exploration_document import explored_document

        print_json(explored_document(found))
    else:
        from ..reports.exploration import print_explored

        print_explored(found, files)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Cost a plan made before."""
    for name in OF_LOOKING:
        if getattr(arguments, name) not in (None, False, 0, []):
            raise BadInput("the plan read has its own", where=f"--{name.replace('_', '-')}", do="leave it out")
    from .exploring import read_back

    plan = read_back(arguments)
    if arguments.json:
        from ..reports.exploration_document import candidate_document

        print_json(candidate_document(plan))
    else:
        from ..reports.exploration import print_candidate

        print_candidate(plan)
    return 0


def _write(arguments: argparse.Namespace, found: Explored) -> None:
    if arguments.out:
        from ..reports.exploration_document import write_best

        write_best(arguments.out, found)
    if arguments.plot:
        from ..plots.exploration import write_candidates_plot

        write_candidates_plot(arguments.plot, found.exploration)


def _files(arguments: argparse.Namespace) -> dict[str, Path]:
    """What shall be written → where.

    Raises:
        BadInput: it cannot be written, or is an input or another output, too.
    """
    from automap_models.formats.files import require_writable

    from ..plots.pipeline import require_plotting

    files = {what: path for what, path in (("plan", arguments.out), ("plot", arguments.plot)) if path}
    taken = {Path(arguments.what).resolve(), Path(arguments.topo).resolve()}
    for what, path in files.items():
        if path.resolve() in taken:
            raise BadInput("is an input or another output, too", where=f"{path} for the {what}", do="give another name")
        taken.add(path.resolve())
        (require_plotting if what == "plot" else require_writable)(path)
    return files
