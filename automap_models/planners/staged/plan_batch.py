"""Many plans of one problem at once: what their stages and transfers take, whether they fit, and their steps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.overlap import Bucket, exposed_s
from automap_models.cost.staged import shares_link, span_and_length, stage_buckets, tied_sums
from automap_models.planners import effort
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables
from automap_models.simulate.rounds import PlanTimes, stage_ends


@dataclass(frozen=True, eq=False)
class StageFacts:
    """What was worked out about stages of one problem, and serves all plans that have such stages.

    Attributes:
        rates: (a, q, e, padding) → seconds per byte of a transfer from devices a … q-1 to q … e-1.
        buckets: (sharding, first instruction, one past the last, a, q) → the stage's buckets of gradients.
    """

    rates: dict[tuple[float, ...], float] = field(default_factory=dict)
    buckets: dict[tuple[int, ...], tuple[Bucket, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """P structurally valid plans of S stages.

    Attributes:
        k: [P, S] boundary where each stage ends, an index of the tables' boundaries.
        q: [P, S] device after the last one of each stage.
        sharding: [P, S] in which it runs, an index of the tables' shardings.
    """

    k: IntArray
    q: IntArray
    sharding: IntArray

    @classmethod
    def of(cls, tables: StageTables, boundaries: IntArray, device_cuts: IntArray) -> PlanBatch:
        """Plans without shardings that cut at these boundaries and devices, [P, S-1] each."""
        k = np.pad(boundaries, ((0, 0), (0, 1)), constant_values=tables.end)
        return cls(k, np.pad(device_cuts, ((0, 0), (0, 1)), constant_values=tables.replicas_in_all), np.zeros_like(k))

    @classmethod
    def from_plan(cls, tables: StageTables, plan: StagedPlan) -> PlanBatch:
        """A single plan, which cuts at boundaries of the tables."""
        k = np.searchsorted(tables.boundary, np.array([*(cut + 1 for cut in plan.cuts), tables.boundary[-1]]))
        return cls(k[None], np.array([[*plan.device_cuts, tables.replicas_in_all]]), np.array([plan.shardings]))

    def __len__(self) -> int:
        return len(self.k)

    @property
    def key(self) -> bytes:
        """What tells these plans from others in the same tables."""
        return self.k.tobytes() + self.q.tobytes() + self.sharding.tobytes()

    def take(self, index: IntArray | slice) -> PlanBatch:
        """Some of the plans."""
        return PlanBatch(*(getattr(self, of_plans.name)[index] for of_plans in fields(self)))

    def plan(self, tables: StageTables, row: int, planner: str) -> StagedPlan:
        """One of the plans."""
        cuts = tuple((tables.boundary[self.k[row, :-1]] - 1).tolist())
        shardings = tuple(self.sharding[row].tolist())
        return StagedPlan(cuts, tuple(self.q[row, :-1].tolist()), tables.micro_batches, planner, shardings=shardings)


@dataclass(frozen=True, eq=False)
class BatchCosts:
    """What P plans cost, all but what overlaps; see cost.staged.StagedCost.

    Attributes:
        forward_s, backward_s, all_reduce_s: [P, S].
        transfer_s: [P, S-1].
        feasible: [P] whether every stage fits the device memory.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    feasible: NDArray[np.bool_]

    def take(self, index: IntArray) -> BatchCosts:
        """Of some of the plans."""
        return BatchCosts(*(getattr(self, of_plans.name)[index] for of_plans in fields(self)))

    def span_and_length(self, micro_batches: int) -> tuple[FloatArray, FloatArray]:
        """[P] each of the span T and the length L, where nothing overlaps."""
        times = (self.forward_s.T, self.backward_s.T, self.transfer_s.T, self.all_reduce_s.T)
        span, length, _ = span_and_length(*times, micro_batches)
        return span, length

    def least_step_s(self, problem: StagedProblem) -> FloatArray:
        """[P] lower bound on the step: simulated, all gradients being ready when their last backward pass begins.

        Args:
            problem: of the plans.
        """
        passes = problem.stages * problem.micro_batches
        effort.count(effort.BOUNDS, passes * (len(self.forward_s) + effort.BOUNDS_MORE))
        passes_s = (self.forward_s, self.backward_s, self.transfer_s)
        shares = np.zeros(self.forward_s.shape, dtype=bool)
        times = PlanTimes(*passes_s, self.all_reduce_s, self.all_reduce_s - self.backward_s, shares)
        return _steps(problem, times, *_no_sums(times))


