"""The proven optimum of a sharding problem: a maximum-weight independent set of classes, by scipy's HiGHS.

With one mesh axis and no resharding, the legal plans are the sets of classes of which no two conflict. As many
candidates as possible are partitioned; of plans with equally many, the one that partitions most bytes is taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.sharding import ShardingOptimality, ShardingPlan, ShardingProblem
from automap_models.envs.sharding.propagation import Propagation, sharded_classes
from automap_models.planners.base import ShardingPlanner

TIME_LIMIT_S = 60.0
_ROUNDING = 1e-6


class IndependentSet(NamedTuple):
    """Chosen classes, and a weight that no independent set exceeds; `proven` where the chosen ones reach it."""

    chosen: IntArray
    bound: float
    proven: bool


class ShardingMilpPlanner(ShardingPlanner):
    """Solves the problem as a mixed-integer program; without the time to prove it, says how far it may be off."""

    name: ClassVar[str] = "milp"

    def plan(self, problem: ShardingProblem) -> ShardingPlan:
        """The plan that partitions the most candidates; see Planner.plan."""
        begun = time.perf_counter()
        best = most_partitioned(problem, self.options.time_limit_s or TIME_LIMIT_S)
        return plan_of(
            problem,
            best.chosen.tolist(),
            self.name,
            search_s=time.perf_counter() - begun,
            optimality=ShardingOptimality(best.bound, "exact" if best.proven else "relaxation"),
        )


def plan_of(
    problem: ShardingProblem,
    sharded: Sequence[int],
    planner: str,
    *,
    search_s: float = 0.0,
    episodes: int = 0,
    optimality: ShardingOptimality | None = None,
    interrupted: bool = False,
) -> ShardingPlan:
    """The plan that shards these classes, with the figures of an episode that makes it."""
    propagation = Propagation(problem)
    replay = propagation.replay(sharded)
    return ShardingPlan(
        kind=problem.kind,
        axis_size=problem.axis_size,
        variables=problem.classes.variables,
        dims=problem.classes.dims(sharded_classes(replay.state)),
        planner=planner,
        decided_by_propagation=len(propagation) - replay.decisions,
        reward=replay.reward,
        search_s=search_s,
        episodes=episodes,
        optimality=optimality,
        interrupted=interrupted,
    )


def most_partitioned(problem: ShardingProblem, time_limit_s: float = TIME_LIMIT_S) -> IndependentSet:
    """The classes that partition the most candidates; of equal ones, the most bytes."""
    most = independent_set(problem, problem.weights.astype(np.float64), time_limit_s=time_limit_s)
    if not most.proven:
        return most
    heaviest = independent_set(
        problem, problem.weights_bytes, least=(problem.weights, round(most.bound)), time_limit_s=time_limit_s
    )
    return most._replace(chosen=heaviest.chosen)


def independent_set(
    problem: ShardingProblem,
    weights: FloatArray,
    *,
    least: tuple[IntArray, int] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> IndependentSet:
    """Classes of greatest weight of which no two conflict.

    Args:
        weights: [k] ≥ 0; classes that cannot be sharded or weigh nothing are left out.
        least: other weights [k] and what the chosen ones must reach of them.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    largest = float(weights.max(initial=0.0)) or 1.0
    constraints = [LinearConstraint(_edges(problem), ub=1.0)]
    if least is not None:
        constraints.append(LinearConstraint(least[0][None, :], lb=least[1]))
    solved = milp(
        -weights / largest,
        integrality=np.ones(weights.size, dtype=np.int64),
        bounds=Bounds(0.0, np.where(problem.live & (weights > 0), 1.0, 0.0)),
        constraints=constraints,
        options={"mip_rel_gap": 0.0, "time_limit": time_limit_s},
    )
    chosen = np.flatnonzero(solved.x > 0.5) if solved.x is not None else np.empty(0, dtype=np.int64)
    reached = float(weights[chosen].sum())
    if solved.status == 0:
        return IndependentSet(chosen, reached, proven=True)
    bound = solved.mip_dual_bound
    known = float(weights.sum()) if bound is None else min(float(weights.sum()), -float(bound) * largest)
    return IndependentSet(chosen, max(reached, known + _ROUNDING), proven=False)


def _edges(problem: ShardingProblem) -> NDArray[np.float64]:
    """[c, k] a row of two ones for each pair of classes in conflict."""
    conflicts = problem.classes.conflicts
    rows = np.zeros((max(1, len(conflicts)), len(problem.classes)))
    rows[np.arange(len(conflicts)), conflicts[:, 0]] = 1.0
    rows[np.arange(len(conflicts)), conflicts[:, 1]] = 1.0
    return rows
