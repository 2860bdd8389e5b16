"""What each choice of a strategy buys: the best strategy without it. And what would make one fit where none does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import SILENT, Progress, Watch
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem

QUICK = StrategiesConfig(gap=0.02, budget_s=3.0)
"""Of searches that are to compare with."""
MOST_TIMES = 32
"""Devices that are tried to find out how many fit, over those that there are."""


@dataclass(frozen=True)
class Without:
    """The best strategy without a choice.

    Attributes:
        choice: what is left out, in words.
        estimate: of the best strategy that was found; None where none fits.
    """

    choice: str
    estimate: Estimate | None


def what_choices_buy(
    problem: StrategyProblem, best: Strategy, config: StrategiesConfig = QUICK, watch: Watch = SILENT
) -> list[Without]:
    """The best strategy without each of the choices that the best one makes and that nobody has fixed."""
    result = []
    for choice, restricted in _restrictions(problem, best):
        watch(Progress(f"searching strategies {choice}"))
        try:
            other = StrategiesPlanner(config).solve(restricted)
        except BadInput:
            continue
        result.append(Without(choice, other.cost))
    return result


def _restrictions(problem: StrategyProblem, best: Strategy) -> Iterator[tuple[str, StrategyProblem]]:
    fixed = problem.fixed

    def without(**fields: Any) -> StrategyProblem:
        return replace(problem, fixed={**fixed, **fields})

    if best.recompute != "none" and "recompute" not in fixed:
        yield "without recomputation", without(recompute="none")
    if best.zero and "zero" not in fixed:
        yield "without ZeRO", without(zero=0)
    if best.sequence_parallel and "sequence_parallel" not in fixed:
        yield "without sequence parallelism", without(sequence_parallel=False)
    if best.cp > 1 and "cp" not in fixed:
        yield "without context parallelism", without(cp=1)
    if best.stages > 1 and "pp" not in fixed and "layers" not in fixed:
        yield "without a pipeline", without(pp=1)
    if best.layers is not None and "layers" not in fixed:
        yield "with equal cuts", replace(problem, equal_layers=True)
    if (best.schedule, best.vp) != ("1f1b", 1) and best.pp > 1 and not {"schedule", "vp"} & set(fixed):
        yield "with plain 1F1B", without(schedule="1f1b", vp=1)


def what_would_fit(problem: StrategyProblem, reason: Infeasible, watch: Watch = SILENT) -> Infeasible:
    """The reason why nothing fits, with the least change with which something does: tried, and found to fit."""
    for change, changed in _changes(problem):
        watch(Progress(f"trying {change}"))
        try:
            other = StrategiesPlanner(QUICK).solve(changed)
        except BadInput:
            continue
        if other.plan is not None:
            step = f"the best strategy found then takes {other.cost.step_s:.4g} s"
            return Infeasible(reason.what, where=reason.where, do=f"{change}: {step}")
    return reason


def _changes(problem: StrategyProblem) -> Iterator[tuple[str, StrategyProblem]]:
    if problem.reserve_bytes:
        yield "reserve nothing", replace(problem, reserve_bytes=0.0)
    for name in problem.fixed:
        if name != "precision":
            yield f"leave `{name}` open", replace(problem, fixed=_but(problem.fixed, name))
    if len(problem.fixed) > 1:
        precision = {name: value for name, value in problem.fixed.items() if name == "precision"}
        yield "leave all fields open", replace(problem, fixed=precision)
    times = 2
    while times <= MOST_TIMES and not problem.cluster.groups:
        cluster = problem.cluster
        larger = replace(cluster, nodes=cluster.nodes * times)
        yield f"give {larger.devices} devices", replace(problem, cluster=larger)
        times *= 2


def _but(fixed: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fixed.items() if key != name}


def of_sizes(
    problem: StrategyProblem, clusters: list[Cluster], config: StrategiesConfig, watch: Watch = SILENT
) -> list[Result[StrategyProblem, Strategy]]:
    """The best strategy on each of several clusters."""
    results = []
    for cluster in clusters:
        watch(Progress(f"searching strategies of {cluster.devices} devices"))
        results.append(StrategiesPlanner(config).solve(replace(problem, cluster=cluster)))
    return results
