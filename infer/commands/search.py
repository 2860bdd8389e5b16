"""`automap search opp|adp|pp`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from automap_models.errors import BadInput

from ..requests import (
    SearchRequest,
    add_step_arguments,
    add_topo,
    at_least,
    file_argument,
    flag,
    mesh_argument,
    name_argument,
)
from ..runner import Command, Output, Report
from . import search_pipelines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..shardings import Sharded

DESCRIPTION = "Search for the best way of training a model by its own operations."
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

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan exists, 1 a defect of ours,
141 the output's reader went away
"""
OBJECTIVES = ("time", "memory", "count")
COUNTING = "count"
_PLAYING = ("episodes", "stop_at_optimum", "seed", "plot")
APPLICABLE: dict[str, tuple[str, ...]] = {"agent": ("agent", *_PLAYING), "random": _PLAYING}
"""Planner → the arguments that mean something to it; none to the others."""
_ABOUT = {
    "opp": "Operator partitioning: choose the dimension of each trainable parameter to partition across a mesh axis, "
    "such that everything else follows by propagation and nothing has to be resharded.",
    "adp": "Auto data parallelism: choose the dimension of each input of the step to partition across a mesh axis; "
    "the one that follows the data through the model is the batch.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to partition on which devices, and who searches."""
    parser.add_argument("what", metavar="MODEL|FILE", type=name_argument, help="what to partition, see below")
    add_topo(parser)
    add_step_arguments(parser.add_argument_group("which training step"))
    problem = parser.add_argument_group("what to search for")
    problem.add_argument(
        "--mesh",
        metavar="N|AXES",
        type=mesh_argument,
        help="devices along the one axis (default: all of the cluster), or axes: data=2,model=4 partitions inputs "
        "along the first and parameters along the second, which has neighbouring devices",
    )
    problem.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="the least time of a step (default), the least memory, or as many variables as possible, as Auto-MAP "
        "counts (the default with --planner agent and the like)",
    )
    problem.add_argument(
        "--device",
        metavar="NAME|FILE",
        type=name_argument,
        help="what the cluster is made of (default v100), for times",
    )
    problem.add_argument(
        "--rules",
        metavar="NAME|FILE",
        type=name_argument,
        help="what may be sharded: shardy (all that propagates; default), paper (default for --objective count) or a "
        "YAML file of restrictions",
    )
    problem.add_argument("--plan", metavar="FILE", type=file_argument, help="price this plan.json and search nothing")
    problem.add_argument(
        "--verify", action="store_true", help="run the step with the plan on devices made of this host, and compare"
    )
    _add_searcher(parser.add_argument_group("who searches, for how long"))
    printed = parser.add_argument_group("what to print")
    printed.add_argument("--show-groups", action="store_true", help="also print the linkage groups")


def _add_searcher(group: argparse._ArgumentGroup) -> None:
    """--planner, --agent, --episodes, --stop-at-optimum and --seed."""
    group.add_argument(
        "--planner",
        metavar="NAME",
        help="who searches: milp (the proven optimum; the default but for --objective count), agent (reinforcement "
        "learning; the default there), greedy, random",
    )
    group.add_argument("--agent", metavar="NAME|FILE", type=name_argument, help="its hyper-parameters (default paper)")
    group.add_argument(
        "--episodes", metavar="N", type=at_least(1), help="learn for at most so many (default: until nothing improves)"
    )
    group.add_argument(
        "--stop-at-optimum",
        action="store_true",
        default=None,
        help="end with the first plan that is proven to be as good as any",
    )
    group.add_argument("--seed", metavar="N", type=at_least(0), help="of random draws (default 0)")