def _no_sums(times: PlanTimes) -> tuple[FloatArray, NDArray[np.bool_]]:
    """[P, 0] and [P, 0, S]: no parameter has copies."""
    plans, stages = times.forward_s.shape
    return np.zeros((plans, 0)), np.zeros((plans, 0, stages), dtype=bool)


def _steps(problem: StagedProblem, times: PlanTimes, tied_s: FloatArray, holders: NDArray[np.bool_]) -> FloatArray:
    """[P] the simulated steps."""
    ends = stage_ends(problem.schedule or DEFAULT_SCHEDULE, problem.micro_batches, times, tied_s, holders)
    latest: FloatArray = ends.max(axis=1)
    return latest


def batch_costs(tables: StageTables, batch: PlanBatch, known: StageFacts | None = None) -> BatchCosts:
    """What the plans' stages and transfers take.

    Args:
        tables: of the problem.
        batch: some of its plans.
        known: about stages of the problem; it is added to.
    """
    stages = tables.stages
    effort.count(effort.PLANS, len(batch) * stages)
    i = np.pad(batch.k[:, :-1], ((0, 0), (1, 0)))
    a = np.pad(batch.q[:, :-1], ((0, 0), (1, 0)))
    forward, both, reduce, padding = np.empty((4, len(batch), stages))
    fits = np.ones(len(batch), dtype=bool)
    for s in range(stages):
        for index in np.unique(batch.sharding[:, s]).tolist():
            row = np.flatnonzero(batch.sharding[:, s] == index)
            boundaries, devices = (i[row, s], batch.k[row, s]), (a[row, s], batch.q[row, s])
            both[row, s], forward[row, s], reduce[row, s] = tables.stage_times(index, boundaries, devices)
            paces = tables.shardings[index].paces
            padding[row, s] = paces.replicas[devices] / paces.parts[devices]
            fits[row] &= tables.fits(s, boundaries, devices, index)
    rate = _transfer_s_per_byte(tables, a, batch.q, padding, (known or StageFacts()).rates)
    return BatchCosts(forward, both - forward, tables.A[batch.k[:, :-1]] * rate, reduce, fits)


def _transfer_s_per_byte(
    tables: StageTables, a: IntArray, q: IntArray, padding: FloatArray, known: dict[tuple[float, ...], float]
) -> FloatArray:
    """[P, S-1] over each boundary; the few different neighbourhoods of device cuts are looked up once each."""
    pad = np.maximum(padding[:, :-1], padding[:, 1:])
    if not pad.size:
        return pad
    different, of_padding = np.unique(pad, return_inverse=True)
    columns = (a[:, :-1], q[:, :-1], q[:, 1:], of_padding.reshape(pad.shape))
    kinds, which = _different(*columns)
    rates = np.empty(len(kinds))
    for j, (begin, cut, end, row) in enumerate(kinds.tolist()):
        key = (begin, cut, end, float(different[row]))
        if key not in known:
            known[key] = transfer_s_per_byte(tables.cluster, *key)
        rates[j] = known[key]
    return rates[which]


