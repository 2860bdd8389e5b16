"""`automap search opp|adp|pp`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from automap_models.errors import BadInput
from automap_models.requests import OnlineRequest, SearchRequest
from automap_models.workloads.source import MODELS, STEPS, Source

from ..runner import Command, Output, reported_by
from .parsing import (
    DEVICE,
    SEED,
    STATE_FACTOR,
    STEP,
    add_options,
    add_topo,
    at_least,
    filled,
    kinds_of_models,
    mesh_argument,
    name_argument,
    refuse,
    source_of,
)

DESCRIPTION = "Search for the best way of training a model by its own operations."
EPILOG = f"""{kinds_of_models("bert48, t5_base, vgg19, …: see automap profile --list")}

examples:
  automap search opp t5_base --topo B --mesh 4           the fastest step: what to partition on 4 devices
  automap search opp t5_base --topo A --mesh data=2,model=4 --out plan.json
  automap search opp t5_base --topo B --mesh 4 --objective count          Auto-MAP's own search, by its agent
  automap search opp vgg19 --topo A --mesh 8 --rules shardy --show-groups
  automap search adp t5_base --topo B --mesh 8           which inputs to partition: data parallelism
  automap search opp my_models:make_step --topo C --out plan.json
  automap search opp vgg19 --topo A --mesh 8 --plot search.png --seed 1
  automap search opp t5_11b --topo C --json | jq .partitioned
  automap search pp examples/bert48_v100.npz --topo C --stages 4 --plot training.png
"""
EXITS = {3: "no plan exists"}
OBJECTIVES = ("time", "memory", "count")
COUNTING = "count"
OF_THE_AGENT = ("agent", "episodes", "stop_at_optimum", "seed", "plot")
"""The arguments that mean something to the planner `agent` alone."""
ABOUT = {
    "opp": "Operator partitioning: choose the dimension of each trainable parameter to partition across a mesh axis, "
    "such that everything else follows by propagation and nothing has to be resharded.",
    "adp": "Auto data parallelism: choose the dimension of each input of the step to partition across a mesh axis; "
    "the one that follows the data through the model is the batch.",
    "pp": "Pipeline parallelism by online training: an agent learns on the one profile where to cut it into stages and "
    "which devices each stage gets.",
}
SUMMARIES = {search: about.partition(":")[0].lower() for search, about in ABOUT.items()}
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
            Auto-MAP counts (the default with --planner agent)
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
            (reinforcement learning; the default there)
        --agent NAME|FILE  its hyper-parameters (default paper)
        --episodes N       learn for at most so many (default: until nothing improves)
        --stop-at-optimum  end with the first plan that is proven to be as good as any
        {SEED}
    """
    unless = {"default": None, "action": "store_true"}
    add_options(parser.add_argument_group("who searches, for how long"), searcher, stop_at_optimum=unless)
    add_options(parser.add_argument_group("what to print"), "--show-groups  also print the linkage groups")


def _add_training(parser: argparse.ArgumentParser) -> None:
    """What to cut on which cluster, and how long to learn."""
    parser.add_argument(
        "what",
        metavar="MODEL|PROFILE",
        type=name_argument,
        help="a model as automap profile takes it, or a profile",
    )
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE)
    problem = f"""
        --stages S         number of stages (default: one a node)
        --micro-batches M  in a global batch (default 16)
        {STATE_FACTOR}
    """
    group = parser.add_argument_group("what to plan")
    add_options(group, problem, stages={"type": at_least(2)})
    learning = f"""
        --agent NAME|FILE         hyper-parameters: default, paper (Auto-MAP's own) or a YAML file like
            conf/agent/default.yaml
        --episodes N              to play (default 2304)
        {SEED}
        --warm-start policy|FILE  begin with the trained policy's plan, or with this plan.json (./policy is a file)
    """
    group = parser.add_argument_group("who learns, for how long")
    add_options(group, learning, agent={"default": "default"}, episodes={"default": 2304}, seed={"default": 0})


def request(search: str, namespace: argparse.Namespace) -> SearchRequest:
    """What is asked for; who gives an option of counting wants to count."""
    named = () if namespace.planner in (None, "milp") else ("planner",)
    counting, pricing = (*OF_THE_AGENT, "show_groups", *named), ("verify", "plan", "device")
    if namespace.objective is None:
        counts = _any(namespace, counting) and not _any(namespace, pricing)
        namespace.objective = COUNTING if counts else OBJECTIVES[0]
    counts = namespace.objective == COUNTING
    do = f"leave it out, or give --objective {OBJECTIVES[0] if counts else COUNTING}"
    refuse(namespace, pricing if counts else counting, f"means nothing for --objective {namespace.objective}", do)
    planner, rules = ("agent", "paper") if counts else ("milp", "shardy")
    namespace.planner, namespace.rules = namespace.planner or planner, namespace.rules or rules
    if counts and namespace.planner != "agent":
        refuse(namespace, OF_THE_AGENT, f"the planner {namespace.planner} has no use for it")
    return filled(SearchRequest, namespace, search=search, source=_source(namespace))


def _training(namespace: argparse.Namespace) -> OnlineRequest:
    return filled(OnlineRequest, namespace, source=source_of(vars(namespace)))


def _any(namespace: argparse.Namespace, names: Sequence[str]) -> bool:
    return any(getattr(namespace, name) not in (None, False) for name in names)


def _source(namespace: argparse.Namespace) -> Source:
    """The model; it is to have operations, and to run where the step is verified."""
    source = source_of(vars(namespace))
    if source.kind not in STEPS:
        from automap_models.formats.files import require_no_plan

        require_no_plan(source.what)
        do = "give a model, a factory or an HLO file"
        raise BadInput("is a profile, without operations to partition", where=source.what, do=do)
    if source.kind not in MODELS:
        refuse(namespace, ("verify",), f"{source.what} {source.kind.value}", "give a model or a factory to run")
    return source


def _command(search: str) -> Command[Any]:
    training = search == "pp"
    plot = f"draw {'how the training went' if training else 'the score over episodes'} (.png, .svg, .pdf)"
    return Command(
        description=ABOUT[search],
        epilog="" if training else EPILOG,
        add_arguments=_add_training if training else add_arguments,
        outputs=(Output("plan", ("--out",), "write the plan as JSON"), Output("plot", ("--plot",), plot, picture=True)),
        exits=EXITS,
        json="print the plan as JSON and nothing else",
        inputs=("what", "warm_start") if training else ("what", "plan"),
        request=_training if training else partial(request, search),
        report=reported_by("pipeline" if training else "search"),
    )


COMMANDS: Mapping[str, Command[Any]] = {search: _command(search) for search in ABOUT}
