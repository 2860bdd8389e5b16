"""`automap plan` over the whole space of strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

from ..requests import PlanRequest, StrategyRequest

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.model_work import ModelWork
    from automap_models.formats.atomic import Cache

    from ..reports.strategies import Searched


SEARCHING = 0.8
"""Share of the budget for searches of the best strategy: on the cluster, on others, without a target's limits. What its
choices buy has the rest, or, where that took less, as large a share of what it took."""
LEAST_COMPARING_S = 1.5
"""Counted seconds that all comparisons may take anyway, as far as the budget has them."""


def applies(request: PlanRequest) -> bool:
    """Whether the model has layers that strategies divide, and all devices constants of training steps."""
    from automap_models.formats.hardware_yaml import device_of, read_cluster, read_kinds
    from automap_models.workloads.source import transformer

    cluster = read_cluster(request.topo)
    device = device_of(cluster, request.device)
    if any(kind.step is None for kind in read_kinds(cluster).values() or (device,)):
        return False
    try:
        transformer(request.source).shape()
    except BadInput:
        return False
    return True


def search_strategies(request: PlanRequest, wanted: StrategyRequest, cluster: Cluster, cache: Cache) -> Searched:
    """The best strategy, and what its choices buy.

    Raises:
        BadInput: fields that are given contradict the model, the cluster or one another.
        Infeasible: nothing fits; says what would.
    """
    from automap_models.api import strategy_problem
    from automap_models.cost.layer_times import Runtime
    from automap_models.formats.hardware_yaml import device_of
    from automap_models.planners import effort
    from automap_models.planners.portfolio.work import work_once
    from automap_models.planners.strategies.compare import compared, of_sizes
    from automap_models.planners.strategies.config import StrategiesConfig
    from automap_models.planners.strategies.planner import StrategiesPlanner
    from automap_models.planners.strategies.remedies import what_would_fit
    from automap_models.workloads.source import transformer

    from ..reports.strategies import Searched
    from ..reports.text import Steps

    assert request.options.global_batch is not None
    device = device_of(cluster, request.device)
    usual = StrategiesConfig()
    budget_s = request.options.budget_s or usual.budget_s
    with Steps() as steps:

        def work(dtype: str) -> ModelWork:
            source = replace(request.source, dtype=dtype)
            transformer(source).shape()
            return work_once(source, cache, steps.begin)

        problem = strategy_problem(
            work,
            cluster,
            device,
            global_batch=request.options.global_batch,
            fixed=wanted.fields,
            target=wanted.target,
            reserve_bytes=wanted.reserve_bytes,
            rank_reserve_bytes=wanted.rank_reserve_bytes,
            runtime=Runtime(flash=wanted.flash),
        )
        clusters = [] if wanted.sizes is None else _clusters(cluster, *wanted.sizes)
        searches = 1 + len(clusters) + (wanted.target is not None)
        config = replace(usual, budget_s=SEARCHING * budget_s / searches)
        begun_s = effort.counted_s()
        result = StrategiesPlanner(config).solve(problem, watch=steps.watch)
        searched_s = effort.counted_s() - begun_s
        if result.plan is None:
            assert result.reason is not None
            raise what_would_fit(problem, result.reason, steps.watch)
        comparing_s = max(LEAST_COMPARING_S, (1 - SEARCHING) / SEARCHING * searched_s)
        best = compared(result, config, steps.watch, min(comparing_s, (1 - SEARCHING) * budget_s))
        return Searched(best, of_sizes(best.result, clusters, config, steps.watch))


def _clusters(cluster: Cluster, least: int, most: int) -> list[Cluster]:
    """Clusters of the same nodes, with twice as many devices each as the one before.

    Raises:
        BadInput: the cluster is mixed, or its nodes do not make so many devices.
    """
    cluster.require_uniform("a sweep of sizes", "leave --devices out")
    clusters, devices = [], least
    while devices <= most:
        nodes, odd = divmod(devices, cluster.devices_per_node)
        if odd:
            what = f"{devices} devices are no whole nodes of {cluster.devices_per_node}"
            raise BadInput(what, where="--devices", do=f"begin with a multiple of {cluster.devices_per_node}")
        clusters.append(replace(cluster, nodes=nodes))
        devices *= 2
    if not clusters:
        raise BadInput(f"{least} to {most} are none", where="--devices", do="give the smaller number first")
    return clusters
