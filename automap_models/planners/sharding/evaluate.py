"""The result of a sharding plan: its cost, its bound, and the figures of the episode of Auto-MAP that makes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from automap_models.core.result import Bound, Result, Status
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.cost.sharding import objective_value, sharding_cost
from automap_models.envs.sharding.propagation import Propagation

EQUAL = 1e-9
"""Relative difference up to which a plan reaches a bound, and memories count as equal."""


def evaluated(
    problem: ShardingProblem, plan: ShardingPlan, bound: Bound | None = None, **known: Any
) -> Result[ShardingProblem, ShardingPlan]:
    """The plan with its cost, its status, and the figures of the episodes that make it.

    Args:
        problem: one that the plan solves.
        plan: valid.
        bound: a proven limit of the objective, None where nothing is proven.
        known: further fields of the result; `facts` are added to those of the episodes.

    Returns:
        Among its facts are, for each axis of the mesh, `decided_by_propagation` (dimensions of candidates that followed
        from decisions on others) and `reward` (Auto-MAP's, the sum over the episode).
    """
    cost = sharding_cost(problem, plan)
    reached = bound is not None and math.isclose(objective_value(problem, cost), bound.value, rel_tol=EQUAL)
    status: Status = "optimal" if reached else "feasible"
    facts = {**_episodes(problem, plan), **known.pop("facts", {})}
    return Result(problem, plan, cost, status, bound, facts=facts, **known)


def _episodes(problem: ShardingProblem, plan: ShardingPlan) -> Mapping[str, Any]:
    decided, rewards = [], []
    for along, dims in zip(problem.along, plan.dims, strict=True):
        propagation = Propagation(along)
        replay = propagation.replay(problem.classes.sharded(dims).tolist())
        decided.append(len(propagation) - replay.decisions)
        rewards.append(replay.reward)
    return {"decided_by_propagation": tuple(decided), "reward": tuple(rewards)}
