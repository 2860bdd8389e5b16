"""The best sharding plan on a mesh of one or two axes, proven, by one mixed-integer program over classes.

x[a, c] says that axis a shards class c. With no resharding, the legal plans are the sets of x of which no two on one
axis are of classes in conflict, and no two are of one class.

    axis data     x[0, batch]                       a product for every pair of classes on
                      │  y = x[0, batch]·x[1, out]  different axes that meet in an instruction,
    axis model    x[1, out] ── conflict ── x[1, in] a value or a sum

Variables, time and memory along one axis are linear in x, because an instruction has at most one sharded class. Across
two axes time and memory have products x[0, c]·x[1, d]: what both divide is divided by both, and what is summed along
one is divided by the other. Each product is a variable y with y ≤ x[0, c], y ≤ x[1, d] and y ≥ x[0, c] + x[1, d] - 1,
which makes the program exact.

Sums over classes c, d, … that one axis shards can be merged (core.sharding_classes.MergedSums). For each axis a
variable z ≤ x[a, c], z ≤ x[a, d], … says that they are. Where the other axis shards a class e of the merged sum's
dimensions, v ≥ z + x[b, e] - 1 says that less is saved. Less time makes z as large and v as small as they may be, so
that v is z·x[b, e].

The solver is HiGHS in scipy, of the base install, and not OR-Tools, which solves the programs of placement (extra
[place]): with pandas it would add 160 MB to every install that plans shardings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.result import TIE, Bound, Result, Status
from automap_models.core.sharding import UNUSED, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import MergedSums, ShardingWork
from automap_models.cost.sharding import ShardingCount, axis_costs, objective_value, sharding_cost
from automap_models.envs.sharding.propagation import Propagation
from automap_models.errors import Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch

_GREEDY_IS_BETTER = (
    "The search was stopped before the program was solved: the plan is the greedy one, the best known so far."
)


@dataclass(frozen=True)
class ShardingMilpConfig:
    """How much work the program may take.

    Attributes:
        nodes: of the solver's tree, after which the best plan so far is returned, with how far it may be off; programs
            of traced models take one.
    """

    nodes: int = 10_000


class ShardingMilpPlanner(Planner[ShardingProblem, ShardingPlan, ShardingMilpConfig]):
    """Solves the program. Without the time to prove a plan the best and the greedy one compete, and the bound is given.

    Of plans that partition equally many variables it takes one with most bytes, of those of equal memory a fastest one.
    """

    name: ClassVar[str] = "milp"
    config_type = ShardingMilpConfig

    def __init__(self, config: ShardingMilpConfig | None = None) -> None:
        super().__init__(config)
        import scipy.optimize  # noqa: F401  (the import takes half a second: pay for it before any deadline runs)

    def solve(
        self, problem: ShardingProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[ShardingProblem, ShardingPlan]:
        """See Planner.solve."""
        begun = time.perf_counter()
        program = _Program(problem, self.config.nodes)
        watch(Progress(f"solving a program of {program.variables:,} variables", 0, 2))
        best = program.least(program.objective, program.limits, deadline)
        if best is None:
            reason, proven = program.no_plan(deadline)
            if proven:
                taken_s = time.perf_counter() - begun
                return Result(problem, None, None, "infeasible", reason=reason, taken_s=taken_s)
            return self._stopped(problem, None, program.objective.floor, reason, begun)
        if not best.proven:
            watch(Progress("out of time", 2, 2))
            return self._stopped(problem, best.axis_of, best.bound, None, begun)
        plan = ShardingPlan.from_classes(problem, best.axis_of, self.name)
        value = objective_value(problem, sharding_cost(problem, plan))
        if program.then is not None and not deadline.passed:
            watch(Progress("choosing among the plans that are equally good", 1, 2))
            limit = value * (1 + TIE) if problem.objective == "memory" else 0.5 - value
            chosen = program.least(program.then, [(program.objective, limit)], deadline)
            plan = plan if chosen is None else ShardingPlan.from_classes(problem, chosen.axis_of, self.name)
        watch(Progress("the plan is proven the best", 2, 2))
        return evaluated(problem, plan, Bound(value, "exact"), taken_s=time.perf_counter() - begun)

    def _stopped(
        self, problem: ShardingProblem, axis_of: IntArray | None, below: float, reason: Infeasible | None, begun: float
    ) -> Result[ShardingProblem, ShardingPlan]:
        """The better of the solver's best plan and the greedy one, where the time was up before the proof.

        Args:
            axis_of: [k] the solver's best plan; None where it has none.
            below: no plan is below it; the negative of a number of variables.
            reason: why there is no plan, if the greedy one does not fit either.
        """
        greedy = ShardingPlan.from_classes(problem, _greedy(problem), self.name)
        start_plans = [] if axis_of is None else [ShardingPlan.from_classes(problem, axis_of, self.name)]
        plan = min([*start_plans, greedy], key=lambda plan: _rank(problem, plan))  # of equals the first
        value, _ = _rank(problem, plan)
        if math.isinf(value):
            return Result(problem, None, None, "stopped", reason=reason, taken_s=time.perf_counter() - begun)
        notes = (_GREEDY_IS_BETTER,) if plan is greedy else ()
        bound = Bound(abs(min(below, value)), "relaxation")
        return evaluated(problem, plan, bound, notes=notes, taken_s=time.perf_counter() - begun)


def evaluated(
    problem: ShardingProblem, plan: ShardingPlan, bound: Bound | None = None, **more_facts: Any
) -> Result[ShardingProblem, ShardingPlan]:
    """The plan with its cost, its status, and the figures of the episodes that make it.

    Args:
        bound: a proven limit of the objective, None where nothing is proven.
        more_facts: further fields of the result; `facts` are added to those of the episodes.

    Returns:
        Among its facts are, for each axis of the mesh, `decided_by_propagation` (dimensions of candidates that followed
        from decisions on others) and `reward` (Auto-MAP's, the sum over the episode).
    """
    cost = sharding_cost(problem, plan)
    reached = bound is not None and math.isclose(objective_value(problem, cost), bound.value, rel_tol=TIE)
    status: Status = "optimal" if reached else "feasible"
    facts = {**_episodes(problem, plan), **more_facts.pop("facts", {})}
    return Result(problem, plan, cost, status, bound, facts=facts, **more_facts)


def _episodes(problem: ShardingProblem, plan: ShardingPlan) -> Mapping[str, Any]:
    decided, rewards = [], []
    for along, dims in zip(problem.along, plan.dims, strict=True):
        propagation = Propagation(along)
        replay = propagation.replay(problem.classes.sharded(dims).tolist())
        decided.append(len(propagation) - replay.decisions)
        rewards.append(replay.reward)
    return {"decided_by_propagation": tuple(decided), "reward": tuple(rewards)}


def _greedy(problem: ShardingProblem) -> IntArray:
    """[k] the axis of each class where every axis in turn shards whatever it can."""
    axis_of = np.full(len(problem.classes), UNUSED)
    for axis, along in enumerate(problem.along):
        taken = np.flatnonzero(axis_of != UNUSED).tolist()
        axis_of[Propagation(along).greedy(linkage_groups=along.axis.kind == "operator", unavailable=taken)] = axis
    return axis_of


def _rank(problem: ShardingProblem, plan: ShardingPlan) -> tuple[float, float]:
    """What is less for a better plan, first by the objective; infinite where the plan does not fit the memory."""
    cost = sharding_cost(problem, plan)
    if isinstance(cost, ShardingCount):
        return -float(cost.partitioned), -cost.nbytes
    if problem.objective == "memory":
        return cost.memory_bytes, cost.time_s
    return (cost.time_s if cost.memory_bytes <= problem.limit_bytes else math.inf), cost.memory_bytes


@dataclass(frozen=True)
class _Amount:
    """constant + linear·(x, y): a cost of a choice, linear in the program's variables, and never below `floor`."""

    constant: float
    linear: FloatArray
    floor: float

    def value(self, values: FloatArray) -> float:
        """The cost of values of the program's variables."""
        return self.constant + float(self.linear @ values)

    @property
    def scale(self) -> float:
        """The largest coefficient."""
        return float(np.abs(self.linear).max(initial=0.0)) or 1.0

    @property
    def unit(self) -> float:
        """In which limits are given: the solver lets them be exceeded by a millionth of it, 10 GB by some 10 bytes."""
        return self.scale * 1e-3


@dataclass(frozen=True)
class _Solved:
    """The axis of each class, and a bound that no choice is below; `proven` where this choice reaches it."""

    axis_of: IntArray
    bound: float
    proven: bool


_Limits = Sequence[tuple[_Amount, float]]
"""Amounts and what each is at most."""


class _Merged(NamedTuple):
    """Sums that are merged along an axis if x is 1 in all of the columns `over`; x of their dimensions on the other."""

    axis: int
    sums: MergedSums
    over: list[int]
    others: list[int]


class _Program:
    """The variables x, y, z and v, and what is least in them.

    Attributes:
        objective: what shall be least.
        then: what shall be least of the plans that are equally good; None where the first will do.
        limits: what every plan has to keep to: the memory of a device where time is the objective.
    """

    def __init__(self, problem: ShardingProblem, nodes: int) -> None:
        self.problem, self._nodes = problem, nodes
        self.axis, self.classes = np.nonzero(problem.allowed)
        self.first = self.second = np.empty(0, dtype=np.int64)
        self.merged: list[_Merged] = []
        self.limits: _Limits = []
        self.then: _Amount | None = None
        if problem.objective == "count":
            self.objective = self._counted([along.weights for along in problem.along])
            self.then = self._counted([along.weights_bytes for along in problem.along])
        else:
            assert problem.work is not None  # the problem has checked it
            time_s, self.memory = self._priced(problem.work)
            self.objective = time_s if problem.objective == "time" else self.memory
            self.then = None if problem.objective == "time" else time_s
            self.limits = [(self.memory, problem.limit_bytes)] if problem.objective == "time" else []

    @property
    def variables(self) -> int:
        """Number of x, y, z and v."""
        return self.axis.size + self.first.size + 2 * len(self.merged)

    def least(self, amount: _Amount, limits: _Limits, deadline: Deadline) -> _Solved | None:
        """The choice of least cost within the limits; None if there is none, or none was found."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        constraints = [LinearConstraint(rows, ub=upper) for rows, upper in self._constraints() if rows.shape[0]]
        constraints += [
            LinearConstraint(limited.linear[None, :] / limited.unit, ub=(most - limited.constant) / limited.unit)
            for limited, most in limits
        ]
        solved = milp(
            amount.linear / amount.scale,
            integrality=(np.arange(self.variables) < self.axis.size).astype(np.int64),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0, "time_limit": deadline.remaining_s, "node_limit": self._nodes},
        )
        proven = solved.status == 0
        if solved.x is not None:
            values = np.round(solved.x)
        elif solved.status != 2 and all(limited.constant <= most for limited, most in limits):
            values = np.zeros(self.variables)  # stopped before any plan: every device does everything
        else:
            return None
        axis_of = np.full(len(self.problem.classes), UNUSED)
        chosen = np.flatnonzero(values[: self.axis.size])
        axis_of[self.classes[chosen]] = self.axis[chosen]
        reached = amount.value(values)
        if proven:
            return _Solved(axis_of, reached, True)
        dual = solved.mip_dual_bound
        # The solver's own bound may be wrong by a millionth of the largest coefficient.
        below = -math.inf if dual is None else amount.constant + (float(dual) - 1e-6) * amount.scale
        return _Solved(axis_of, min(reached, max(below, amount.floor)), False)

    def no_plan(self, deadline: Deadline) -> tuple[Infeasible, bool]:
        """Why there is no plan within the memory, and whether that is proven."""
        cluster, model = self.problem.cluster, self.problem.model
        least = self.least(self.memory, [], deadline)
        if least is None or least.bound <= self.problem.limit_bytes:
            return Infeasible("no plan was found in time", where=model, do="raise the planner's `nodes`"), False
        reason = Infeasible(
            f"every plan needs {least.bound / 1e9:.1f} GB or more on each device, "
            f"cluster {cluster.name} has {self.problem.limit_bytes / 1e9:.1f} GB",
            where=model,
            do="give a larger `mesh` or a smaller `batch`",
        )
        return reason, True

    def _counted(self, weights: Sequence[FloatArray | IntArray]) -> _Amount:
        """What is partitioned, negative so that less is better; `weights` are [axes][k]."""
        linear = -np.stack(weights)[self.axis, self.classes].astype(np.float64)
        return _Amount(0.0, linear, float(linear.sum()))

    def _priced(self, work: ShardingWork) -> tuple[_Amount, _Amount]:
        """Time of a step (s) and memory of a device (bytes); this makes the products y."""
        axes = axis_costs(self.problem.cluster, [axis.size for axis in self.problem.mesh], self.problem.launch_s)
        savings = np.array([axis.saved for axis in axes])
        rates = np.array([axis.s_per_byte for axis in axes])
        starts = np.array([axis.start_s for axis in axes])
        sums, devices = work.activation_sums + work.gradient_sums, math.prod(axis.size for axis in axes)
        k = self.classes
        self.first, self.second = self._pairs(work.compute + work.memory + sums + sums.T)
        c, d = k[self.first], k[self.second]
        both = float(savings.prod())
        summed = -rates[:1] * savings[-1:] * sums[c, d] - rates[-1:] * savings[:1] * sums[d, c]
        alone = sums[k, k] * rates[self.axis] + work.starts[k] * starts[self.axis]
        self.merged = self._merged(work.merged)
        saved_s = np.array([rates[m.axis] * m.sums.nbytes for m in self.merged])
        started_s = np.array([0.0 if m.sums.late else m.sums.number * starts[m.axis] for m in self.merged])
        undone_s = np.array([savings[1 - m.axis] if m.others else 0.0 for m in self.merged]) * saved_s
        time_s = _Amount(
            work.launch_s + work.compute_s,
            np.concatenate(
                [
                    alone - savings[self.axis] * work.compute[k, k],
                    both * work.compute[c, d] + summed,
                    -saved_s - started_s,
                    undone_s,
                ]
            ),
            work.launch_s + work.compute_s / devices,
        )
        memory_bytes = _Amount(
            work.held_bytes,
            np.concatenate(
                [-savings[self.axis] * work.memory[k, k], both * work.memory[c, d], np.zeros(2 * len(self.merged))]
            ),
            work.held_bytes / devices,
        )
        return time_s, memory_bytes

    def _merged(self, merged: Sequence[MergedSums]) -> list[_Merged]:
        """The merges that each axis allows."""
        column = {(a, c): i for i, (a, c) in enumerate(zip(self.axis.tolist(), self.classes.tolist(), strict=True))}
        axes = range(len(self.problem.mesh))
        return [
            _Merged(
                axis=a,
                sums=sums,
                over=[column[a, c] for c in sums.over],
                others=[column[b, c] for b in axes if b != a for c in sums.classes if (b, c) in column],
            )
            for a in axes
            for sums in merged
            if all((a, c) in column for c in sums.over)
        ]

    def _pairs(self, together: FloatArray) -> tuple[IntArray, IntArray]:
        """Positions among x of all pairs on different axes whose classes meet in a cost."""
        one, other = (np.flatnonzero(self.axis == a) for a in (0, 1))
        meet = together[np.ix_(self.classes[one], self.classes[other])] != 0
        meet &= self.classes[one][:, None] != self.classes[other]
        first, second = np.nonzero(meet)
        return one[first], other[second]

    def _constraints(self) -> list[tuple[Any, FloatArray]]:
        """Conflicts along each axis, one axis for each class, and products: rows and what they are at most."""
        n, m, columns = self.axis.size, self.first.size, self.variables
        (i, j), y = self._exclusive(), n + np.arange(m)
        z = np.repeat(n + m + np.arange(len(self.merged)), [len(merged.over) for merged in self.merged])
        over = np.array([x for merged in self.merged for x in merged.over], dtype=np.int64)
        return [
            (_rows([(i, 1.0), (j, 1.0)], columns), np.ones(i.size)),
            (_rows([(y, 1.0), (self.first, -1.0)], columns), np.zeros(m)),
            (_rows([(y, 1.0), (self.second, -1.0)], columns), np.zeros(m)),
            (_rows([(self.first, 1.0), (self.second, 1.0), (y, -1.0)], columns), np.ones(m)),
            (_rows([(z, 1.0), (over, -1.0)], columns), np.zeros(z.size)),
            *(self._divided(k, merged.others) for k, merged in enumerate(self.merged) if merged.others),
        ]

    def _exclusive(self) -> IntArray:
        """[2, e] pairs i < j of x that cannot both be 1, sorted: a conflict on one axis, or one class on both axes."""
        problem = self.problem
        column = np.full(problem.allowed.shape, -1)
        column[self.axis, self.classes] = np.arange(self.axis.size)
        pairs = [of_axis[problem.classes.conflicts] for of_axis in column]
        if len(column) == 2:
            pairs.append(column.T)
        together = np.concatenate(pairs)
        together = together[(together >= 0).all(axis=1)]
        return together[np.lexsort((together[:, 1], together[:, 0]))].T

    def _divided(self, k: int, others: list[int]) -> tuple[Any, FloatArray]:
        """v ≥ z + Σx - 1 for a merge; the other axis shards at most one class of a sum's dimensions."""
        z = self.axis.size + self.first.size + k
        terms = [(np.array([column]), 1.0) for column in (z, *others)]
        return _rows([*terms, (np.array([z + len(self.merged)]), -1.0)], self.variables), np.ones(1)


def _rows(terms: list[tuple[IntArray, float]], columns: int) -> Any:
    """A sparse matrix: row r has each coefficient in the r-th of its columns."""
    size = terms[0][0].size
    values = np.concatenate([np.full(size, coefficient) for _, coefficient in terms])
    places = np.tile(np.arange(size), len(terms)), np.concatenate([columns_of for columns_of, _ in terms])
    return coo_array((values, places), (size, columns)).tocsr()
