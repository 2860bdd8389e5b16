"""The strategy of a profile: what ZeRO, recomputation and virtual stages make of equal stages of whole blocks."""

from __future__ import annotations

from functools import lru_cache

from automap_models.core.cluster import RESERVE
from automap_models.core.microbatch import required_size
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.cost.profile_layers import PRECISIONS, ProfileWork
from automap_models.errors import BadInput
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem

PATIENT = StrategiesConfig(patience=1000, budget_s=5.0)
"""How far to search: layers that differ need more strategies tried than blocks that are alike."""


def strategy_problem(space: PlanningSpace) -> StrategyProblem | None:
    """The search for the fastest strategy of the space's model; None where strategies do not answer what is asked.

    That is by the length L, on mixed clusters, under constraints, with a state of another size than Adam's, and of a
    profile whose layers or samples are not known.
    """
    problem = space.whole
    simple = space.constraints.only_work and space.state_factor is None and space.cluster.is_uniform
    if not simple or space.schedule is None or space.device is None:
        return None
    try:
        work = ProfileWork.of(problem.profile)
    except BadInput:
        return None
    samples = space.micro_batches * required_size(problem.profile) if space.global_batch is None else space.global_batch
    return StrategyProblem(
        work=work,
        cluster=space.cluster,
        device=space.device,
        global_batch=samples,
        fixed={"precision": PRECISIONS[work.dtype]},
        reserve_bytes=RESERVE * space.cluster.memory,
    )


@lru_cache(maxsize=1)
def best_strategy(space: PlanningSpace) -> Result[StrategyProblem, Strategy] | None:
    """The fastest strategy of the space's model that fits; None where there is none, or see `strategy_problem`."""
    problem = strategy_problem(space)
    result = None if problem is None else StrategiesPlanner(PATIENT).solve(problem)
    return None if result is None or result.plan is None else result
