"""`automap-search`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models import __version__
from automap_models.errors import BadInput

from .console import CommandParser, print_json, run_command
from .search_options import add_search_arguments
from .step_arguments import add_step_arguments, at_least

if TYPE_CHECKING:
    from automap_models.core.sharding import Kind

    from .searching import Found

NAME = "automap-search"
EPILOG = """MODEL|FILE is one of
  a built-in model           bert48, t5_base, vgg19, …: see automap-profile --list
  a factory                  my_package.my_module:make_step returns a JAX training step and its arguments' shapes
  HLO or StableHLO           XLA's *before_optimizations.txt, jax.jit(step).lower(…).as_text(debug_info=True)

examples:
  automap-search opp t5_base --topo B --mesh 4           which dimension of each parameter to partition on 4 devices
  automap-search opp vgg19 --topo A --mesh 8 --rules shardy --show-groups
  automap-search adp t5_base --topo B --mesh 8           which inputs to partition: data parallelism
  automap-search opp my_models:make_step --topo C --out plan.json
  automap-search opp vgg19 --topo A --mesh 8 --plot search.png --seed 1
  automap-search opp t5_11b --topo C --json | jq .partitioned

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan exists, 1 a defect of ours
"""
KINDS: Mapping[str, Kind] = {"opp": "operator", "adp": "data"}
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
    searches = made.add_subparsers(dest="search", metavar="opp|adp", required=True, parser_class=CommandParser)
    for search, about in _ABOUT.items():
        one = searches.add_parser(
            search,
            help=about.partition(":")[0].lower(),
            description=about,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_sharding_arguments(one)
        one.set_defaults(run=_sharding)
    return made


def _add_sharding_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("what", metavar="MODEL|FILE", help="what to partition, see below")
    made.add_argument(
        "--topo", metavar="NAME|FILE", required=True, help="a shipped cluster (A, B, C, …) or a YAML file"
    )
    add_step_arguments(made.add_argument_group("which training step"))
    asked = made.add_argument_group("what to search for")
    asked.add_argument(
        "--mesh", metavar="N", type=at_least(1), help="devices along the mesh axis (default: all of the cluster)"
    )
    asked.add_argument(
        "--rules",
        metavar="NAME|FILE",
        default="paper",
        help="what may be sharded: paper (default), shardy (all that propagates) or a YAML file of restrictions",
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
    files = {name: path for name, path in (("plan", arguments.out), ("plot", arguments.plot)) if path}
    _require_files(files, arguments.what)
    from .searching import found

    result = found(arguments, KINDS[arguments.search])
    if arguments.out:
        from automap_models.formats.sharding_json import write_sharding_plan

        write_sharding_plan(arguments.out, result.report)
    if arguments.plot:
        from .search_plots import write_search_plot

        write_search_plot(arguments.plot, result)
    _print(arguments, result, files)
    return 0


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
            from .plots import require_plotting

            require_plotting(path)
        require_writable(path)


def _print(arguments: argparse.Namespace, result: Found, files: Mapping[str, Path]) -> None:
    if arguments.json:
        from .search_report import search_document

        print_json(search_document(result, groups=arguments.show_groups))
    else:
        from .search_report import print_search

        print_search(result, files, groups=arguments.show_groups)