def request(search: str, namespace: argparse.Namespace) -> SearchRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing for the objective, the planner or the model.
    """
    options = _settled(vars(namespace))
    if options["objective"] == COUNTING:
        _refuse_of_planner(options)
    from ..sources import step_source

    return SearchRequest(
        search=search,
        source=step_source(options, verified=options["verify"]),
        topo=options["topo"],
        mesh=options["mesh"],
        objective=options["objective"],
        device=options["device"],
        rules=options["rules"],
        plan=options["plan"],
        verify=options["verify"],
        planner=options["planner"],
        agent=options["agent"],
        episodes=options["episodes"],
        stop_at_optimum=options["stop_at_optimum"],
        seed=options["seed"],
        show_groups=options["show_groups"],
    )


def _settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with objective, planner and rules set; who names an option of counting wants to count.

    Raises:
        BadInput: an option means nothing for the objective.
    """

    def given(name: str) -> bool:
        return options[name] not in (None, False)

    objective = options["objective"]
    counting = [name for name in (*APPLICABLE["agent"], "show_groups") if given(name)]
    counting += ["planner"] if options["planner"] not in (None, "milp") else []
    pricing = [name for name in ("verify", "plan", "device") if given(name)]
    if objective is None:
        objective = COUNTING if counting and not pricing else OBJECTIVES[0]
    counts = objective == COUNTING
    for name in pricing if counts else counting:
        raise BadInput(
            f"means nothing for --objective {objective}",
            where=flag(name),
            do=f"leave it out, or give --objective {OBJECTIVES[0] if counts else COUNTING}",
        )
    planner, rules = ("agent", "paper") if counts else ("milp", "shardy")
    return {
        **options,
        "objective": objective,
        "planner": options["planner"] or planner,
        "rules": options["rules"] or rules,
    }


def _refuse_of_planner(options: Mapping[str, Any]) -> None:
    """Refuse options that the planner has no use for.

    Raises:
        BadInput: naming the first.
    """
    for name in APPLICABLE["agent"]:
        if options[name] is not None and name not in APPLICABLE.get(options["planner"], ()):
            what = f"the planner {options['planner']} has no use for it"
            raise BadInput(what, where=flag(name), do="leave it out")


def run(request: SearchRequest) -> Sharded:
    """The plan with the most partitioned variables, or the cheapest, checked by Shardy.

    Raises:
        BadInput: the model cannot be read, traced or partitioned, or the planner is unknown.
        Infeasible: no plan fits the devices' memory.
        UserCodeError: the user's own code raised.
    """
    from ..shardings import sharded

    return sharded(request)


def report(request: SearchRequest, outcome: Sharded) -> Report:
    """Tables by block, the plan's JSON document, a picture of the episodes.

    A plan that does not compute what one device does is a defect, and the exit code says so.
    """
    from automap_models.formats.sharding_json import write_sharding_plan

    from ..reports.sharding import count_document, price_document, print_counted, print_priced

    def draw() -> Figure:
        from ..plots.exploration import draw_search

        return draw_search(outcome.report)

    writers = {"plan": lambda path: write_sharding_plan(path, outcome.report)}
    if request.objective != COUNTING:
        code = 0 if outcome.verified is None or outcome.verified.equal else 1
        return Report(lambda: print_priced(outcome), lambda: price_document(outcome), writers, exit_code=code)
    groups = request.show_groups
    return Report(
        lambda: print_counted(outcome, groups=groups), lambda: count_document(outcome, groups=groups), writers, draw
    )


def _command(search: str) -> Command[SearchRequest, Sharded]:
    return Command(
        summary=_ABOUT[search].partition(":")[0].lower(),
        description=_ABOUT[search],
        epilog=EPILOG,
        add_arguments=add_arguments,
        outputs=(
            Output("plan", ("--out",), "write the plan as JSON"),
            Output("plot", ("--plot",), "draw the score over episodes (.png, .svg, .pdf)", picture=True),
        ),
        json="print the plan as JSON and nothing else",
        inputs=("what", "plan"),
        request=lambda namespace: request(search, namespace),
        run=run,
        report=report,
    )


COMMANDS: Mapping[str, Command[Any, Any]] = {
    "opp": _command("opp"),
    "adp": _command("adp"),
    "pp": search_pipelines.COMMAND,
}
