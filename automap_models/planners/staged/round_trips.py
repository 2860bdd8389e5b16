"""Least round trips of a micro-batch: what they prove about the step under a schedule, and the plans that have them.

The round trip RT of a plan is the sum of u + 2·x over its stages: one micro-batch, there and back. What the
micro-batches behind it add while they pass stage s is part_s: no step is shorter than RT + part_s, for any stage s. Let
RT(P) be the least round trip of all plans none of whose parts is more than P.

    RT(P) │▄▄
          │  ▀▀▄▄              RT(P) never rises with P. A plan whose largest part is between P1 and P2
          │      ▀▀▀▀▀▄▄▄      has a step of P1 + RT(P2) at least.
          └───┬─────┬─────
              P1    P2

RT(P) is one dynamic program from the last stage to the first, over boundaries and device cuts, so that it holds all
stages of a plan together. The plan that it comes to is a good one by itself: of those that balance their stages as well
it has the shortest way through them.

The parts of stage s, in the notation of cost.suffixes:

    (M-1)·u_s - (w_s-1)·f_s + delay_s     its own passes, of which those before its first backward pass may be hidden
    RT_s + (M-1-w_s)·u_s + delay_s        the last micro-batch, which starts behind others and then makes its round trip

Before stage 0 nothing can hide its all-reduce: there delay_s is all that is exposed of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.cost.suffixes import StepSuffixes
from automap_models.planners import effort
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.pareto import IntArray, window_minima
from automap_models.planners.staged.plan_batch import PlanBatch
from automap_models.planners.staged.stage_tables import ROUNDING, Pace, StageTables

STAIRS = 14
"""Most largest parts whose plans are looked at."""
HIGHEST, LOWER = 4.0, 0.85
"""The first of them, over M times an even share of the work, and how much smaller each is than the one before."""
CLOSE = 0.003
"""Of the limit: largest parts that differ by less are not told apart."""


@dataclass(frozen=True, eq=False)
class _Devices:
    """The devices a … q-1 on which stages may run in one sharding: n pairs, which work in K different ways.

    Attributes:
        index: of the sharding.
        a, q: [n] ascending by a.
        way: [n] how each pair works.
        entering, leaving: [K, m+1] u of a stage from i to k is leaving[k] - entering[i].
        work, forward: [K, m+1] prefix sums of u and f at the least; they never fall.
        reduced: [K, m+1] prefix sums of AR - b at the least.
        crosses: [K] whether the devices are in several nodes.
        weights, stash: [K, m+1] prefix sums of the share of their memory that parameters and their state take, and the
            activations of one micro-batch.
    """

    index: int
    a: IntArray
    q: IntArray
    way: IntArray
    entering: FloatArray
    leaving: FloatArray
    work: FloatArray
    forward: FloatArray
    reduced: FloatArray
    crosses: NDArray[np.bool_]
    weights: FloatArray
    stash: FloatArray

    @classmethod
    def of(cls, tables: StageTables, index: int, begins: NDArray[np.bool_] | None) -> _Devices:
        """Those that one of the shardings allows; stages begin at all devices, or at some."""
        sharding, node_of = tables.shardings[index], tables.cluster.node_of
        a, q = np.nonzero(sharding.allowed if begins is None else sharding.allowed & begins[:, None] & begins)
        paces, crosses = sharding.paces, node_of[np.minimum(a, node_of.size - 1)] < node_of[q - 1]
        parts, memory, pace = paces.parts[a, q], paces.memory[a, q], sharding.pace(a, q)
        place = np.broadcast_to(pace.place, a.shape)
        differ = np.stack((pace.rate, pace.ring, place, parts, memory, crosses))
        _, first, way = np.unique(differ, axis=1, return_index=True, return_inverse=True)
        one, rate = Pace(pace.rate[first], pace.ring[first], place[first]), pace.rate[first, None]
        work, forward = sharding.C[one.place] / rate, sharding.F[one.place] / rate
        reduced = one.ring[:, None] * sharding.W - (work - forward)
        if sharding.shared:
            work, forward = work + sharding.shared.start_s, forward + sharding.shared.start_forward_s
            reduced = np.zeros_like(work)
        entering, leaving = sharding.potentials(one)
        return cls(
            index=index,
            a=a,
            q=q,
            way=way.ravel(),
            entering=entering[0],
            leaving=leaving[0],
            work=work,
            forward=forward,
            reduced=reduced,
            crosses=crosses[first],
            weights=(tables.state_factor * sharding.W + sharding.frozen) / memory[first, None],
            stash=sharding.H / (parts * memory)[first, None],
        )

    def earliest(self, tables: StageTables, suffixes: StepSuffixes, stage: int, most_s: float) -> IntArray:
        """[K, m+1] the first boundary from which the stage may reach each k: its own passes and its memory."""
        weight, of_forward = suffixes.own_weights(stage)
        own = weight * self.work + of_forward * self.forward
        exposed = own + self.reduced
        if stage:
            exposed = np.where(self.crosses[:, None], exposed, own)
        held = self.weights + tables.in_flight(stage) * self.stash
        limits = ((own, most_s), (exposed, most_s), (held, 1.0))
        first: IntArray = np.maximum.reduce([first_within(sums, np.full_like(sums, most)) for sums, most in limits])
        return first


def first_within(sums: FloatArray, most: FloatArray) -> IntArray:
    """[n, m+1] the first i with sums[k] - sums[i] ≤ most[k] to rounding, for each k; k where there is none before."""
    n, size = sums.shape
    least = sums - most - ROUNDING * np.abs(sums[:, -1:])
    row, flat = np.arange(n)[:, None] * size, np.maximum.accumulate(sums, axis=1).ravel()
    low, high = np.zeros((n, size), dtype=np.int64), np.broadcast_to(np.arange(size), (n, size))
    for _ in range(size.bit_length()):
        middle = (low + high) >> 1
        reached = flat.take(row + middle) >= least
        low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
    return low


@dataclass(frozen=True, eq=False)
class _Extended:
    """A stage on some of the devices before all that may follow it.

    Attributes:
        devices: in one sharding.
        rows: which of them.
        after: [rows, m+1] least round trip after the stage, the transfer there and back included, by where it ends.
        start: [rows, m+1] where the stage begins at the earliest, by where it ends.
    """

    devices: _Devices
    rows: IntArray
    after: FloatArray
    start: IntArray

    def least(self) -> FloatArray:
        """[rows, m+1] the least round trip of the stage and what follows it, by where it begins.

        Where the earliest beginning falls from one end to the next, ends before it count as reached: that is no more.
        """
        end = self.after.shape[1] - 1
        way = self.devices.way[self.rows]
        reached = np.minimum.accumulate(self.start[:, ::-1], axis=1)[:, ::-1]
        row = np.arange(self.rows.size)[:, None] * (end + 1)
        ends = np.bincount((row + reached).ravel(), minlength=reached.size).reshape(reached.shape).cumsum(axis=1)
        through = (self.after + self.devices.leaving[way])[:, ::-1]
        least = window_minima(through[None], end + 1 - ends[:, ::-1])[0, :, ::-1]
        trips: FloatArray = least - self.devices.entering[way]
        return trips

    def best(self, a: int, q: int, i: int) -> tuple[float, int]:
        """The least round trip from the stage on devices a … q-1 that begins at i, and where it ends."""
        row = np.flatnonzero((self.devices.a[self.rows] == a) & (self.devices.q[self.rows] == q))
        if not row.size:
            return np.inf, 0
        way = self.devices.way[self.rows[row]]
        trips = (self.after[row] + self.devices.leaving[way] - self.devices.entering[way, i][:, None])[0]
        trips = np.where((self.start[row[0]] <= i) & (np.arange(trips.size) > i), trips, np.inf)
        return float(trips.min()), int(trips.argmin())


@dataclass(frozen=True, eq=False)
class _Stage:
    """What the dynamic program knows of one stage.

    Attributes:
        extended: the stage in each sharding.
        trips: [D+1, D+1, m+1] least round trip of the stage and all after it, by its devices a … q-1 and its beginning.
    """

    extended: list[_Extended]
    trips: FloatArray


class RoundTrips:
    """The least round trips on some tables.

    Args:
        tables: of a problem with a schedule.
        begins: [D+1] the devices at which stages may begin; None for all.
    """

    def __init__(self, tables: StageTables, begins: NDArray[np.bool_] | None = None) -> None:
        assert isinstance(tables.suffixes, StepSuffixes)
        self.tables, self.suffixes = tables, tables.suffixes
        self.devices = [_Devices.of(tables, index, begins) for index in range(len(tables.shardings))]

    def least(self, most_s: float, deadline: Deadline) -> tuple[float, PlanBatch | None]:
        """RT(P), and the plan that has it.

        Args:
            most_s: P.
            deadline: when to stop.

        Returns:
            inf and None where there is no such plan.

        Raises:
            OutOfTime: before it is done.
        """
        stages = list[_Stage]()
        for s in range(self.tables.stages - 1, -1, -1):
            deadline.check()
            effort.count(effort.TRIPS, self.tables.replicas_in_all**2 * (self.tables.end + 1))
            after = self._after(s, stages[0].trips if stages else None)
            extended = [self._extended(s, devices, after, most_s) for devices in self.devices]
            stages.insert(0, _Stage(extended, self._least(s, extended)))
        least_s = float(stages[0].trips[0, :, 0].min())
        return least_s, self._follow(stages) if np.isfinite(least_s) else None

    def _after(self, stage: int, trips: FloatArray | None) -> FloatArray:
        """[D+1, D+1, m+1] what follows a stage at the least, by its devices and its end.

        Args:
            trips: of the next stage.
        """
        devices, end = self.tables.replicas_in_all, self.tables.end
        after = np.full((devices + 1, devices + 1, end + 1), np.inf)
        if trips is None:
            after[:devices, devices, end] = 0.0
            return after
        finite: NDArray[np.bool_] = np.isfinite(np.minimum.reduce(trips, axis=2))
        for q in np.flatnonzero(finite.any(axis=1)).tolist():
            stop = np.flatnonzero(finite[q])
            some = np.flatnonzero(np.isfinite(trips[q, stop]).any(axis=0))
            first = np.array([0]) if not stage else np.arange(stage, q)
            there = 2.0 * self.tables.devices.transfer[q][first][:, stop - q - 1]
            least = there[:, :, None] * self.tables.A[some] + trips[q, stop][:, some]
            after[first[:, None], q, some] = least.min(axis=1)
        return after

    def _extended(self, stage: int, devices: _Devices, after: FloatArray, most_s: float) -> _Extended:
        """The stage in one sharding, wherever something can follow it."""
        tables, left = self.tables, self.tables.micro_batches - 1 - self.suffixes.warm_up[stage]
        on: NDArray[np.bool_] = np.isfinite(np.minimum.reduce(after, axis=2)[devices.a, devices.q])
        rows = np.flatnonzero(on & (devices.a >= stage) & ((devices.a == 0) | (stage > 0)))
        way, follow = devices.way[rows], after[devices.a[rows], devices.q[rows]]
        start, reached = devices.earliest(tables, self.suffixes, stage, most_s)[way], np.isfinite(follow)
        if left >= 0:
            most = (most_s - np.where(reached, follow, 0.0)) / (1 + left)
            start = np.maximum(start, first_within(devices.work[way], most))
        start = np.where(reached, start, np.arange(tables.end + 1))
        return _Extended(devices, rows, follow, start)

    def _least(self, stage: int, extended: list[_Extended]) -> FloatArray:
        """[D+1, D+1, m+1] the least round trip of a stage and those after it."""
        devices = self.tables.replicas_in_all
        trips = np.full((devices + 1, devices + 1, self.tables.end + 1), np.inf)
        for sharding in extended:
            at = sharding.devices.a[sharding.rows], sharding.devices.q[sharding.rows]
            trips[at] = np.minimum(trips[at], sharding.least())
        first, last = self.tables.windows[stage]
        trips[:, :, :first], trips[:, :, last + 1 :] = np.inf, np.inf
        return trips

    def _follow(self, stages: list[_Stage]) -> PlanBatch | None:
        """The plan that the least round trip leads to; None where an end that counted as reached is not."""
        a, q, i, ends = 0, int(stages[0].trips[0, :, 0].argmin()), 0, list[tuple[int, int, int]]()
        for s, stage in enumerate(stages):
            best = [sharding.best(a, q, i) for sharding in stage.extended]
            sharding = min(range(len(best)), key=lambda j: best[j][0])
            trip_s, k = best[sharding]
            if np.isinf(trip_s):
                return None
            ends.append((k, q, sharding))
            if s + 1 < len(stages):
                there = 2.0 * self.tables.A[k] * self.tables.devices.transfer[q][a]
                a, q, i = q, q + 1 + int((stages[s + 1].trips[q, q + 1 :, k] + there).argmin()), k
        return PlanBatch(*np.array(ends).T[:, None])


def staircase(trips: RoundTrips, deadline: Deadline) -> PlanBatch | None:
    """The plans of least round trip for largest parts from large to small; None where there is none.

    Raises:
        OutOfTime: the deadline has passed.
    """
    tables, plans = trips.tables, dict[bytes, PlanBatch]()
    most_s = HIGHEST * tables.micro_batches * float(tables.C[-1] / tables.capacity[-1])
    for _ in range(STAIRS):
        trip_s, plan = trips.least(most_s, deadline)
        if np.isinf(trip_s):
            break
        if plan is not None:
            plans[plan.key] = plan
        most_s *= LOWER
    several = list(plans.values())
    if not several:
        return None
    return PlanBatch(*(np.concatenate([getattr(plan, of.name) for plan in several]) for of in fields(PlanBatch)))


def least_step_s(trips: RoundTrips, limit_s: float, deadline: Deadline, offer: Callable[[PlanBatch], float]) -> float:
    """A lower bound on the steps of all plans of the tables, no more than the limit.

    Largest parts are divided into intervals. Of the one that allows the shortest step, what can still be shorter than
    the limit is halved, until the time is up.

    Args:
        trips: on the tables.
        limit_s: the shortest step known.
        deadline: when to stop.
        offer: takes the plans on the way, and says what the shortest step known is then.
    """
    most, trip, bound_s = [0.0, limit_s], [np.inf], 0.0

    def looked_at(most_s: float) -> tuple[float, float]:
        trip_s, plan = trips.least(most_s, deadline)
        return trip_s, limit_s if plan is None else min(limit_s, offer(plan))

    with suppress(OutOfTime):
        least, limit_s = looked_at(limit_s)
        trip.append(least)
        while True:
            bounds = [below + trip_s for below, trip_s in zip(most[:-1], trip[1:], strict=True)]
            at = int(np.argmin(bounds))
            bound_s = min(bounds[at], limit_s)
            highest = min(most[at + 1], limit_s - trip[at + 1])
            near = highest - most[at] < CLOSE * limit_s
            if bound_s >= limit_s * (1.0 - ROUNDING) or (near and highest == most[at + 1]):
                break
            middle = highest if near else (most[at] + highest) / 2
            least, limit_s = looked_at(middle)
            trip.insert(at + 1, least)
            most.insert(at + 1, middle)
    return bound_s
