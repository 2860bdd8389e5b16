"""From the arguments of `automap-search opp` and `adp` to the cheapest plan on a cluster, priced and verified."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from automap_models.core.mesh import MeshAxis
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.cost.sharding import ShardingPrice, plan_price, replicated_price
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.device_yaml import read_device
from automap_models.formats.sharding_json import ShardingReport, read_sharding_plan
from automap_models.formats.sharding_json import mesh_of as mesh_in
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.evaluate import evaluated

from ..mesh_argument import mesh_of
from ..reports.progress import Steps
from ..requests import SearchRequest
from ..sources import DEFAULT_DEVICE, module_of
from .searching import KINDS, Inserted, inserted_by_shardy, sharding_of

if TYPE_CHECKING:
    from ..verify import Verified


@dataclass(frozen=True)
class Priced:
    """What a search for the cheapest plan came to.

    Attributes:
        report: the plan, its price and what is said about it.
        inserted: what Shardy's own propagation of it inserts, by Shardy's word; a legal plan needs no `reshard`.
        verified: what XLA made of it, if that was asked for.
        estimates: plan by name, as in `verified` → bytes that XLA for CPUs is expected to all-reduce.
    """

    report: ShardingReport
    inserted: Mapping[str, Inserted]
    verified: Verified | None = None
    estimates: Mapping[str, float] | None = None


def priced(arguments: SearchRequest) -> Priced:
    """The plan that was asked for: the cheapest, or the one in a file.

    Raises:
        BadInput: an argument means nothing for this input, or the model cannot be read, traced or partitioned.
        Infeasible: no plan fits the devices' memory.
        UserCodeError: the user's own code raised.
    """
    begun, kind = time.perf_counter(), KINDS[arguments.search]
    cluster, rule_set = read_cluster(arguments.topo), read_rule_set(arguments.rules)
    device = read_device(arguments.device or DEFAULT_DEVICE)
    mesh = mesh_in(arguments.plan) if arguments.plan else mesh_of(arguments.mesh, kind, cluster)
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        from automap_models.hlo.graph import instruction_graph
        from automap_models.hlo.sharding_work import sharding_work

        steps.begin(f"tracing {arguments.source.what}")
        module = module_of(arguments.source)
        steps.begin(f"propagating through {len(module.operations):,} operations")
        sharding = sharding_of(module, rule_set)
        steps.begin(f"pricing {len(module.operations):,} operations")
        graph = instruction_graph(module)
        work = sharding_work(module, sharding, graph, device)
        problem = ShardingProblem(
            module.name,
            sharding.classes,
            cluster,
            mesh,
            "memory" if arguments.objective == "memory" else "time",
            work,
            rule_set.name,
            device.launch_s,
        )
        steps.begin("searching")
        report = _report(arguments, problem, begun)
        steps.begin("checking the plan with Shardy")
        inserted = inserted_by_shardy(module, report.plan)
        if not arguments.verify:
            return Priced(report, inserted)
        steps.begin("running the plan on the host's devices with XLA")
        separate = sharding_work(module, sharding, graph, device, reassociated=False)
        return _verified(arguments, Priced(report, inserted), replace(problem, work=separate))


def _report(arguments: SearchRequest, problem: ShardingProblem, begun: float) -> ShardingReport:
    """The plan and the prices beside it."""
    if arguments.plan:
        result = evaluated(problem, read_sharding_plan(arguments.plan, problem))
    else:
        result = make_planner("milp", kind="sharding").solve(problem)
        result.required_plan()
    parallel = _data_parallel(problem)
    return ShardingReport(
        result=result,
        planning_s=time.perf_counter() - begun,
        notes=_notes(problem, result.cost),
        replicated=replicated_price(problem),
        data_parallel=plan_price(problem, parallel) if parallel else None,
    )


def _notes(problem: ShardingProblem, price: ShardingPrice) -> tuple[str, ...]:
    if price.memory_bytes <= problem.cluster.memory:
        return ()
    return (f"needs {price.memory_bytes / 1e9:.1f} GB, a device has {problem.cluster.memory / 1e9:.1f} GB",)


def _data_parallel(problem: ShardingProblem) -> ShardingPlan | None:
    """The batch across all devices of the mesh; None where they do not divide it."""
    mesh = (MeshAxis("data", math.prod(axis.size for axis in problem.mesh)),)
    try:
        counted = replace(problem, mesh=mesh, objective="count")
    except BadInput:
        return None
    return make_planner("milp", kind="sharding").plan(counted)


def _verified(arguments: SearchRequest, found: Priced, problem: ShardingProblem) -> Priced:
    """The same with what XLA made of it; `problem` prices every all-reduce on its own, as XLA for CPUs has it."""
    from ..verify import verify

    report = found.report
    plans = {"plan": (report.plan.mesh, report.plan.dims)}
    estimates = {"plan": _reduced(plan_price(problem, report.plan))}
    if parallel := _data_parallel(problem):
        plans["data-parallel"] = (parallel.mesh, parallel.dims)
        estimates["data-parallel"] = _reduced(plan_price(problem, parallel))
    devices = math.prod(axis.size for axis in report.plan.mesh)
    needed = devices * report.result.cost.memory_bytes + 2 * replicated_price(problem).memory_bytes
    return replace(found, verified=verify(arguments.source, plans, needed), estimates=estimates)


def _reduced(price: ShardingPrice) -> float:
    return sum(price.activation_bytes) + sum(price.gradient_bytes)
