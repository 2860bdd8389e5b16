"""`automap-place`: from an operator graph and devices to a placement (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput

from ..arguments import add_step_arguments, at_least
from ..runner import CommandParser, print_json, run_command

if TYPE_CHECKING:
    from automap_models.core.placement import PlacementResult

NAME = "automap-place"
EXAMPLES = """GRAPH is one of
  device-placement JSON   of dnn-partitioning, which brings its own devices and memory
  a built-in model        bert48, t5_base, vgg19, …: see automap-profile --list
  a factory               my_package.my_module:make_step, a JAX training step
  HLO or StableHLO        as automap-profile reads it; without a backward pass, too

examples:
  automap-place bert24.json                                     the optimal contiguous placement, printed
  automap-place bert24.json --planner milp --time-limit 60      not contiguous, with a proven gap
  automap-place bert24.json --objective latency --devices 6     one sample as fast as possible
  automap-place t5_base --devices 4 --nodes 200 --out placement.json --plot placement.png
  automap-place bert24.json --plan placement.json               cost and show a placement made before

exit codes: 0 done, 2 the input or the arguments are bad, 3 no placement fits the memory, 1 a defect of ours
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(NAME, lambda: _run(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = CommandParser(
        prog=NAME,
        description="Place the operators of a model on accelerators and CPUs, so that a pipeline of samples flows fast "
        "or that one sample is done soon.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    made.add_argument("what", metavar="GRAPH", help="what to place, see below")
    _add_problem(made.add_argument_group("what to plan"))
    how = made.add_argument_group("how to plan")
    how.add_argument(
        "--planner",
        metavar="NAME",
        help="ideals (default for throughput), linear, milp (default for latency), milp-contiguous, milp-ordered, "
        "metis, greedy, local-search, expert, single",
    )
    how.add_argument("--split", metavar="FILE", type=Path, help="for expert: a split file of dnn-partitioning")
    how.add_argument("--time-limit", metavar="S", type=float, help="seconds after which a solver returns its best plan")
    how.add_argument("--seed", metavar="N", type=at_least(0), help="of random draws (default 0)")
    how.add_argument("--plan", metavar="FILE", type=Path, help="plan nothing: cost and show this placement.json")
    _add_model(made.add_argument_group("for models and HLO files, which have no times and devices of their own"))
    out = made.add_argument_group("what to write")
    out.add_argument("--out", metavar="FILE", type=Path, help="write the placement as JSON")
    out.add_argument("--json", action="store_true", help="print the placement as JSON and nothing else")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw the loads of the devices (.png, .svg, .pdf)")
    return made


def _add_problem(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--devices", metavar="K", type=at_least(0), help="accelerators (default: the graph's)")
    group.add_argument("--cpus", metavar="L", type=at_least(0), help="CPUs (default: the graph's; 0 for models)")
    group.add_argument("--memory", metavar="BYTES", type=float, help="of one accelerator (default: the graph's; 32e9)")
    group.add_argument(
        "--objective",
        choices=("throughput", "latency"),
        help="the largest load of a device, or the time of one sample (default throughput)",
    )
    group.add_argument(
        "--communication",
        choices=("sum", "max"),
        help="transfers and compute of a device take turns or overlap (default sum)",
    )
    group.add_argument(
        "--split-passes",
        action="store_true",
        help="minimise the largest forward load plus the largest backward load",
    )
    group.add_argument("--pieces", metavar="Q", type=at_least(1), help="subgraphs an accelerator (latency; default 1)")


def _add_model(group: argparse._ArgumentGroup) -> None:
    add_step_arguments(group)
    group.add_argument("--nodes", metavar="N", type=at_least(2), help="most nodes of the graph to make (default 200)")
    group.add_argument("--accelerator", metavar="NAME|FILE", help="roofline of the accelerators (default v100)")
    group.add_argument("--host", metavar="NAME|FILE", help="roofline of the CPUs (default cpu)")
    group.add_argument(
        "--link", metavar="BYTES_PER_S", type=float, help="between an accelerator and the CPUs (default 12e9: PCIe 3.0)"
    )


def _run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, plan, then write: after a mistake nothing is written."""
    _require_outputs(arguments)
    from .placing import placed, shown

    report = shown(arguments) if arguments.plan else placed(arguments)
    _write(arguments, report)
    if arguments.json:
        from automap_models.formats.placement_plan import placement_document

        print_json(placement_document(report))
    else:
        from ..reports.placement import print_placement

        print_placement(report, _outputs(arguments))
    return 0


def _write(arguments: argparse.Namespace, report: PlacementResult) -> None:
    """Write what was asked for, each file whole or not at all."""
    if arguments.plot:
        from ..plots.placement import write_placement_plot

        write_placement_plot(arguments.plot, report)
    if arguments.out:
        from automap_models.formats.placement_plan import write_placement_plan

        write_placement_plan(arguments.out, report)


def _outputs(arguments: argparse.Namespace) -> dict[str, Path]:
    """What shall be written → where."""
    asked = {"placement": arguments.out, "plot": arguments.plot}
    return {what: path for what, path in asked.items() if path is not None}


def _require_outputs(arguments: argparse.Namespace) -> None:
    """Every output can be written, and none over another one or over an input."""
    from automap_models.formats.files import require_writable

    taken = {path.resolve(): "an input" for path in (Path(arguments.what), arguments.plan, arguments.split) if path}
    for what, path in _outputs(arguments).items():
        if path.resolve() in taken:
            raise BadInput(f"is {taken[path.resolve()]}, too", where=f"{path} for the {what}", do="give another name")
        taken[path.resolve()] = f"where the {what} goes"
        require_writable(path)
    if arguments.plot:
        from ..plots.pipeline import require_plotting

        require_plotting(arguments.plot)