def _different(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """The different rows of a table, and which of them each row is; all numbers are 0 or more.

    Returns:
        [n, columns] and an array of the shape of a column.
    """
    key = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        numbers = column.ravel()
        size = int(numbers.max(initial=0)) + 1
        if key.size and int(key.max()) >= np.iinfo(np.int64).max // size - 1:
            key = np.unique(key, return_inverse=True)[1]
        key = key * size + numbers
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([column.ravel()[first] for column in columns], axis=-1), which.reshape(columns[0].shape)


def steps_s(
    problem: StagedProblem,
    tables: StageTables,
    batch: PlanBatch,
    costs: BatchCosts,
    known: StageFacts | None = None,
) -> FloatArray:
    """[P] the simulated step of each plan, to rounding; what each stage reduces is worked out once.

    Args:
        problem: with a schedule.
        tables: of the problem.
        batch: some of its plans.
        costs: of these.
        known: about stages of the problem; it is added to.
    """
    known = StageFacts() if known is None else known
    i, a = (np.pad(ends[:, :-1], ((0, 0), (1, 0))) for ends in (batch.k, batch.q))
    kinds, which = _different(batch.sharding, tables.boundary[i], tables.boundary[batch.k], a, batch.q)
    reduce_s, late_s = np.zeros((2, len(kinds)))
    for row, (index, begin, end, first, stop) in enumerate(kinds.tolist()):
        key = (index, begin, end, first, stop)
        if key not in known.buckets:
            effort.count(effort.BUCKETS, end - begin)
            known.buckets[key] = stage_buckets(problem, index, slice(begin, end), (first, stop))
        own = known.buckets[key]
        reduce_s[row], late_s[row] = sum(bucket.all_reduce_s for bucket in own), exposed_s(own)
    shares = np.zeros(a.shape, dtype=bool)
    if tables.stages > 1:
        senders, pairs = _different(a[:, :-1], a[:, 1:], batch.q[:, 1:])
        shares[:, 1:] = np.array([shares_link(problem.cluster, *devices) for devices in senders.tolist()])[pairs]
    effort.count(effort.STEPS, problem.stages * problem.micro_batches * (len(batch) + effort.STEPS_MORE))
    times = PlanTimes(costs.forward_s, costs.backward_s, costs.transfer_s, reduce_s[which], late_s[which], shares)
    if not problem.profile.shared_parameters:
        return _steps(problem, times, *_no_sums(times))
    ends = (tables.boundary[i], tables.boundary[batch.k], a, batch.q)
    return _steps(problem, times, *tied_sums(problem, batch.sharding, *ends))


PAIRED = 3
"""Of the offsets, so many of the smallest are tried for two neighbouring cuts at once."""
DEVICES = 2
"""How far a device cut moves at most in one step."""


def neighbours(tables: StageTables, plan: PlanBatch, offsets: IntArray) -> PlanBatch:
    """The plans that come of moving a cut and its device, of two neighbouring cuts and devices, of another sharding.

    Args:
        tables: where plans may cut.
        plan: a single one.
        offsets: how far a cut may move, ascending, in boundaries.
    """
    cuts, few = tables.stages - 1, offsets[:PAIRED]
    effort.count(effort.NEIGHBOURS, tables.stages * offsets.size)
    by = np.concatenate((np.zeros(1, dtype=np.int64), offsets, -offsets))
    near = np.concatenate((np.zeros(1, dtype=np.int64), few, -few))
    d, beside = np.arange(-DEVICES, DEVICES + 1), np.arange(-1, 2)
    moves = [_moves(cuts, (s,), by, d) for s in range(cuts)]
    moves += [_moves(cuts, (s, s + 1), near, beside) for s in range(cuts - 1)]
    step_k, step_q = np.concatenate(moves, axis=1) if moves else np.zeros((2, 1, 0), dtype=np.int64)
    k = np.pad(plan.k[0, :-1] + step_k, ((0, 0), (0, 1)), constant_values=tables.end)
    q = np.pad(plan.q[0, :-1] + step_q, ((0, 0), (0, 1)), constant_values=tables.replicas_in_all)
    moved = PlanBatch(k, q, np.repeat(plan.sharding, len(k), axis=0))
    others = [_in_sharding(plan, s, index) for s in range(tables.stages) for index in range(len(tables.shardings))]
    both = PlanBatch(*(np.concatenate([getattr(b, f.name) for b in (moved, *others)]) for f in fields(PlanBatch)))
    return both.take(np.flatnonzero(_allowed(tables, both)))


def _moves(cuts: int, which: tuple[int, ...], by: IntArray, by_device: IntArray) -> IntArray:
    """[2, P, cuts] steps of some cuts and of their devices, all combinations."""
    axes = np.meshgrid(*[by] * len(which), *[by_device] * len(which), indexing="ij")
    steps = np.zeros((2, axes[0].size, cuts), dtype=np.int64)
    for j, s in enumerate(which):
        steps[0, :, s], steps[1, :, s] = axes[j].ravel(), axes[len(which) + j].ravel()
    return steps


def _in_sharding(plan: PlanBatch, stage: int, index: int) -> PlanBatch:
    sharding = plan.sharding.copy()
    sharding[0, stage] = index
    return PlanBatch(plan.k, plan.q, sharding)


def _allowed(tables: StageTables, batch: PlanBatch) -> NDArray[np.bool_]:
    """[P] whether the stages are none of them empty, begin inside their windows and run where their sharding can."""
    i, a = (np.pad(ends[:, :-1], ((0, 0), (1, 0))) for ends in (batch.k, batch.q))
    first, last = tables.windows.T
    ok: NDArray[np.bool_] = ((batch.k > i) & (batch.q > a) & (i >= first) & (i <= last)).all(axis=1)
    allowed = np.stack([sharding.allowed for sharding in tables.shardings])
    devices = tables.replicas_in_all
    ok &= allowed[batch.sharding, np.clip(a, 0, devices), np.clip(batch.q, 0, devices)].all(axis=1)
    return ok
