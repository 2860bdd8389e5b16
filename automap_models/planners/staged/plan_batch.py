"""Many plans of one problem at once: what their stages and transfers take, whether they fit, and their steps."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.overlap import exposed_s
from automap_models.cost.staged import span_and_length, tied_sums
from automap_models.planners import effort
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables
from automap_models.simulate.rounds import PlanTimes, plan_steps

TransferRates = dict[tuple[float, ...], float]
"""(a, q, e, padding) → seconds per byte of a transfer from devices a … q-1 to q … e-1."""


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
    """What P plans cost; see cost.staged.StagedCost.

    Attributes:
        forward_s, backward_s, exposed_s, update_s: [P, S].
        transfer_s: [P, S-1].
        feasible: [P] whether every stage fits the device memory.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    exposed_s: FloatArray
    update_s: FloatArray
    feasible: NDArray[np.bool_]

    def take(self, index: IntArray) -> BatchCosts:
        """Of some of the plans."""
        return BatchCosts(*(getattr(self, of_plans.name)[index] for of_plans in fields(self)))

    def span_and_length(self, micro_batches: int) -> tuple[FloatArray, FloatArray]:
        """[P] each of the span T and the length L."""
        times = (self.forward_s.T, self.backward_s.T, self.transfer_s.T, self.exposed_s.T)
        span, length, _ = span_and_length(*times, micro_batches)
        return span, length


def batch_costs(tables: StageTables, batch: PlanBatch, known: TransferRates | None = None) -> BatchCosts:
    """What the plans' stages and transfers take.

    Args:
        tables: of the problem.
        batch: some of its plans.
        known: of the problem; it is added to.
    """
    stages = tables.stages
    effort.count(effort.PLANS, len(batch) * stages)
    i = np.pad(batch.k[:, :-1], ((0, 0), (1, 0)))
    a = np.pad(batch.q[:, :-1], ((0, 0), (1, 0)))
    forward, both, reduce, update, padding = np.empty((5, len(batch), stages))
    fits = np.ones(len(batch), dtype=bool)
    for s in range(stages):
        for index in np.unique(batch.sharding[:, s]).tolist():
            row = np.flatnonzero(batch.sharding[:, s] == index)
            boundaries, devices = (i[row, s], batch.k[row, s]), (a[row, s], batch.q[row, s])
            both[row, s], forward[row, s], reduce[row, s] = tables.stage_times(index, boundaries, devices)
            update[row, s] = tables.update_s_per_byte * tables.shardings[index].weights_bytes(*boundaries)
            paces = tables.shardings[index].paces
            padding[row, s] = paces.replicas[devices] / paces.parts[devices]
            fits[row] &= tables.fits(s, boundaries, devices, index)
    rate = _transfer_s_per_byte(tables, a, batch.q, padding, {} if known is None else known)
    backward = both - forward
    exposed = exposed_s(reduce, backward, tables.overlap)
    return BatchCosts(forward, backward, tables.A[batch.k[:, :-1]] * rate, exposed, update, fits)


def _transfer_s_per_byte(
    tables: StageTables, a: IntArray, q: IntArray, padding: FloatArray, known: TransferRates
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


def steps_s(problem: StagedProblem, tables: StageTables, batch: PlanBatch, costs: BatchCosts) -> FloatArray:
    """[P] the simulated step of each plan, to rounding.

    Args:
        problem: with a schedule.
        tables: of the problem.
        batch: some of its plans.
        costs: of these.
    """
    effort.count(effort.STEPS, problem.stages * problem.micro_batches * (len(batch) + effort.STEPS_MORE))
    times = PlanTimes(costs.forward_s, costs.backward_s, costs.transfer_s, costs.exposed_s, costs.update_s)
    plans, stages = batch.k.shape
    sums = np.zeros((plans, 0)), np.zeros((plans, 0, stages), dtype=bool)
    if problem.profile.shared_parameters:
        i, a = (np.pad(ends[:, :-1], ((0, 0), (1, 0))) for ends in (batch.k, batch.q))
        sums = tied_sums(problem, batch.sharding, tables.boundary[i], tables.boundary[batch.k], a, batch.q)
    return plan_steps(problem.schedule or DEFAULT_SCHEDULE, problem.micro_batches, times, *sums)


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
