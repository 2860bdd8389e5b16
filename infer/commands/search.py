"""`automap-search`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput

from ..arguments import add_step_arguments
from ..mesh_argument import mesh_argument
from ..runner import CommandParser, print_json, run_command
from .search_options import COUNTING, OBJECTIVES, add_search_arguments, settle
from .search_pipelines import ABOUT as ABOUT_PIPELINES
from .search_pipelines import add_pipeline_arguments, run_pipeline

if TYPE_CHECKING:
    from automap_models.core.mesh import PlanKind

    from .searching import Found

NAME = "automap-search"
EPILOG = """MODEL|FILE is one of
  a built-in model           bert48, t5_base, vgg19, …: see automap-profile --list
  a factory                  my_package.my_module:make_step returns a JAX training step and its arguments' shapes
  HLO or StableHLO           XLA's *before_optimizations.txt, jax.jit(step).lower(…).as_text(debug_info=True)

examples:
  automap-search opp t5_base --topo B --mesh 4           the fastest step: what to partition on 4 devices
  automap-search opp t5_base --topo A --mesh data=2,model=4 --out plan.json
  automap-search opp t5_base --topo B --mesh 4 --objective count          Auto-MAP's own search, by its agent
  automap-search opp vgg19 --topo A --mesh 8 --rules shardy --show-groups
  automap-search adp t5_base --topo B --mesh 8           which inputs to partition: data parallelism
  automap-search opp my_models:make_step --topo C --out plan.json
  automap-search opp vgg19 --topo A --mesh 8 --plot search.png --seed 1
  automap-search opp t5_11b --topo C --json | jq .partitioned
  automap-search pp examples/bert48_v100.npz --topo C --stages 4 --plot training.png

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan exists, 1 a defect of ours
"""
KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""

_ABOUT = {
    "opp": "Operator partitioning: choose the dimension of each trainable parameter to partition across a mesh axis, "
    "such that everything else follows by propagation and nothing has to be resharded.",
    "adp": "Auto data parallelism: choose the dimension of each input of the step to partition across a mesh axis; "
    "the one that follows the data through the model is the batch.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 2 bad input, 3 infeasible, 130 interrupted)."""
    return run_command(NAME, lambda: _run(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = CommandParser(
        prog=NAME,
        description="Search for the best way of training a model by its own operations.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    searches = made.add_subparsers(dest="search", metavar="opp|adp|pp", required=True, parser_class=CommandParser)
    for search, about in {**_ABOUT, "pp": ABOUT_PIPELINES}.items():
        one = searches.add_parser(
            search,
            help=about.partition(":")[0].lower(),
            description=about,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        pipelines = search == "pp"
        (add_pipeline_arguments if pipelines else _add_sharding_arguments)(one)
        one.set_defaults(run=run_pipeline if pipelines else _sharding)
    return made


def _add_sharding_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("what", metavar="MODEL|FILE", help="what to partition, see below")
    made.add_argument(
        "--topo", metavar="NAME|FILE", required=True, help="a shipped cluster (A, B, C, …) or a YAML file"
    )
    add_step_arguments(made.add_argument_group("which training step"))
    asked = made.add_argument_group("what to search for")
    asked.add_argument(
        "--mesh",
        metavar="N|AXES",
        type=mesh_argument,
        help="devices along the one axis (default: all of the cluster), or axes: data=2,model=4 partitions inputs "
        "along the first and parameters along the second, which has neighbouring devices",
    )
    asked.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="the least time of a step (default), the least memory, or as many variables as possible, as Auto-MAP "
        "counts (the default with --planner agent and the like)",
    )
    asked.add_argument("--device", metavar="NAME|FILE", help="what the cluster is made of (default v100), for times")
    asked.add_argument(
        "--rules",
        metavar="NAME|FILE",
        help="what may be sharded: shardy (all that propagates; default), paper (default for --objective count) or a "
        "YAML file of restrictions",
    )
    asked.add_argument("--plan", metavar="FILE", type=Path, help="price this plan.json instead of searching for one")
    asked.add_argument(
        "--verify", action="store_true", help="run the step with the plan on devices made of this host, and compare"
    )
    add_search_arguments(made.add_argument_group("who searches, for how long"))
    out = made.add_argument_group("what to write")
    out.add_argument("--out", metavar="FILE", type=Path, help="write the plan as JSON")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw the score over episodes (.png, .svg, .pdf)")
    out.add_argument("--json", action="store_true", help="print the plan as JSON and nothing else")
    out.add_argument("--show-groups", action="store_true", help="also print the linkage groups")


def _run(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _sharding(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, search, then write: after a mistake nothing is written."""
    settle(arguments)
    files = {name: path for name, path in (("plan", arguments.out), ("plot", arguments.plot)) if path}
    _require_files(files, arguments.what)
    if arguments.objective != COUNTING:
        return _priced(arguments, files)
    from .searching import found

    result = found(arguments, KINDS[arguments.search])
    if arguments.out:
        from automap_models.formats.sharding_json import write_sharding_plan

        write_sharding_plan(arguments.out, result.report)
    if arguments.plot:
        from ..plots.search import write_search_plot

        write_search_plot(arguments.plot, result)
    _print(arguments, result, files)
    return 0


def _priced(arguments: argparse.Namespace, files: Mapping[str, Path]) -> int:
    """The same for a plan chosen by its price; one that does not compute what one device does is a defect."""
    from .pricing import priced

    result = priced(arguments, KINDS[arguments.search])
    if arguments.out:
        from automap_models.formats.sharding_json import write_sharding_plan

        write_sharding_plan(arguments.out, result.report)
    if arguments.json:
        from ..reports.priced_sharding import price_document

        print_json(price_document(result))
    else:
        from ..reports.priced_sharding import print_priced

        print_priced(result, files)
    return 0 if result.verified is None or result.verified.equal else 1


def _require_files(files: Mapping[str, Path], what: str) -> None:
    """Refuse what could not be written, or would overwrite another."""
    from automap_models.formats.files import require_writable

    taken = {Path(what).resolve(): "is the input, too"}
    for name, path in files.items():
        option = "--out" if name == "plan" else "--plot"
        if path.resolve() in taken:
            raise BadInput(taken[path.resolve()], where=f"{option} {path}", do="give another name")
        taken[path.resolve()] = "is the plan's file, too"
        if name == "plot":
            from ..plots.pipeline import require_plotting

            require_plotting(path)
        require_writable(path)


def _print(arguments: argparse.Namespace, result: Found, files: Mapping[str, Path]) -> None:
    if arguments.json:
        from ..reports.sharding import search_document

        print_json(search_document(result, groups=arguments.show_groups))
    else:
        from ..reports.sharding import print_search

        print_search(result, files, groups=arguments.show_groups)
