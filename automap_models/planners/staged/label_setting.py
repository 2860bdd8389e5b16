"""Label setting: the shortest plans within bounds, from the last stage to the first (see planners.staged.exact).

A label is a suffix of a plan, the stages s … S-1, with its span T and its exposed all-reduce R, and the sharding of its
first stage. A search that is stopped still proves something: every plan no longer than the bound ends in one
of the labels that were alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import before_stage, before_transfer
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.pareto import IntArray, pareto_front, ragged_ranges
from automap_models.planners.staged.relaxation import (
    PrefixBounds,
    Through,
    begin_devices,
    least_through,
    through_shardings,
)
from automap_models.planners.staged.stage_tables import ROUNDING, ShardingTables, StageTables

SLACK = 1e-9
"""The search keeps plans longer than its bound by so much: rounding shall not lose the optimum."""
PLANNER = "exact"
"""Who makes the plans that come out."""
BLOCK = 1 << 18
"""Extensions looked at in one go; what bounds the memory."""


@dataclass(frozen=True, eq=False)
class _Labels:
    """Suffixes that begin one stage, ascending by (a, i).

    Attributes:
        a, i: where the stage begins: device and boundary.
        q, k: where it ends.
        sharding: in which it runs.
        parent: index of the rest among the next stage's labels.
        span, exposed: T and R.
    """

    a: IntArray
    i: IntArray
    q: IntArray
    k: IntArray
    sharding: IntArray
    parent: IntArray
    span: FloatArray
    exposed: FloatArray

    def take(self, index: IntArray | NDArray[np.bool_] | slice) -> _Labels:
        """Some of the labels."""
        return _Labels(*(getattr(self, field.name)[index] for field in fields(self)))


def shortest(tables: StageTables, bounds: PrefixBounds, length_s: float, deadline: Deadline) -> Iterator[StagedPlan]:
    """The shortest plans within the bounds and no longer than that, best first, at most a few of one length.

    Raises:
        OutOfTime: with a lower bound, no more than `length_s`, on the plans within the bounds.
    """
    search = _Search(tables, bounds, length_s)
    stages = [search.last_stage()]
    for s in range(tables.stages - 2, -1, -1):
        try:
            stages.insert(0, search.earlier_stage(s, stages[0], deadline))
        except OutOfTime:
            least = search.least_length(s + 1, stages[0])
            raise OutOfTime(float(least.min(initial=length_s)) * (1.0 - SLACK)) from None
    length = stages[0].span + stages[0].exposed
    order = np.argsort(length, kind="stable")[:8]
    for j in order[length[order] <= length[order[:1]] * (1.0 + SLACK)]:
        yield _follow(tables, stages, int(j))


def _follow(tables: StageTables, stages: list[_Labels], j: int) -> StagedPlan:
    """The plan that the j-th label of the first stage stands for."""
    cuts, device_cuts, shardings = [], [], []
    for labels in stages:
        cuts.append(int(tables.boundary[labels.k[j]]) - 1)
        device_cuts.append(int(labels.q[j]))
        shardings.append(int(labels.sharding[j]))
        j = int(labels.parent[j])
    shape = (tuple(cuts[:-1]), tuple(device_cuts[:-1]))
    return StagedPlan(*shape, tables.micro_batches, PLANNER, shardings=tuple(shardings))


@dataclass(frozen=True, eq=False)
class _Arriving:
    """Suffixes with the transfer into them, for several senders' first devices; ascending by `group`.

    Attributes:
        group: row · (m+1) + k: which sender, and the boundary crossed.
        k: that boundary.
        parent: index among the next stage's labels.
        span, exposed: max(2M·x, 2x + T) and R - x.
    """

    group: IntArray
    k: IntArray
    parent: IntArray
    span: FloatArray
    exposed: FloatArray


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

    def length(self, at: IntArray | slice, span: FloatArray, exposed: FloatArray, micro_batches: int) -> FloatArray:
        """[n] lower bound on the length of any plan that ends in suffixes of that span and exposed all-reduce.

        Args:
            at: at which of the places the suffixes begin.
        """
        arrives = self.arrives[at]
        span, exposed = before_transfer(arrives, span, exposed, micro_batches)
        least: FloatArray = span + np.maximum(self.busy[at], exposed + self.forward[at])
        return least


@dataclass(frozen=True, eq=False)
class _Search:
    """What every stage's labels are made from.

    Attributes:
        tables: the problem.
        bounds: where stages may begin, and what must come before them.
        length_s: what plans may not be longer than.
    """

    tables: StageTables
    bounds: PrefixBounds
    length_s: float

    def last_stage(self) -> _Labels:
        """Labels for each place where the last stage may begin."""
        tables, stage = self.tables, self.tables.stages - 1
        devices = tables.replicas_in_all
        begin = np.nonzero(np.isfinite(self.bounds.busy[stage]))
        blocks = []
        for index, sharding in enumerate(tables.shardings):
            on = sharding.allowed[begin[0], devices]
            a, i = begin[0][on], begin[1][on]
            k, replicas = np.full_like(a, tables.end), (devices - a) // sharding.degree
            span = tables.micro_batches * sharding.busy_s(i, k, replicas)
            exposed = sharding.reduce_s(i, k, sharding.all_reduce[a, devices])
            least = self._before(stage, a, i, devices).length(slice(None), span, exposed, tables.micro_batches)
            labels = _Labels(
                a, i, np.full_like(a, devices), k, np.full_like(a, index), np.full_like(a, -1), span, exposed
            )
            blocks.append(labels.take((least <= self.length_s) & tables.fits(stage, i, k, replicas, index)))
        return self._undominated(blocks)

    def earlier_stage(self, stage: int, rest: _Labels, deadline: Deadline) -> _Labels:
        """The labels of a stage before those of the next one, for every device q between the two."""
        begin = np.searchsorted(rest.a, np.arange(self.tables.replicas_in_all + 2))
        blocks = [rest.take(slice(0, 0))]
        for q in np.unique(rest.a).tolist():
            own = np.arange(begin[q], begin[q + 1])
            devices = begin_devices(self.bounds, stage, q)
            rows = max(BLOCK // own.size, 1)
            for first in range(0, devices.size, rows):
                deadline.check()
                blocks += self._stage_on(stage, devices[first : first + rows], q, rest, own)
        return _joined(blocks, self.tables.end)

    def least_length(self, stage: int, labels: _Labels) -> FloatArray:
        """[n] lower bound on the length of any plan within the bounds that ends in such a suffix."""
        before = self._before(stage, labels.a, labels.i, labels.q)
        return before.length(slice(None), labels.span, labels.exposed, self.tables.micro_batches)

    def _before(self, stage: int, a: IntArray, i: IntArray, q: IntArray | int) -> _Before:
        """What must come before the stage from boundary i on devices a … q-1."""
        arrives = self.tables.A[i] * self.tables.devices.arrival[a, q] if stage else np.zeros(i.size)
        return _Before(arrives, self.bounds.busy[stage, a, i], self.bounds.forward[stage, a, i])

    def _undominated(self, shardings: list[_Labels]) -> _Labels:
        """Of labels with the same end device, a sharding each, those that none with the same beginning dominates."""
        if len(shardings) == 1:
            return shardings[0]
        labels = _joined(shardings, self.tables.end)
        group = labels.a * (self.tables.end + 1) + labels.i
        return labels.take(pareto_front(group, labels.span, labels.exposed))

    def _stage_on(self, stage: int, devices: IntArray, q: int, rest: _Labels, own: IntArray) -> list[_Labels]:
        """Labels of the stage on each of `devices` … q-1, before the labels `own` of the rest, which begins there."""
        through = through_shardings(self.tables, self.bounds, stage, devices, q, self.length_s)
        arriving = self._cross(through, devices, q, rest, own)
        if len(through) == 1:
            return list(self._in_sharding(stage, through[0], devices, q, arriving))
        shardings = [
            self._in_sharding(stage, sharding, devices, q, self._reaching(sharding, arriving)) for sharding in through
        ]
        blocks = [labels for labels_of_one in shardings for labels in labels_of_one]
        return [self._undominated(blocks)] if blocks else []

    def _cross(self, through: list[Through], devices: IntArray, q: int, rest: _Labels, own: IntArray) -> _Arriving:
        """Add the transfer over device cut q; what the receiver's end device was no longer matters then."""
        tables = self.tables
        k = rest.i[own]
        x = tables.devices.transfer[q][devices][:, rest.q[own] - q - 1] * tables.A[k]
        span, exposed = before_transfer(x, rest.span[own], rest.exposed[own], tables.micro_batches)
        busy, forward = least_through(through, devices.size, tables.end)
        alive = np.flatnonzero(span + np.maximum(busy[:, k], exposed + forward[:, k]) <= self.length_s)
        group = (np.arange(devices.size)[:, None] * (tables.end + 1) + k).ravel()[alive]
        front = pareto_front(group, span.ravel()[alive], exposed.ravel()[alive])
        kept, from_own = alive[front], alive[front] % own.size
        return _Arriving(group[front], k[from_own], own[from_own], span.ravel()[kept], exposed.ravel()[kept])

    def _reaching(self, through: Through, arriving: _Arriving) -> _Arriving:
        """Those before which a stage in that sharding can still come."""
        row, rows = arriving.group // (self.tables.end + 1), through.rows
        at = np.minimum(np.searchsorted(rows, row), rows.size - 1)
        busy, forward = through.busy[at, arriving.k], through.forward[at, arriving.k]
        least = arriving.span + np.maximum(busy, arriving.exposed + forward)
        some = np.flatnonzero((rows[at] == row) & (least <= self.length_s))
        return _Arriving(*(getattr(arriving, field.name)[some] for field in fields(_Arriving)))

    def _in_sharding(
        self, stage: int, through: Through, devices: IntArray, q: int, arriving: _Arriving
    ) -> Iterator[_Labels]:
        """Labels of the stage in one sharding, before the arriving suffixes; of each place where it begins a front."""
        tables, boundaries, sharding = self.tables, self.tables.end + 1, self.tables.shardings[through.sharding]
        row, i = np.nonzero(np.isfinite(self.bounds.busy[stage, devices[through.rows]]))
        row = through.rows[row]
        a = devices[row]
        replicas, ring = (q - a) // sharding.degree, sharding.all_reduce[a, q]
        before = self._before(stage, a, i, q)
        start = np.searchsorted(arriving.group, row * boundaries + i + 1)
        latest = self._latest_end(sharding, before, i, replicas, ring)
        stop = np.maximum(np.searchsorted(arriving.group, row * boundaries + latest), start)
        cumulated = np.cumsum(stop - start)
        limits = np.searchsorted(cumulated, np.arange(BLOCK, cumulated[-1] if cumulated.size else 0, BLOCK))
        for some in np.split(np.arange(i.size), np.unique(limits)):
            owner, j = ragged_ranges(start[some], stop[some])
            at = some[owner]
            span, exposed = self._extend(sharding, arriving, j, i[at], replicas[at], ring[at])
            short = np.flatnonzero(before.length(at, span, exposed, tables.micro_batches) <= self.length_s)
            begin, k = at[short], arriving.k[j[short]]
            fit = np.flatnonzero(tables.fits(stage, i[begin], k, replicas[begin], through.sharding))
            begin, short = begin[fit], short[fit]
            front = pareto_front(begin, span[short], exposed[short])
            begin, kept = begin[front], short[front]
            yield _Labels(
                a=a[begin],
                i=i[begin],
                q=np.full_like(begin, q),
                k=arriving.k[j[kept]],
                sharding=np.full_like(begin, through.sharding),
                parent=arriving.parent[j[kept]],
                span=span[kept],
                exposed=exposed[kept],
            )

    def _latest_end(
        self, sharding: ShardingTables, before: _Before, i: IntArray, replicas: IntArray, ring: FloatArray
    ) -> IntArray:
        """[n] one past the last boundary where the stage may end: busy + M·u ≤ L, forward + AR ≤ L, σ·ΣW fits."""
        tables, C, W = self.tables, sharding.C, sharding.W
        compute = (self.length_s - before.busy) * replicas / tables.micro_batches
        with np.errstate(divide="ignore"):
            reduced = np.where(ring > 0, (self.length_s - before.forward) / ring, np.inf)
        weights = np.minimum(reduced, tables.memory / tables.state_factor)
        latest: IntArray = np.minimum(
            np.searchsorted(C, C[i] + compute + ROUNDING * C[-1], side="right"),
            np.searchsorted(W, W[i] + weights + ROUNDING * W[-1], side="right"),
        )
        return latest

    def _extend(
        self,
        sharding: ShardingTables,
        arriving: _Arriving,
        j: IntArray,
        i: IntArray,
        replicas: IntArray,
        ring: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """[n] span and exposed all-reduce of a stage from boundary i before the arriving suffixes j."""
        k = arriving.k[j]
        both = sharding.busy_s(i, k, replicas)
        backward = both - sharding.forward_s(i, k, replicas)
        reduce, rest = sharding.reduce_s(i, k, ring), (arriving.span[j], arriving.exposed[j])
        return before_stage(both, backward, reduce, *rest, self.tables.micro_batches)


def _joined(blocks: Sequence[_Labels], end: int) -> _Labels:
    """The labels of several blocks, ascending by (a, i)."""
    labels = _Labels(*(np.concatenate([getattr(b, field.name) for b in blocks]) for field in fields(_Labels)))
    return labels.take(np.argsort(labels.a * (end + 1) + labels.i, kind="stable"))
