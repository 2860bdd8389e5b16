"""The strategy of a profile: what ZeRO, recomputation and virtual stages make of equal stages of whole blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from automap_models.core.cluster import RESERVE
from automap_models.core.constraints import BLOCKS, UNCONSTRAINED
from automap_models.core.framework import Limits
from automap_models.core.microbatch import required_size
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.cost.profile_layers import PRECISIONS, ProfileWork
from automap_models.errors import BadInput
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem

FORBIDDEN: Mapping[str, tuple[str, ...]] = {"data": ("dp",), "operator": ("tp",), "pipeline": ("pp", "vp")}
"""Kind of parallelism that is not to be used → the fields of a strategy that are then 1."""
PATIENT = StrategiesConfig(patience=1000, budget_s=5.0)
"""How far to search: layers that differ need more strategies tried than blocks that are alike."""


def without(forbidden: Iterable[str]) -> dict[str, int]:
    """The fields of strategies that do without kinds of parallelism."""
    return dict.fromkeys((name for kind in forbidden for name in FORBIDDEN[kind]), 1)


def strategy_problem(space: PlanningSpace, within: Limits | None = None, **fields: Any) -> StrategyProblem | None:
    """The search for the fastest strategy of the space's model; None where strategies do not answer what is asked.

    Fields of strategies that are given, such as the schedule, are fixed.

    That is by the length L, on mixed clusters, with a state of another size than Adam's, of a profile whose layers or
    samples are not known, and under constraints that not all strategies satisfy: these have equal replicas and cut
    between blocks, can do without kinds of parallelism, and stay within a framework whose limits are given.
    """
    problem, constraints = space.base, space.constraints
    others = replace(constraints, forbidden=UNCONSTRAINED.forbidden, equal_replicas=False)
    if others.cut_at == BLOCKS:
        others = replace(others, cut_at=None)
    if within is not None:
        others = replace(others, target=None)
    simple = others.only_work and space.state_factor is None and space.cluster.is_uniform
    if not simple or space.schedule is None or space.device is None:
        return None
    try:
        work = ProfileWork.from_profile(problem.profile)
    except BadInput:
        return None
    fixed = {"precision": PRECISIONS[work.dtype], **without(constraints.forbidden), **fields}
    samples = space.micro_batches * required_size(problem.profile) if space.global_batch is None else space.global_batch
    return StrategyProblem(
        work=work,
        cluster=space.cluster,
        device=space.device,
        global_batch=samples,
        fixed=fixed,
        within=within,
        reserve_bytes=RESERVE * space.cluster.memory,
    )


def best_strategy(
    space: PlanningSpace, within: Limits | None = None, **fields: Any
) -> Result[StrategyProblem, Strategy] | None:
    """The fastest strategy of the space's model that fits; None where there is none, or see `strategy_problem`."""
    problem = strategy_problem(space, within, **fields)
    try:
        result = None if problem is None else StrategiesPlanner(PATIENT).solve(problem)
    except BadInput:  # without the kinds that are forbidden nothing divides the devices
        return None
    return None if result is None or result.plan is None else result


def gain_to_ask(strategy: Strategy, min_gain: float) -> float:
    """How much shorter than plans of stages a strategy has to be to take their place, relatively.

    It is `min_gain` for each thing that a framework has to be told beyond degrees: layers of each stage, virtual
    stages, how many blocks each stage recomputes; and once at least.
    """
    uneven = strategy.layers is not None and len(set(strategy.layers)) > 1
    partial = strategy.recompute_blocks is not None or isinstance(strategy.recompute, tuple)
    return min_gain * max(1, uneven + partial + (strategy.vp > 1))
