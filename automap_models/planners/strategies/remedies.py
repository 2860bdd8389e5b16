"""What would make a strategy fit where none does: the least change, tried, and found to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from automap_models.core.estimate import Estimate
from automap_models.core.units import counted
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import SILENT, Progress, Watch
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner, any_family
from automap_models.planners.strategies.problem import StrategyProblem

QUICK = StrategiesConfig(gap=0.02, budget_s=3.0)
"""Of searches that are to find out whether anything fits."""
MOST_TIMES = 32
"""Devices that are tried to find out how many fit, over those that there are."""


def what_would_fit(problem: StrategyProblem, reason: Infeasible, watch: Watch = SILENT) -> Infeasible:
    """The reason why nothing fits, with the least change with which something does: tried, and found to fit.

    Changes come in the order of what they ask for: less in reserve, one field left open, all of them, fewer samples,
    more devices. Of samples it is the largest part of them that fits, of devices the smallest number of nodes.
    """
    for change, changed in _changes(problem):
        best = _fitting(changed, change, watch)
        if best is not None:
            return _with(reason, change, best)
    fewer = _fewer_samples(problem, watch)
    if fewer is not None:
        return _with(reason, *fewer)
    more = _more_devices(problem, watch)
    return reason if more is None else _with(reason, *more)


def _with(reason: Infeasible, change: str, best: Estimate) -> Infeasible:
    step = f"the best strategy found then takes {best.step_s:.4g} s"
    return Infeasible(reason.what, where=reason.where, do=f"{change}: {step}")


def _fitting(problem: StrategyProblem, change: str, watch: Watch) -> Estimate | None:
    """The price of the best strategy found; None where nothing fits."""
    watch(Progress(f"trying {change}"))
    try:
        best: Estimate | None = StrategiesPlanner(QUICK).solve(problem).cost
    except BadInput:
        return None
    return best


def _changes(problem: StrategyProblem) -> Iterator[tuple[str, StrategyProblem]]:
    free = replace(problem, reserve_bytes=0.0, rank_reserve_bytes={})
    if problem.reserve_bytes or problem.rank_reserve_bytes:
        yield "reserve nothing", free
    for name in problem.fixed:
        if name != "precision":
            yield f"leave `{name}` open", replace(problem, fixed=_but(problem.fixed, name))
    if problem.within is not None:
        yield "leave `target` out", replace(problem, within=None)
    if len(problem.fixed) > 1:
        precision = {name: value for name, value in problem.fixed.items() if name == "precision"}
        yield "leave all fields open", replace(problem, fixed=precision)


def _but(fixed: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fixed.items() if key != name}


def _fewer_samples(problem: StrategyProblem, watch: Watch) -> tuple[str, Estimate] | None:
    """The largest part of the samples that fits: a half, a quarter, and so on."""
    samples = problem.global_batch
    while samples % 2 == 0:
        samples //= 2
        change = f"train {counted(samples, 'sample')} a step"
        best = _fitting(replace(problem, global_batch=samples), change, watch)
        if best is not None:
            return change, best
    return None


def _more_devices(problem: StrategyProblem, watch: Watch) -> tuple[str, Estimate] | None:
    """The least number of nodes that fits: more and more until something does, then between by bisection.

    Numbers that samples or layers cannot be divided by are passed over.
    """
    cluster = problem.cluster
    if cluster.groups:
        return None

    def larger(nodes: int) -> StrategyProblem:
        return replace(problem, cluster=replace(cluster, nodes=nodes))

    def with_nodes(nodes: int) -> tuple[str, Estimate] | None:
        change = f"give {larger(nodes).cluster.devices} devices"
        best = _fitting(larger(nodes), change, watch)
        return None if best is None else (change, best)

    few, known = cluster.nodes, None
    while few < MOST_TIMES * cluster.nodes and known is None:
        between = [nodes for nodes in range(few + 1, 2 * few + 1) if any_family(larger(nodes))]
        known = with_nodes(between[-1]) if between else None
        few = 2 * few if known is None else few
    if known is None:
        return None
    low, high = -1, len(between) - 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = with_nodes(between[middle])
        low, high, known = (low, middle, fits) if fits is not None else (middle, high, known)
    return known
