"""`automap search opp|adp|pp`: plans found on a model's own operations (formats.md, "Commands")."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from automap_models.errors import BadInput

from ..requests import SearchRequest
from ..runner import Command, Output, Report
from . import search_pipelines
from .parsing import (
    DEVICE,
    SEED,
    STEP,
    add_options,
    add_topo,
    filled,
    flag,
    given,
    kinds_of_models,
    mesh_argument,
    name_argument,
    step_source,
)

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.mesh import Mesh, PlanKind
    from automap_models.core.result import Result
    from automap_models.core.sharding import Collectives, Objective, ShardingPlan, ShardingProblem

    from ..reports.sharding import Sharded

KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""
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
    """What is asked for.

    Raises:
        BadInput: an option means nothing for the objective, the planner or the model.
    """
    options = _settled(vars(namespace))
    if options["objective"] == COUNTING:
        _refuse_of_planner(options)
    source = step_source(options, verified=options["verify"])
    return filled(SearchRequest, argparse.Namespace(**options), search=search, source=source)


def _settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with objective, planner and rules set; who names an option of counting wants to count.

    Raises:
        BadInput: an option means nothing for the objective.
    """

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
    from automap_models.formats.hardware_yaml import device_of, read_cluster
    from automap_models.formats.sharding_json import ShardingReport, mesh_of, read_sharding_plan
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.planners.registry import make_planner
    from automap_models.planners.sharding.evaluate import evaluated
    from automap_models.planners.sharding.traced import TracedSharding, price_report
    from automap_models.run.verify_sharding import verify_beside_data_parallelism

    from ..reports.sharding import Sharded
    from ..reports.text import Steps

    begun_s = time.perf_counter()
    cluster, rule_set = read_cluster(request.topo), read_rule_set(request.rules)
    counting = request.objective == COUNTING
    with Steps() as steps:
        device = None if counting else device_of(cluster, request.device)
        mesh = mesh_of(request.plan) if request.plan else _mesh(request, cluster)
        options = given(request, "agent", "episodes", "stop_at_optimum", "seed")
        planner = make_planner(request.planner, kind="sharding", **options)
        step = TracedSharding.of(request.source, rule_set, steps.begin)
        if request.verify and not step.runs_with_xla:
            what = (
                "compiles the partitioned step with XLA, which has no PyTorch operators; how these are partitioned is "
                "tested operator by operator, on halves and against DTensor"
            )
            raise BadInput(what, where="--verify", do="leave it out, or give the same model in JAX")

        def problem_of(**options: bool) -> ShardingProblem:
            if device is None:
                return step.counted(cluster, mesh)
            steps.begin(f"pricing {len(step.module.operations):,} operations")
            objective: Objective = "memory" if request.objective == "memory" else "time"
            return step.priced(cluster, mesh, objective, device, **options)

        problem = problem_of()
        steps.begin(f"searching {sum(len(along.candidate_dims) for along in problem.along)} dimensions")
        if request.plan:
            result = evaluated(problem, read_sharding_plan(request.plan, problem))
        else:
            result = planner.solve(problem, watch=lambda news: steps.begin(news.what))
        if counting:
            result.required_plan()
            report = ShardingReport(result, time.perf_counter() - begun_s, result.notes)
        else:
            report = price_report(result, lambda: time.perf_counter() - begun_s)
        steps.begin("checking the plan with Shardy")
        inserted = step.inserted_by_shardy(report.plan)
        notes = (*report.notes, *(_count_notes(result, inserted or {}) if counting else ()), *step.module.notes)
        report = replace(report, notes=notes)
        if not request.verify:
            return Sharded(report, inserted)
        separate = problem_of(reassociated=False)
        return Sharded(report, inserted, verify_beside_data_parallelism(request.source, report, separate, steps.begin))


def _mesh(request: SearchRequest, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices.

    Raises:
        BadInput: variables are counted, and it has two axes, or the other one.
    """
    from automap_models.core.mesh import AXES, MeshAxis

    kind = KINDS[request.search]
    name = next(name for name, of in AXES.items() if of == kind)
    if not isinstance(request.mesh, tuple):
        return (MeshAxis(name, request.mesh or cluster.devices),)
    mesh = tuple(MeshAxis(axis, size) for axis, size in request.mesh)
    if request.objective == COUNTING and [axis.kind for axis in mesh] != [kind]:
        do = f"give {name}=N, or --objective time"
        raise BadInput("variables are counted along one axis", where="--mesh", do=do)
    return mesh


def _count_notes(result: Result[ShardingProblem, ShardingPlan], inserted: Mapping[str, Collectives]) -> tuple[str, ...]:
    notes = []
    if result.facts.get("interrupted"):
        notes.append(f"interrupted after {result.facts['episodes']:,} episodes: the best plan until then")
    if reshards := inserted.get("reshard"):
        notes.append(f"Shardy's own propagation of this plan needs {reshards.number} reshards")
    return tuple(notes)


def report(request: SearchRequest, outcome: Sharded) -> Report:
    """Tables by block, the plan's JSON document, a picture of the episodes.

    A plan that does not compute what one device does is a defect, and the exit code says so.
    """
    from automap_models.formats.sharding_json import write_sharding_plan
    from automap_models.plots.exploration import draw_search

    from ..reports.sharding import print_sharded, sharded_document

    groups = request.show_groups
    return Report(
        lambda: print_sharded(outcome, groups=groups),
        lambda: sharded_document(outcome, groups=groups),
        {"plan": lambda path: write_sharding_plan(path, outcome.report)},
        lambda: draw_search(outcome.report),
        exit_code=0 if outcome.verified is None or outcome.verified.equal else 1,
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
