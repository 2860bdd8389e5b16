"""From the arguments of `automap-search opp` and `adp` to the cheapest plan on a cluster, priced and verified."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.priced_sharding import PricedShardingProblem
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.cost.sharding import UNUSED, ShardingPrice
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.device_yaml import read_device
from automap_models.formats.priced_sharding_json import PricedShardingReport, read_priced_plan
from automap_models.formats.priced_sharding_json import mesh_of as mesh_in
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.cost_milp import price_of, replicated_price
from automap_models.planners.sharding.milp import most_partitioned, plan_of

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

    report: PricedShardingReport
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
        problem = PricedShardingProblem(
            module.name,
            sharding.classes,
            work,
            cluster,
            mesh,
            device.launch_s,
            "memory" if arguments.objective == "memory" else "time",
            rule_set.name,
        )
        steps.begin("searching")
        report = _report(arguments, problem, begun)
        steps.begin("checking the plan with Shardy")
        inserted = inserted_by_shardy(module, report.plan.plans)
        if not arguments.verify:
            return Priced(report, inserted)
        steps.begin("running the plan on the host's devices with XLA")
        each = sharding_work(module, sharding, graph, device, reassociated=False)
        return _verified(arguments, Priced(report, inserted), replace(problem, work=each))


def _report(arguments: SearchRequest, problem: PricedShardingProblem, begun: float) -> PricedShardingReport:
    """The plan and the prices beside it."""
    if arguments.plan:
        plan = read_priced_plan(arguments.plan, problem)
    else:
        plan = make_planner("milp", None, "priced").plan(problem)
    price, parallel = price_of(problem, plan.axis_of(problem)), _data_parallel(problem)
    return PricedShardingReport(
        problem=problem,
        plan=plan,
        price=price,
        replicated=replicated_price(problem),
        data_parallel=_price_alone(problem, parallel) if parallel else None,
        planning_s=time.perf_counter() - begun,
        notes=_notes(problem, price),
    )


def _notes(problem: PricedShardingProblem, price: ShardingPrice) -> tuple[str, ...]:
    if price.memory_bytes <= problem.cluster.memory:
        return ()
    return (f"needs {price.memory_bytes / 1e9:.1f} GB, a device has {problem.cluster.memory / 1e9:.1f} GB",)


def _data_parallel(problem: PricedShardingProblem) -> ShardingPlan | None:
    """The batch across all devices of the mesh; None where they do not divide it."""
    devices = math.prod(axis.size for axis in problem.mesh)
    try:
        along = ShardingProblem(problem.model, "data", problem.classes, problem.cluster, devices, problem.rules)
    except BadInput:
        return None
    return plan_of(along, most_partitioned(along).chosen.tolist(), "data-parallel")


def _price_alone(problem: PricedShardingProblem, plan: ShardingPlan) -> ShardingPrice:
    """The price of a plan along one axis of its own."""
    axis_of = np.full(len(problem.classes), UNUSED)
    axis_of[problem.classes.sharded(plan.dims)] = 0
    return price_of(replace(problem, mesh=_one_axis(plan)), axis_of)


def _one_axis(plan: ShardingPlan) -> Mesh:
    return (MeshAxis("data", plan.axis_size),)


def _verified(arguments: SearchRequest, found: Priced, problem: PricedShardingProblem) -> Priced:
    """The same with what XLA made of it; `problem` prices every all-reduce on its own, as XLA for CPUs has it."""
    from ..verify import verify

    report = found.report
    plans = {"plan": (report.plan.mesh, [one.dims for one in report.plan.plans])}
    estimates = {"plan": _reduced(price_of(problem, report.plan.axis_of(problem)))}
    if parallel := _data_parallel(problem):
        plans["data-parallel"] = (_one_axis(parallel), [parallel.dims])
        estimates["data-parallel"] = _reduced(_price_alone(problem, parallel))
    devices = math.prod(axis.size for axis in report.plan.mesh)
    needed = devices * report.price.memory_bytes + 2 * report.replicated.memory_bytes
    return replace(found, verified=verify(arguments.source, plans, needed), estimates=estimates)


def _reduced(price: ShardingPrice) -> float:
    return sum(price.activation_bytes) + sum(price.gradient_bytes)
