"""A search of shardings: the plan with the most partitioned variables, or the cheapest, checked by Shardy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, PlanKind
from automap_models.core.result import Result
from automap_models.core.sharding import Collectives, Objective, ShardingPlan, ShardingProblem
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import device_of, read_cluster
from automap_models.formats.sharding_json import ShardingReport, mesh_of, read_sharding_plan, write_sharding_plan
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.milp import evaluated
from automap_models.planners.sharding.traced import TracedSharding, price_report
from automap_models.plots.exploration import draw_search
from automap_models.run.verify_sharding import verify_beside_data_parallelism

from ..commands.parsing import given
from ..commands.search import COUNTING
from ..requests import SearchRequest
from ..runner import Report
from .sharding import Sharded, print_sharded, sharded_document
from .text import Steps

KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""


def report(request: SearchRequest) -> Report:
    """Tables by block, the plan's JSON document, a picture of the episodes.

    A plan that does not compute what one device does is a defect, and the exit code says so.
    """
    outcome, groups = _searched(request), request.show_groups
    return Report(
        partial(print_sharded, outcome, groups=groups),
        partial(sharded_document, outcome, groups=groups),
        {"plan": lambda path: write_sharding_plan(path, outcome.report)},
        partial(draw_search, outcome.report),
        exit_code=0 if outcome.verified is None or outcome.verified.equal else 1,
    )


def _searched(request: SearchRequest) -> Sharded:
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
        counted = _count_notes(result, inserted or {}) if counting else ()
        report = replace(report, notes=(*report.notes, *counted, *step.module.notes))
        if not request.verify:
            return Sharded(report, inserted)
        separate = problem_of(reassociated=False)
        return Sharded(report, inserted, verify_beside_data_parallelism(request.source, report, separate, steps.begin))


def _mesh(request: SearchRequest, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices."""
    kind = KINDS[request.search]
    name = next(name for name, of in AXES.items() if of == kind)
    if not isinstance(request.mesh, tuple):
        return (MeshAxis(name, request.mesh or cluster.devices),)
    mesh = tuple(MeshAxis(axis, size) for axis, size in request.mesh)
    if request.objective == COUNTING and [axis.kind for axis in mesh] != [kind]:
        do = f"give {name}=N, or --objective time"
        raise BadInput("variables are counted along one axis", where="--mesh", do=do)
    return mesh


def _count_notes(result: Result[ShardingProblem, ShardingPlan], inserted: Mapping[str, Collectives]) -> Iterator[str]:
    if result.facts.get("interrupted"):
        yield f"interrupted after {result.facts['episodes']:,} episodes: the best plan until then"
    if reshards := inserted.get("reshard"):
        yield f"Shardy's own propagation of this plan needs {reshards.number} reshards"
