"""`automap-infer`: from a profile and a cluster to a plan (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput
from automap_models.simulate.schedules import SCHEDULES

from ..runner import CommandParser, print_json, run_command

if TYPE_CHECKING:
    from automap_models.formats.plan_json import PlanReport

NAME = "automap-infer"
DEFAULT_SCHEDULE = "1f1b"
EXAMPLES = """examples:
  automap-infer bert.npz --topo C                            a plan for 4 nodes of 8 V100, printed
  automap-infer graph.txt --topo my-cluster.yaml --stages 8  PipeDream's profile, your cluster, 8 stages
  automap-infer bert.npz --topo C --out plan.json --plot plan.png --trace trace.json
  automap-infer bert.npz --topo C --schedule 1f1b            cuts refined for 1F1B as torch runs it
  automap-infer bert.npz --topo C --stages auto --micro-batches auto --global-batch 256 --verbose
  automap-infer bert.npz --topo C --planner exact            the proven optimum on the 128 grid
  automap-infer bert.npz --topo C --planner policy --beam 1  the bare greedy policy
  automap-infer bert.npz --sweep sweep.yaml --plot sweep.png  what if: other clusters, stages, micro-batches
  automap-infer bert.npz --topo C --json | jq .length_s      for machines
  automap-infer bert.npz --plan plan.json                    cost and show a plan made before
  automap-infer bert.npz --plan plan.json --observed times.json --out next.json --corrected bert-measured.npz

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan fits the memory, 1 a defect of ours
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(NAME, lambda: _run(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = CommandParser(
        prog=NAME,
        description="Plan how to train a profiled model on a cluster: where to cut it into pipeline stages, "
        "and which devices each stage gets.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    made.add_argument(
        "profile",
        metavar="PROFILE",
        type=Path,
        help="profile.npz, a graph.txt of PipeDream or DAPPLE, or JSON of dnn-partitioning or Piper; "
        "automap-profile makes one of a model",
    )
    made.add_argument("--topo", metavar="NAME|FILE", help="a shipped cluster (A, B, C, …) or a YAML file")
    asked = made.add_argument_group("what to plan")
    asked.add_argument(
        "--stages",
        metavar="S|auto",
        type=_number_or_auto,
        help="number of stages; auto: the best one (default: one a node, or 1 where that is faster)",
    )
    asked.add_argument(
        "--micro-batches",
        metavar="M|auto",
        type=_number_or_auto,
        help="micro-batches in a global batch (default 16); auto: the best number for --global-batch",
    )
    asked.add_argument(
        "--global-batch",
        metavar="B",
        type=int,
        help="samples between two updates; alone it makes B / (samples of the profiled micro-batch) micro-batches",
    )
    asked.add_argument(
        "--microbatch-size", metavar="N", type=int, help="samples in the profiled micro-batch, if the profile is silent"
    )
    asked.add_argument(
        "--state-factor",
        metavar="X",
        type=float,
        help="bytes of training state per byte of parameters (default 4: fp32 with Adam; 2 for Adafactor or SGD)",
    )
    asked.add_argument(
        "--granularity", metavar="N", type=int, help="points at which the model may be cut (default 128)"
    )
    how = made.add_argument_group("how to plan")
    how.add_argument(
        "--planner",
        metavar="NAME",
        default="auto",
        help="auto (default: the best of policy, uniform cuts and data parallelism), policy, exact, uniform, "
        "data-parallel, online (see automap-search pp); a named planner's own plan is returned as it is",
    )
    how.add_argument(
        "--beam", metavar="N", type=int, help="first cuts from which the policy goes on (default 4; 1 is plain greedy)"
    )
    how.add_argument(
        "--certify-budget",
        metavar="MS",
        type=float,
        help="milliseconds in which the exact search proves the plan optimal, or corrects that of --planner auto "
        "(default 300; 0: only a lower bound)",
    )
    how.add_argument(
        "--refine-budget",
        metavar="MS",
        type=float,
        help="milliseconds in which --planner auto moves its cuts off the grid, by single instructions (default 100)",
    )
    how.add_argument("--no-refine", action="store_true", help="leave the cuts on the grid")
    how.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="refine for the simulated length under this schedule instead of the length; also that of plot and trace "
        f"(default {DEFAULT_SCHEDULE})",
    )
    how.add_argument("--policy", metavar="FILE", type=Path, help="an exported .onnx policy instead of the shipped one")
    how.add_argument(
        "--sweep",
        metavar="FILE",
        type=Path,
        help="what if: lengths over the clusters, stages and micro-batches of a YAML file; --out writes .csv or .json, "
        "--plot draws them",
    )
    how.add_argument("--plan", metavar="FILE", type=Path, help="plan nothing: cost and show this plan.json")
    running = made.add_argument_group("what a running job says")
    running.add_argument(
        "--observed",
        metavar="FILE",
        type=Path,
        help="measured stage times (times.json or a trace) of the job that runs --plan: they correct the profile, and "
        "the job is planned again",
    )
    running.add_argument(
        "--attribute",
        choices=("instructions", "devices", "either"),
        help="what a stage all of whose devices are slow is put down to (default: instructions; where the profile was "
        "corrected before, devices under the same cuts, under others either, by how much it is)",
    )
    running.add_argument("--restart", metavar="S", type=float, help="seconds that a move costs beside moving bytes")
    running.add_argument("--corrected", metavar="FILE", type=Path, help="write the corrected profile (.npz)")
    out = made.add_argument_group("what to write")
    out.add_argument("--out", metavar="FILE", type=Path, help="write the plan as JSON")
    out.add_argument("--json", action="store_true", help="print the plan as JSON and nothing else")
    out.add_argument("--verbose", action="store_true", help="also print what auto tried, each with what came of it")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw arrays, cuts and schedule (.png, .svg, .pdf)")
    out.add_argument("--trace", metavar="FILE", type=Path, help="write the schedule for chrome://tracing or Perfetto")
    return made


def _number_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def _run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, plan, then write: after a mistake nothing is written."""
    _require_outputs(arguments)
    _require_observed(arguments)
    if arguments.sweep:
        return _sweep(arguments)
    if arguments.observed:
        return _adjust(arguments)
    from .planning import planned, shown

    report = shown(arguments) if arguments.plan else planned(arguments)
    files = _write(arguments, report)
    if arguments.json:
        from automap_models.formats.plan_json import plan_document

        print_json(plan_document(report))
    else:
        from ..reports.pipeline import print_report

        print_report(report, files, verbose=arguments.verbose)
    return 0


def _require_observed(arguments: argparse.Namespace) -> None:
    """Options about measured times come with these, and these with one plan."""
    if arguments.observed and arguments.sweep:
        raise BadInput("is about one plan, not a sweep", where="--observed", do="leave it out")
    for name in ("attribute", "restart", "corrected"):
        if getattr(arguments, name) is not None and not arguments.observed:
            raise BadInput("is about measured times", where=f"--{name}", do="give these with --observed")


def _sweep(arguments: argparse.Namespace) -> int:
    from .sweep import run_sweep

    document = run_sweep(
        arguments, {"rows" if what == "plan" else what: at for what, at in _outputs(arguments).items()}
    )
    if arguments.json:
        print_json(document)
    return 0


def _adjust(arguments: argparse.Namespace) -> int:
    from .replan import adjusted, adjustment_document, print_adjustment, write_adjustment

    found, report, observed = adjusted(arguments)
    write_adjustment(arguments, found, report)
    if arguments.json:
        print_json(adjustment_document(found, report))
    else:
        print_adjustment(found, report, observed, _outputs(arguments))
    return 0


def _write(arguments: argparse.Namespace, report: PlanReport) -> dict[str, Path]:
    """Write what was asked for, each file whole or not at all."""
    if arguments.plot or arguments.trace:
        from automap_models.planners.staged.evaluate import timeline

        seen = timeline(report.problem, report.plan, arguments.schedule or DEFAULT_SCHEDULE)
    if arguments.plot:
        from ..plots.pipeline import write_plot

        write_plot(arguments.plot, report, seen)
    if arguments.trace:
        from automap_models.formats.chrome_trace import write_trace

        write_trace(arguments.trace, seen)
    if arguments.out:
        from automap_models.formats.plan_json import write_plan

        write_plan(arguments.out, report)
    return _outputs(arguments)


def _outputs(arguments: argparse.Namespace) -> dict[str, Path]:
    """What shall be written → where."""
    asked = {
        "plan": arguments.out,
        "plot": arguments.plot,
        "trace": arguments.trace,
        "corrected profile": arguments.corrected,
    }
    return {what: path for what, path in asked.items() if path is not None}


def _require_outputs(arguments: argparse.Namespace) -> None:
    """Every output can be written, and none over another one or over an input."""
    from automap_models.formats.files import require_writable

    inputs = (arguments.profile, arguments.plan, arguments.policy, arguments.observed, arguments.sweep)
    taken = {path.resolve(): "an input" for path in inputs if path}
    for what, path in _outputs(arguments).items():
        if path.resolve() in taken:
            raise BadInput(f"is {taken[path.resolve()]}, too", where=f"{path} for the {what}", do="give another name")
        taken[path.resolve()] = f"where the {what} goes"
        require_writable(path)
    if arguments.plot:
        from ..plots.pipeline import require_plotting

        require_plotting(arguments.plot)
