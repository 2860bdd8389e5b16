"""`automap search opp|adp|pp`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from automap_models.errors import BadInput

from ..requests import SearchRequest
from ..runner import Command, Output, reported_by
from . import search_pipelines
from .parsing import (
    DEVICE,
    SEED,
    STEP,
    add_options,
    add_topo,
    filled,
    flag,
    kinds_of_models,
    mesh_argument,
    name_argument,
    step_source,
)

DESCRIPTION = "Search for the best way of training a model by its own operations."
EPILOG = f"""{kinds_of_models("bert48, t5_base, vgg19, …: see automap-profile --list")}

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
ABOUT = {
    "opp": "Operator partitioning: choose the dimension of each trainable parameter to partition across a mesh axis, "
    "such that everything else follows by propagation and nothing has to be resharded.",
    "adp": "Auto data parallelism: choose the dimension of each input of the step to partition across a mesh axis; "
    "the one that follows the data through the model is the batch.",
}
SUMMARIES = {
    **{search: about.partition(":")[0].lower() for search, about in ABOUT.items()},
    "pp": "pipeline parallelism by online training",
}
"""Search → what it is for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to partition on which devices, and who searches."""
    parser.add_argument("what", metavar="MODEL|FILE", type=name_argument, help="what to partition, see below")
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP)
    problem = f"""
        --mesh N|AXES      devices along the one axis (default: all of the cluster), or axes: data=2,model=4 partitions
            inputs along the first and parameters along the second, which has neighbouring devices
        --objective        the least time of a step (default), the least memory, or as many variables as possible, as
            Auto-MAP counts (the default with --planner agent and the like)
        {DEVICE}
        --rules NAME|FILE  what may be sharded: shardy (all that propagates; default), paper (default for --objective
            count) or a YAML file of restrictions
        --plan FILE        price this plan.json and search nothing
        --verify           run the step with the plan on devices made of this host, and compare
    """
    group = parser.add_argument_group("what to search for")
    add_options(group, problem, mesh={"type": mesh_argument}, objective={"choices": OBJECTIVES})
    searcher = f"""
        --planner NAME     who searches: milp (the proven optimum; the default but for --objective count), agent
            (reinforcement learning; the default there), greedy, random
        --agent NAME|FILE  its hyper-parameters (default paper)
        --episodes N       learn for at most so many (default: until nothing improves)
        --stop-at-optimum  end with the first plan that is proven to be as good as any
        {SEED}
    """
    unless = {"default": None, "action": "store_true"}
    add_options(parser.add_argument_group("who searches, for how long"), searcher, stop_at_optimum=unless)
    add_options(parser.add_argument_group("what to print"), "--show-groups  also print the linkage groups")


def request(search: str, namespace: argparse.Namespace) -> SearchRequest:
    """What is asked for."""
    options = _settled(vars(namespace))
    if options["objective"] == COUNTING:
        _refuse_of_planner(options)
    source = step_source(options, verified=options["verify"])
    return filled(SearchRequest, argparse.Namespace(**options), search=search, source=source)


def _settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with objective, planner and rules set; who names an option of counting wants to count."""

    objective = options["objective"]
    counting = [name for name in (*APPLICABLE["agent"], "show_groups") if options[name] not in (None, False)]
    counting += ["planner"] if options["planner"] not in (None, "milp") else []
    pricing = [name for name in ("verify", "plan", "device") if options[name] not in (None, False)]
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
    """Refuse options that the planner has no use for."""
    for name in APPLICABLE["agent"]:
        if options[name] is not None and name not in APPLICABLE.get(options["planner"], ()):
            what = f"the planner {options['planner']} has no use for it"
            raise BadInput(what, where=flag(name), do="leave it out")


def _command(search: str) -> Command[SearchRequest]:
    return Command(
        description=ABOUT[search],
        epilog=EPILOG,
        add_arguments=add_arguments,
        outputs=(
            Output("plan", ("--out",), "write the plan as JSON"),
            Output("plot", ("--plot",), "draw the score over episodes (.png, .svg, .pdf)", picture=True),
        ),
        json="print the plan as JSON and nothing else",
        inputs=("what", "plan"),
        request=lambda namespace: request(search, namespace),
        report=reported_by("search"),
    )


COMMANDS: Mapping[str, Command[Any]] = {
    **{search: _command(search) for search in ABOUT},
    "pp": search_pipelines.COMMAND,
}
