"""The cheapest sharding plan on a mesh of one or two axes, by one mixed-integer program over classes (scipy's HiGHS).

x[a, c] says that axis a shards class c. Along one axis costs are linear in x, because an instruction has at most one
sharded class. Across two axes they have products x[0, c]·x[1, d]: what both divide is divided by both, and what is
summed along one is divided by the other. Each product is a variable y with y ≤ x[0, c], y ≤ x[1, d] and
y ≥ x[0, c] + x[1, d] - 1, which makes the program exact.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.priced_sharding import PricedShardingPlan, PricedShardingProblem
from automap_models.core.sharding import ShardingOptimality
from automap_models.cost.sharding import UNUSED, AxisCost, axis_costs, sharding_price
from automap_models.cost.sharding import ShardingPrice as Price
from automap_models.errors import Infeasible
from automap_models.planners.base import PricedPlanner
from automap_models.planners.sharding.milp import TIME_LIMIT_S, plan_of

_EQUAL = 1e-9
_GIGABYTE = 1e9


class CheapestPlanner(PricedPlanner):
    """Solves the program; without the time to prove it, says how far the plan may be off."""

    name: ClassVar[str] = "milp"

    def plan(self, problem: PricedShardingProblem) -> PricedShardingPlan:
        """The plan of least time that fits the memory, or of least memory (and of those the fastest)."""
        begun = time.perf_counter()
        limit_s = self.options.time_limit_s or TIME_LIMIT_S
        program = _Program(problem)
        if problem.objective == "time":
            solved = program.solve(program.time_s, limit_s, program.cluster_bytes)
            if solved is None:
                raise _does_not_fit(problem, program, limit_s)
        else:
            least = program.solve(program.memory_bytes, limit_s, np.inf)
            if least is None:
                raise _none_found(problem, limit_s)
            solved = program.solve(program.time_s, limit_s, least.reached * (1 + _EQUAL)) or least
            solved = _Solved(solved.axis_of, least.reached, least.bound, least.proven)
        return _plan_of(problem, solved, self.name, time.perf_counter() - begun)


def price_of(problem: PricedShardingProblem, axis_of: IntArray) -> Price:
    """What a choice of classes costs on the problem's cluster and mesh; see cost.sharding.sharding_price."""
    return sharding_price(problem.work, _axes(problem), axis_of)


def replicated_price(problem: PricedShardingProblem) -> Price:
    """What it costs when every device does everything."""
    return price_of(problem, np.full(len(problem.classes), UNUSED))


def _axes(problem: PricedShardingProblem) -> tuple[AxisCost, ...]:
    return axis_costs(problem.cluster, [axis.size for axis in problem.mesh], problem.launch_s)


@dataclass(frozen=True)
class _Solved:
    """The axis of each class, the objective that it reaches, and a bound that no choice is below."""

    axis_of: IntArray
    reached: float
    bound: float
    proven: bool


@dataclass(frozen=True)
class _Amount:
    """constant + linear·(x, y): a cost of a choice, linear in the program's variables, and never below `floor`."""

    constant: float
    linear: FloatArray
    floor: float


