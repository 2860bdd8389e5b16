"""Label setting: the shortest plans within bounds, from the last stage to the first (see planners.staged.exact).

A label is a suffix of a plan, the stages s … S-1, with its span T and its exposed all-reduce R (cost.staged) and the
sharding of its first stage. Both never fall when what is behind rises, and so of two suffixes one may be left out.
A search that is stopped still proves something: every plan no longer than the bound ends in one of the labels that were
alive. Before stage 1 only the first stage is left, on all devices before it, so the labels of stage 1 are held against
whole plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.cost.staged import before_transfer
from automap_models.planners import effort
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.pareto import IntArray, in_blocks, pareto_front, ragged_ranges
from automap_models.planners.staged.plan_batch import PlanBatch
from automap_models.planners.staged.relaxation import (
    PrefixBounds,
    Through,
    begin_devices,
    least_through,
    through_shardings,
)
from automap_models.planners.staged.stage_tables import ROUNDING, Pace, ShardingTables, StageTables

SLACK = 1e-9
"""The search keeps plans longer than its bound by so much: rounding shall not lose the optimum."""
PLANNER = "exact"
"""Who makes the plans that come out."""
TIES = 8
"""Most plans that are looked at of those that are equally long."""
NOTHING = np.array([0.0, -np.inf])
"""T and R behind the last stage."""
BLOCK = 1 << 18
"""Extensions looked at in one go."""
MOST_LABELS = 1 << 20
"""Of a stage; where there would be more, the limit is lowered. With BLOCK it keeps the memory below 1 GB."""


@dataclass(frozen=True, eq=False)
class _Labels:
    """Suffixes that begin one stage, ascending by (a, i).

    Attributes:
        a, i: where the stage begins: device and boundary.
        q, k: where it ends.
        sharding: in which it runs.
        parent: index of the rest among the next stage's labels.
        numbers: [2, n] T and R.
        least_s: [n] what any plan within the bounds costs at least that ends in it.
    """

    a: IntArray
    i: IntArray
    q: IntArray
    k: IntArray
    sharding: IntArray
    parent: IntArray
    numbers: FloatArray
    least_s: FloatArray

    def take(self, index: IntArray | NDArray[np.bool_] | slice) -> _Labels:
        """Some of the labels."""
        return _Labels(*(getattr(self, field.name)[..., index] for field in fields(self)))

    def followed(self) -> NDArray[np.int32]:
        """[4, n] k, q, sharding and parent: all that is needed of them in the end."""
        return np.stack((self.k, self.q, self.sharding, self.parent)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Ranking:
    """The plans that a search has come to, by their length.

    Attributes:
        least_s: [n] ascending.
        batch: the plans.
        limit_s: plans that may cost less were looked at.
    """

    least_s: FloatArray
    batch: PlanBatch
    limit_s: float

    @property
    def ties(self) -> PlanBatch:
        """A few of the best that cost the same at least."""
        some = np.count_nonzero(self.least_s[:TIES] <= self.least_s[:1] * (1.0 + SLACK))
        return self.batch.take(slice(0, int(some)))


def ranked(
    tables: StageTables,
    bounds: PrefixBounds,
    limit_s: float,
    deadline: Deadline,
    most_labels: int = MOST_LABELS,
) -> Ranking:
    """The plans within the bounds that may cost no more than that, best first, as many of them as are kept.

    Args:
        tables: of the problem.
        bounds: where stages may begin.
        limit_s: what plans may cost.
        deadline: when to stop.
        most_labels: of a stage; where there would be more, the limit is lowered.

    Raises:
        OutOfTime: with a lower bound, no more than `limit_s`, on the plans within the bounds.
    """
    search = _Search(tables, bounds, limit_s, most_labels)
    labels = search.last_stage()
    followed = [labels.followed()]
    for s in range(tables.stages - 2, -1, -1):
        labels = search.earlier_stage(s, labels, deadline)
        followed.insert(0, labels.followed())
    order = np.argsort(labels.least_s, kind="stable")
    return Ranking(labels.least_s[order], _follow(followed, order), search.limit_s)


def _follow(stages: list[NDArray[np.int32]], j: IntArray) -> PlanBatch:
    """The plans that labels of the first stage stand for; stages are [4, n] k, q, sharding and parent."""
    ends = np.empty((3, j.size, len(stages)), dtype=np.int64)
    for s, labels in enumerate(stages):
        ends[:, :, s], j = labels[:3, j], labels[3, j]
    return PlanBatch(*ends)


@dataclass(frozen=True, eq=False)
class _Arriving:
    """Suffixes with the transfer into them, for several senders' first devices; ascending by `group`.

    Attributes:
        group: row · (m+1) + k: which sender, and the boundary crossed.
        k: that boundary.
        parent: index among the next stage's labels.
        numbers: [2, n] with that transfer.
    """

    group: IntArray
    k: IntArray
    parent: IntArray
    numbers: FloatArray

    def least_of_groups(self) -> tuple[_Arriving, IntArray]:
        """An entry a group, the least of each number in it; and [groups + 1] where each group begins."""
        first = np.flatnonzero(np.diff(self.group, prepend=-1))
        ends = np.append(first, self.group.size)
        if first.size == self.group.size:
            return self, ends
        least = np.minimum.reduceat(self.numbers, first, axis=1)
        return _Arriving(self.group[first], self.k[first], self.parent[first], least), ends


@dataclass(frozen=True, eq=False)
class _Before:
    """What must come before a stage at several places where it may begin (relaxation.PrefixBounds).

    Attributes:
        arrives: least transfer into it, one direction; 0 for the first stage.
        busy, forward: as in PrefixBounds.
    """

    arrives: FloatArray
    busy: FloatArray
    forward: FloatArray

    def least(self, at: IntArray | slice, micro_batches: int, numbers: FloatArray) -> FloatArray:
        """[n] lower bound on what any plan costs that ends in suffixes of those numbers.

        Args:
            at: at which of the places the suffixes begin.
        """
        return _least(_arriving(self.arrives[at], numbers, micro_batches), self.busy[at], self.forward[at])


@dataclass(frozen=True, eq=False)
class _Places:
    """Where a stage in one sharding may begin that ends before device q, and before which entries of _Arriving.

    Attributes:
        q: the device after its last one.
        sharding: index of the sharding.
        a, i: [n] device and boundary where it begins.
        pace: [n] of its devices.
        before: what must come before it.
        room_s: [n] what that leaves of the limit.
        start, stop: [n] the entries before which it may be.
    """

    q: int
    sharding: int
    a: IntArray
    i: IntArray
    pace: Pace
    before: _Before
    room_s: FloatArray
    start: IntArray
    stop: IntArray


@dataclass(eq=False)
class _Search:
    """What every stage's labels are made from.

    Attributes:
        tables: the problem.
        bounds: where stages may begin, and what must come before them.
        limit_s: what plans may cost; it falls where there are too many labels.
        most_labels: of a stage.
    """

    tables: StageTables
    bounds: PrefixBounds
    limit_s: float
    most_labels: int

    def last_stage(self) -> _Labels:
        """Labels for each place where the last stage may begin."""
        tables, stage = self.tables, self.tables.stages - 1
        devices = tables.replicas_in_all
        begin = np.nonzero(np.isfinite(self.bounds.busy[stage]))
        blocks = []
        for index, sharding in enumerate(tables.shardings):
            on = sharding.allowed[begin[0], devices]
            a, i = begin[0][on], begin[1][on]
            k, q = np.full_like(a, tables.end), np.full_like(a, devices)
            numbers = tables.stage_numbers(index, (i, k), (a, q), NOTHING[:, None])
            least = self._before(stage, a, i, devices).least(slice(None), tables.micro_batches, numbers)
            if stage == 1:
                least = np.maximum(least, self._complete(a, i, q, numbers))
            labels = _Labels(a, i, q, k, np.full_like(a, index), np.full_like(a, -1), numbers, least)
            fits = tables.fits(stage, (i, k), (a, devices), index)
            blocks.append(labels.take((least <= self.limit_s) & fits))
        return blocks[0] if len(blocks) == 1 else self._undominated(blocks)

    def earlier_stage(self, stage: int, rest: _Labels, deadline: Deadline) -> _Labels:
        """The labels of a stage before those of the next one, for every device q between the two.

        Those q come first after which plans may be shortest, so that a search that is stopped proves most.

        Raises:
            OutOfTime: with a lower bound on the plans within the bounds.
        """
        cuts, begin = np.unique(rest.a, return_index=True)
        least = np.minimum.reduceat(rest.least_s, begin) if begin.size else rest.least_s
        ends = np.append(begin, rest.a.size)
        blocks = [rest.take(slice(0, 0))]
        for turn, cut in enumerate(order := np.argsort(least, kind="stable")):
            q, own = int(cuts[cut]), np.arange(ends[cut], ends[cut + 1])
            devices = begin_devices(self.bounds, stage, q)
            rows = max(BLOCK // own.size, 1)
            for first in range(0, devices.size, rows):
                if deadline.passed:
                    known = [labels.least_s.min(initial=np.inf) for labels in blocks]
                    raise OutOfTime(float(min(self.limit_s, least[order[turn]], *known)))
                for labels in self._stage_on(stage, devices[first : first + rows], q, rest, own):
                    blocks.append(labels)
                    blocks = self._few(blocks)
        return _joined(blocks, self.tables.end)

    def _before(self, stage: int, a: IntArray, i: IntArray, q: IntArray | int) -> _Before:
        """What must come before the stage from boundary i on devices a … q-1."""
        arrives = self.tables.A[i] * self.tables.devices.arrival[a, q] if stage else np.zeros(i.size)
        return _Before(arrives, self.bounds.busy[stage, a, i], self.bounds.forward[stage, a, i])

    def _undominated(self, shardings: list[_Labels]) -> _Labels:
        """Of labels with the same end device, a sharding each, those that none with the same beginning dominates."""
        labels = _joined(shardings, self.tables.end)
        front, _ = _front(labels.a * (self.tables.end + 1) + labels.i, labels.numbers)
        return labels.take(front)

    def _stage_on(self, stage: int, devices: IntArray, q: int, rest: _Labels, own: IntArray) -> Iterator[_Labels]:
        """Labels of the stage on each of `devices` … q-1, before the labels `own` of the rest, which begins there."""
        effort.count(effort.ROUND, devices.size)
        through = through_shardings(self.tables, self.bounds, stage, devices, q, self.limit_s)
        arriving = self._cross(stage, through, devices, q, rest, own)
        if len(through) == 1:
            yield from self._in_sharding(stage, through[0], devices, q, arriving)
            return
        shardings = (
            labels
            for sharding in through
            for labels in self._in_sharding(stage, sharding, devices, q, self._reaching(stage, sharding, arriving))
        )
        if blocks := list(shardings):
            yield self._undominated(blocks)

    def _cross(
        self, stage: int, through: list[Through], devices: IntArray, q: int, rest: _Labels, own: IntArray
    ) -> _Arriving:
        """Add the transfer over device cut q; what the receiver's end device was no longer matters then."""
        tables = self.tables
        effort.count(effort.CROSSINGS, devices.size * own.size)
        k = rest.i[own]
        x = tables.devices.transfer[q][devices][:, rest.q[own] - q - 1] * tables.A[k]
        numbers = _arriving(x, rest.numbers[:, None, own], tables.micro_batches)
        busy, forward = least_through(through, devices.size, tables.end)
        least = _least(numbers, busy[:, k], forward[:, k]).ravel()
        alive = np.flatnonzero(least <= self.limit_s)
        group = (np.arange(devices.size)[:, None] * (tables.end + 1) + k).ravel()[alive]
        numbers = numbers.reshape(len(numbers), -1)[:, alive]
        front, numbers = _front(group, numbers)
        from_own = alive[front] % own.size
        return _Arriving(group[front], k[from_own], own[from_own], numbers)

    def _reaching(self, stage: int, through: Through, arriving: _Arriving) -> _Arriving:
        """Those before which a stage in that sharding can still come."""
        row, rows = arriving.group // (self.tables.end + 1), through.rows
        at = np.minimum(np.searchsorted(rows, row), rows.size - 1)
        busy, forward = through.busy[at, arriving.k], through.forward[at, arriving.k]
        least = _least(arriving.numbers, busy, forward)
        some = np.flatnonzero((rows[at] == row) & (least <= self.limit_s))
        return _Arriving(*(getattr(arriving, field.name)[..., some] for field in fields(_Arriving)))

    def _in_sharding(
        self, stage: int, through: Through, devices: IntArray, q: int, arriving: _Arriving
    ) -> Iterator[_Labels]:
        """Labels of the stage in one sharding, before the arriving suffixes; of each place where it begins a front.

        Suffixes that arrive at the same boundary differ little. So the stage is first put before the least of each of
        their numbers, one entry a boundary, and before each of them only where that may come to a short plan.
        """
        groups, first = arriving.least_of_groups()
        into = self._places(stage, through, devices, q, groups)
        for some in in_blocks(into.stop - into.start, BLOCK):
            owner, group = ragged_ranges(into.start[some], into.stop[some])
            at, group, numbers, least = self._put_before(stage, into, groups, some[owner], group)
            if at.size and groups.group.size < arriving.group.size:
                yield from self._before_members(stage, into, arriving, at, first[group], first[group + 1])
            else:
                yield self._front_of(into, arriving, at, group, numbers, least)

    def _before_members(
        self, stage: int, into: _Places, arriving: _Arriving, at: IntArray, start: IntArray, stop: IntArray
    ) -> Iterator[_Labels]:
        """Labels of the stage at places `at`, each before the suffixes from `start` to `stop`."""
        begin = np.flatnonzero(np.diff(at, prepend=-1))
        for some in in_blocks(np.add.reduceat(stop - start, begin), BLOCK):
            pairs = slice(begin[some[0]], np.append(begin, at.size)[some[-1] + 1])
            owner, j = ragged_ranges(start[pairs], stop[pairs])
            kept = self._put_before(stage, into, arriving, at[pairs][owner], j, fit=True)
            yield self._front_of(into, arriving, *kept)

    def _front_of(
        self, into: _Places, arriving: _Arriving, at: IntArray, j: IntArray, numbers: FloatArray, least: FloatArray
    ) -> _Labels:
        """The labels to keep of those of the stage at places `at` before the suffixes j."""
        front, numbers = _front(at, numbers)
        at, j = at[front], j[front]
        return _Labels(
            a=into.a[at],
            i=into.i[at],
            q=np.full_like(at, into.q),
            k=arriving.k[j],
            sharding=np.full_like(at, into.sharding),
            parent=arriving.parent[j],
            numbers=numbers,
            least_s=least[front],
        )

    def _places(self, stage: int, through: Through, devices: IntArray, q: int, arriving: _Arriving) -> _Places:
        """Where the stage may begin in one sharding on each of `devices` … q-1, and before which entries it may end."""
        boundaries, sharding = self.tables.end + 1, self.tables.shardings[through.sharding]
        row, i = np.nonzero(np.isfinite(self.bounds.busy[stage, devices[through.rows]]))
        row = through.rows[row]
        a = devices[row]
        pace, before = sharding.pace(a, q), self._before(stage, a, i, q)
        start = np.searchsorted(arriving.group, row * boundaries + i + 1)
        trip_s = arriving.numbers[0].min(initial=np.inf)
        room_s = self.limit_s - before.busy - 2.0 * before.arrives
        memory = sharding.paces.memory[a, q]
        latest = self._latest_end(stage, sharding, before, i, pace, memory, room_s, trip_s)
        stop = np.maximum(np.searchsorted(arriving.group, row * boundaries + latest), start)
        return _Places(q, through.sharding, a, i, pace, before, room_s, start, stop)

    def _put_before(
        self, stage: int, into: _Places, arriving: _Arriving, at: IntArray, j: IntArray, *, fit: bool = False
    ) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """The stage at places `at` before the entries j, where that fits the memory and may come to a short plan.

        Args:
            fit: whether all of them are known to fit.

        Returns:
            Of those that stay: `at`, j, the numbers and what any plan costs at least that ends in them.
        """
        tables, q, before = self.tables, into.q, into.before
        effort.count(effort.PAIRS, at.size)
        trip = arriving.numbers[0, j]
        room_s = into.room_s[at]
        most_s = np.minimum(room_s / tables.micro_batches, room_s - trip)
        work_s = tables.shardings[into.sharding].work_s(into.i[at], arriving.k[j], into.pace.take(at))
        light = np.flatnonzero(work_s <= most_s + ROUNDING * self.limit_s)
        at, j = at[light], j[light]
        begin, end = (into.i[at], arriving.k[j]), (into.a[at], np.full_like(at, q))
        numbers = tables.stage_numbers(into.sharding, begin, end, arriving.numbers[:, j])
        least = before.least(at, tables.micro_batches, numbers)
        short = np.flatnonzero(least <= self.limit_s)
        if stage == 1 and short.size:
            begins = at[short]
            whole = self._complete(into.a[begins], into.i[begins], np.full_like(begins, q), numbers[:, short])
            least[short] = np.maximum(least[short], whole)
            short = short[whole <= self.limit_s]
        if not fit:
            place, k = at[short], arriving.k[j[short]]
            fits = tables.fits(stage, (into.i[place], k), (into.a[place], q), into.sharding)
            short = short[np.flatnonzero(fits)]
        return at[short], j[short], numbers[:, short], least[short]

    def _complete(self, a: IntArray, i: IntArray, q: IntArray, numbers: FloatArray) -> FloatArray:
        """[n] what a plan costs at least that ends in suffixes from stage 1 on: what comes before is the first stage.

        Args:
            a, i: where these begin.
            q: where their first stage ends.
            numbers: of the suffixes.
        """
        tables, least = self.tables, np.full(a.size, np.inf)
        arriving = _arriving(tables.devices.from_first[a, q] * tables.A[i], numbers, tables.micro_batches)
        first = np.zeros_like(a)
        for index, sharding in enumerate(tables.shardings):
            on = np.flatnonzero(sharding.allowed[0, a])
            ends = (first[on], i[on]), (first[on], a[on])
            whole = tables.stage_numbers(index, *ends, arriving[:, on])
            least[on] = np.minimum(least[on], _least(whole))
        return least

    def _few(self, blocks: list[_Labels]) -> list[_Labels]:
        """The labels within the limit, which is lowered to what half as many meet as there may be if there are more."""
        if sum(labels.a.size for labels in blocks) <= self.most_labels:
            return blocks
        least = np.concatenate([labels.least_s for labels in blocks])
        self.limit_s = float(np.partition(least, self.most_labels // 2)[self.most_labels // 2])
        return [labels.take(labels.least_s < self.limit_s) for labels in blocks]

    def _latest_end(
        self,
        stage: int,
        sharding: ShardingTables,
        before: _Before,
        i: IntArray,
        pace: Pace,
        memory: FloatArray,
        room_s: FloatArray,
        trip_s: float,
    ) -> IntArray:
        """[n] one past the last boundary where the stage may end: u and forward + AR within the limit, σ·ΣW fits."""
        tables, C, W = self.tables, sharding.least_C, sharding.W
        compute = np.minimum(room_s / tables.micro_batches, room_s - trip_s) * pace.rate
        with np.errstate(divide="ignore"):
            reduced = np.where(pace.ring > 0, (self.limit_s - before.forward) / pace.ring, np.inf)
        weights = np.minimum(reduced, memory / tables.state_factor)
        latest: IntArray = np.minimum(
            np.searchsorted(C, C[i] + compute + ROUNDING * C[-1], side="right"),
            np.searchsorted(W, W[i] + weights + ROUNDING * W[-1], side="right"),
        )
        return latest


def _arriving(transfer_s: FloatArray, numbers: FloatArray, micro_batches: int) -> FloatArray:
    """T and R of suffixes with the transfer into them."""
    return np.stack(before_transfer(transfer_s, numbers[0], numbers[1], micro_batches))


def _least(numbers: FloatArray, busy: FloatArray | float = 0.0, forward: FloatArray | float = 0.0) -> FloatArray:
    """What any plan costs at least that ends in suffixes of these numbers, behind prefixes of PrefixBounds."""
    least: FloatArray = numbers[0] + np.maximum(busy, numbers[1] + forward)
    return least


def _front(group: IntArray, numbers: FloatArray) -> tuple[IntArray, FloatArray]:
    """Indices of the entries of each group that no other dominates, ascending by group, and their numbers."""
    effort.count(effort.FRONT, group.size)
    front = pareto_front(group, numbers)
    return front, numbers[:, front]


def _joined(blocks: Sequence[_Labels], end: int) -> _Labels:
    """The labels of several blocks, ascending by (a, i)."""
    labels = _Labels(*(np.concatenate([getattr(b, field.name) for b in blocks], -1) for field in fields(_Labels)))
    return labels.take(np.argsort(labels.a * (end + 1) + labels.i, kind="stable"))
