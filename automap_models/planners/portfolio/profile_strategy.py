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
from automap_models.core.training_state import default_state_factor
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


def strategy_problem(space: PlanningSpace, within: Limits | None = None, **fields: Any) -> StrategyProblem | str:
    """The search for the fastest strategy of the space's model; why there is none, where strategies do not answer.

    Fields of strategies that are given, such as the schedule, are fixed.

    That is by the length L, on mixed clusters, with a state of another size than Adam's, of a profile whose layers or
    samples are not known, and under constraints that not all strategies satisfy: these have equal replicas and cut
    between blocks, can do without kinds of parallelism and deep pipelines, and stay within a framework whose limits
    are given.
    """
    problem = space.base
    reason = _why_none(space, within)
    if reason is not None or space.device is None:
        return reason or f"nothing is known of {problem.profile.device or 'the devices'} but the times of the profile"
    try:
        work = ProfileWork.from_profile(problem.profile)
    except BadInput as error:
        return f"{error.where} {error.what}"
    fixed = {"precision": PRECISIONS[work.dtype], **without(space.constraints.forbidden), **fields}
    samples = space.micro_batches * required_size(problem.profile) if space.global_batch is None else space.global_batch
    return StrategyProblem(
        work=work,
        cluster=space.cluster,
        device=space.device,
        global_batch=samples,
        fixed=fixed,
        within=within,
        reserve_bytes=RESERVE * space.cluster.memory,
        most_ranks=space.constraints.max_stages,
    )


def _why_none(space: PlanningSpace, within: Limits | None) -> str | None:
    """Why strategies do not answer what is asked of plans; None where they do."""
    others = replace(space.constraints, forbidden=UNCONSTRAINED.forbidden, equal_replicas=False, max_stages=None)
    if others.cut_at == BLOCKS:
        others = replace(others, cut_at=None)
    if within is not None:
        others = replace(others, target=None)
    if space.schedule is None:
        return "they have no length L"
    if not space.cluster.is_uniform:
        return f"they are of equal devices, and cluster {space.cluster.name} is mixed"
    if space.state_factor not in (None, default_state_factor(space.model.profile)):
        return f"they have Adam's state, not `state_factor={space.state_factor:g}`"
    if not others.only_work:
        return f"they know no {others.in_words}" if others.in_words else "the framework takes none"
    return None


def best_strategy(
    space: PlanningSpace, within: Limits | None = None, **fields: Any
) -> Result[StrategyProblem, Strategy] | str:
    """The fastest strategy of the space's model that fits; or why there is none."""
    problem = strategy_problem(space, within, **fields)
    if isinstance(problem, str):
        return f"not searched: {problem}"
    try:
        result = StrategiesPlanner(PATIENT).solve(problem)
    except BadInput as error:  # without the kinds that are forbidden nothing divides the devices
        return f"none: {error.what}"
    return "none fits the memory" if result.plan is None else result


def gain_to_ask(strategy: Strategy, min_gain: float) -> float:
    """How much shorter than plans of stages a strategy has to be to take their place, relatively.

    It is `min_gain` for each thing that a framework has to be told beyond degrees: layers of each stage, virtual
    stages, how many blocks each stage recomputes; and once at least.
    """
    uneven = strategy.layers is not None and len(set(strategy.layers)) > 1
    partial = strategy.recompute_blocks is not None or isinstance(strategy.recompute, tuple)
    return min_gain * max(1, uneven + partial + (strategy.vp > 1))