class _Program:
    """The variables x and y, and what time and memory are in them."""

    def __init__(self, problem: PricedShardingProblem) -> None:
        self.problem, work, axes = problem, problem.work, _axes(problem)
        self.axis, self.classes = np.nonzero(problem.allowed)
        self.cluster_bytes = float(problem.cluster.memory)
        savings = np.array([axis.saved for axis in axes])
        rates = np.array([axis.s_per_byte for axis in axes])
        starts = np.array([axis.start_s for axis in axes])
        sums, devices = work.activation_sums + work.gradient_sums, math.prod(axis.size for axis in axes)
        at = self.classes
        self.first, self.second = self._pairs(work.compute + work.held + sums + sums.T)
        c, d = at[self.first], at[self.second]
        both = float(savings.prod())
        summed = -rates[:1] * savings[-1:] * sums[c, d] - rates[-1:] * savings[:1] * sums[d, c]
        alone = sums[at, at] * rates[self.axis] + work.starts[at] * starts[self.axis]
        self.time_s = _Amount(
            work.launch_s + work.compute_s,
            np.concatenate([alone - savings[self.axis] * work.compute[at, at], both * work.compute[c, d] + summed]),
            work.launch_s + work.compute_s / devices,
        )
        self.memory_bytes = _Amount(
            work.held_bytes,
            np.concatenate([-savings[self.axis] * work.held[at, at], both * work.held[c, d]]),
            work.held_bytes / devices,
        )

    def solve(self, cost: _Amount, limit_s: float, memory_bytes: float) -> _Solved | None:
        """The choice of least cost within the memory; None if there is none, or none was found in time."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        scale = float(np.abs(cost.linear).max(initial=0.0)) or 1.0
        constraints = [LinearConstraint(rows, ub=upper) for rows, upper in self._constraints() if rows.shape[0]]
        if np.isfinite(memory_bytes):
            row = self.memory_bytes.linear[None, :] / _GIGABYTE
            constraints.append(LinearConstraint(row, ub=(memory_bytes - self.memory_bytes.constant) / _GIGABYTE))
        integral = (np.arange(cost.linear.size) < self.axis.size).astype(np.int64)
        solved = milp(
            cost.linear / scale,
            integrality=integral,
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0, "time_limit": limit_s},
        )
        if solved.x is None:
            return None
        axis_of = np.full(len(self.problem.classes), UNUSED)
        chosen = np.flatnonzero(solved.x[: self.axis.size] > 0.5)
        axis_of[self.classes[chosen]] = self.axis[chosen]
        price = price_of(self.problem, axis_of)
        reached = price.time_s if cost is self.time_s else price.memory_bytes
        if solved.status == 0:
            return _Solved(axis_of, reached, reached, True)
        below = -np.inf if solved.mip_dual_bound is None else cost.constant + float(solved.mip_dual_bound) * scale
        return _Solved(axis_of, reached, min(reached, max(below, cost.floor)), False)

    def _pairs(self, together: FloatArray) -> tuple[IntArray, IntArray]:
        """Positions among x of all pairs on different axes whose classes meet in a cost."""
        one, other = (np.flatnonzero(self.axis == a) for a in (0, 1))
        meet = together[np.ix_(self.classes[one], self.classes[other])] != 0
        meet &= self.classes[one][:, None] != self.classes[other]
        first, second = np.nonzero(meet)
        return one[first], other[second]

    def _constraints(self) -> list[tuple[Any, NDArray[np.float64]]]:
        """Conflicts along each axis, one axis for each class, and products: rows and what they are at most."""
        n, m = self.axis.size, self.first.size
        adjacency = self.problem.classes.adjacency
        i, j = np.triu_indices(n, 1)
        same_axis = (self.axis[i] == self.axis[j]) & adjacency[self.classes[i], self.classes[j]]
        exclude = same_axis | (self.classes[i] == self.classes[j])
        i, j, y = i[exclude], j[exclude], n + np.arange(m)
        rows = [
            (_rows([(i, 1.0), (j, 1.0)], n + m), np.ones(i.size)),
            (_rows([(y, 1.0), (self.first, -1.0)], n + m), np.zeros(m)),
            (_rows([(y, 1.0), (self.second, -1.0)], n + m), np.zeros(m)),
            (_rows([(self.first, 1.0), (self.second, 1.0), (y, -1.0)], n + m), np.ones(m)),
        ]
        return rows


def _rows(terms: list[tuple[IntArray, float]], columns: int) -> Any:
    """A sparse matrix: row r has each coefficient in the r-th of its columns."""
    size = terms[0][0].size
    values = np.concatenate([np.full(size, coefficient) for _, coefficient in terms])
    places = np.tile(np.arange(size), len(terms)), np.concatenate([where for where, _ in terms])
    return coo_array((values, places), (size, columns)).tocsr()


def _plan_of(problem: PricedShardingProblem, solved: _Solved, planner: str, search_s: float) -> PricedShardingPlan:
    plans = tuple(
        plan_of(along, np.flatnonzero(solved.axis_of == a).tolist(), planner, search_s=search_s)
        for a, along in enumerate(problem.along)
    )
    optimality = ShardingOptimality(solved.bound, "exact" if solved.proven else "relaxation")
    return PricedShardingPlan(problem.mesh, plans, planner, search_s, optimality)


def _does_not_fit(problem: PricedShardingProblem, program: _Program, limit_s: float) -> Infeasible:
    least = program.solve(program.memory_bytes, limit_s, np.inf)
    if least is None or least.bound <= program.cluster_bytes:
        return _none_found(problem, limit_s)
    cluster = problem.cluster
    return Infeasible(
        f"every plan needs {least.bound / 1e9:.1f} GB or more on each device, "
        f"cluster {cluster.name} has {cluster.memory / 1e9:.1f} GB",
        where=problem.model,
        do="give a larger --mesh or a smaller --batch",
    )


def _none_found(problem: PricedShardingProblem, limit_s: float) -> Infeasible:
    return Infeasible(f"no plan was found in {limit_s:.3g} s", where=problem.model, do="raise the planner's time limit")
