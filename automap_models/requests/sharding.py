"""How the operations of a step are partitioned: the plan with the most partitioned variables, or the cheapest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, PlanKind
from automap_models.core.result import Result
from automap_models.core.sharding import Collectives, Objective, ShardingPlan, ShardingProblem
from automap_models.errors import BadInput
from automap_models.formats.sharding_plan import ShardingReport, read_sharding_plan
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.base import Watch
from automap_models.planners.options import given
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.milp import evaluated
from automap_models.planners.sharding.traced import TracedSharding, price_report
from automap_models.requests import SearchRequest, cluster_of, device_on
from automap_models.requests.profile import begin_of
from automap_models.run.verify_sharding import Verified, verify_beside_data_parallelism

COUNTING = "count"
"""The objective of Auto-MAP: as many partitioned variables as possible."""
KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""


@dataclass(frozen=True)
class Sharded:
    """What a search came to.

    Attributes:
        report: the plan, its price and what is said about it.
        inserted: what Shardy's own propagation of it inserts, by Shardy's word; a legal plan needs no `reshard`. None
            where it cannot read the step, as one of PyTorch's operators.
        verified: what XLA made of it, if that was asked for.
    """

    report: ShardingReport
    inserted: Mapping[str, Collectives] | None
    verified: Verified | None = None


def solve(request: SearchRequest, watch: Watch) -> Sharded:
    """Trace the step, search or price a plan, and have it checked."""
    begun_s = time.perf_counter()
    cluster, rule_set = cluster_of(request.topo), read_rule_set(request.rules)
    counting = request.objective == COUNTING
    begin = begin_of(watch)
    device = None if counting else device_on(cluster, request.device)
    mesh = read_sharding_plan(request.plan).mesh if request.plan else _mesh(request, cluster)
    options = given(request, "agent", "episodes", "stop_at_optimum", "seed")
    planner = make_planner(request.planner, kind="sharding", **options)
    step = TracedSharding.from_source(request.source, rule_set, begin)
    if request.verify and not step.runs_with_xla:
        what = (
            "compiles the partitioned step with XLA, which has no PyTorch operators; how these are partitioned is "
            "tested operator by operator, on halves and against DTensor"
        )
        raise BadInput(what, where="`verify`", do="leave it out, or give the same model in JAX")

    def problem_of(**options: bool) -> ShardingProblem:
        if device is None:
            return step.counted(cluster, mesh)
        begin(f"pricing {len(step.module.operations):,} operations")
        objective: Objective = "memory" if request.objective == "memory" else "time"
        return step.priced(cluster, mesh, objective, device, **options)

    problem = problem_of()
    begin(f"searching {sum(len(along.candidate_dims) for along in problem.along)} dimensions")
    if request.plan:
        result = evaluated(problem, read_sharding_plan(request.plan, problem))
    else:
        result = planner.solve(problem, watch=lambda news: begin(news.what))
    if counting:
        result.required_plan()
        report = ShardingReport(**vars(result), planning_s=time.perf_counter() - begun_s)
    else:
        report = price_report(result, lambda: time.perf_counter() - begun_s)
    begin("checking the plan with Shardy")
    inserted = step.inserted_by_shardy(report.plan)
    counted = _count_notes(result, inserted or {}) if counting else ()
    report = replace(report, notes=(*report.notes, *counted, *step.module.notes))
    if not request.verify:
        return Sharded(report, inserted)
    separate = problem_of(reassociated=False)
    return Sharded(report, inserted, verify_beside_data_parallelism(request.source, report, separate, begin))


def _mesh(request: SearchRequest, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices."""
    kind = KINDS[request.search]
    name = next(name for name, axis_kind in AXES.items() if axis_kind == kind)
    if not isinstance(request.mesh, tuple):
        return (MeshAxis(name, request.mesh or cluster.devices),)
    mesh = tuple(MeshAxis(axis, size) for axis, size in request.mesh)
    if request.objective == COUNTING and [axis.kind for axis in mesh] != [kind]:
        do = f"give {name}=N, or `objective=time`"
        raise BadInput("variables are counted along one axis", where="`mesh`", do=do)
    return mesh


def _count_notes(result: Result[ShardingProblem, ShardingPlan], inserted: Mapping[str, Collectives]) -> Iterator[str]:
    if result.facts.get("interrupted"):
        yield f"interrupted after {result.facts['episodes']:,} episodes: the best plan until then"
    if reshards := inserted.get("reshard"):
        yield f"Shardy's own propagation of this plan needs {reshards.number} reshards"
