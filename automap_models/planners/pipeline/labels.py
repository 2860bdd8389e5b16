"""The label search: the shortest plans within bounds, from the last stage to the first (see planners.pipeline.exact).

A label is a suffix of a plan, the stages s … S-1, with its span T and its exposed all-reduce R. A search that is
stopped still proves something: every plan no longer than the bound ends in one of the labels that were alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.pipeline.pareto import IntArray, pareto_front, ragged_ranges
from automap_models.planners.pipeline.relaxation import PrefixBounds, begin_devices, through_stage
from automap_models.planners.pipeline.stage_tables import ROUNDING, StageTables

SLACK = 1e-9
"""The search keeps plans longer than its bound by so much: rounding shall not lose the optimum."""
BLOCK = 1 << 18
"""Extensions looked at in one go; what bounds the memory."""

Cuts = tuple[tuple[int, ...], tuple[int, ...]]
"""Instruction cuts and device cuts of a plan."""


@dataclass(frozen=True, eq=False)
class _Labels:
    """Suffixes that begin one stage, ascending by (a, i).

    Attributes:
        a, i: where the stage begins: device and boundary.
        q, k: where it ends.
        parent: index of the rest among the next stage's labels.
        span, exposed: T and R.
    """

    a: IntArray
    i: IntArray
    q: IntArray
    k: IntArray
    parent: IntArray
    span: FloatArray
    exposed: FloatArray

    def take(self, index: IntArray | NDArray[np.bool_] | slice) -> _Labels:
        """Some of the labels."""
        return _Labels(*(getattr(self, field.name)[index] for field in fields(self)))


def shortest(tables: StageTables, bounds: PrefixBounds, length_s: float, deadline: Deadline) -> Iterator[Cuts]:
    """The shortest plans within the bounds and no longer than that, best first, at most a few of one length.

    Raises:
        OutOfTime: with a lower bound, no more than `length_s`, on the plans within the bounds.
    """
    stages = [_last_stage(tables, bounds, length_s)]
    for s in range(tables.stages - 2, -1, -1):
        try:
            stages.insert(0, _earlier_stage(tables, bounds, length_s, s, stages[0], deadline))
        except OutOfTime:
            least = _least_length(tables, bounds, s + 1, stages[0])
            raise OutOfTime(float(least.min(initial=length_s)) * (1.0 - SLACK)) from None
    length = stages[0].span + stages[0].exposed
    order = np.argsort(length, kind="stable")[:8]
    for j in order[length[order] <= length[order[:1]] * (1.0 + SLACK)]:
        yield _follow(tables, stages, int(j))


def _follow(tables: StageTables, stages: list[_Labels], j: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cuts of the plan that the j-th label of the first stage stands for."""
    cuts, device_cuts = [], []
    for labels in stages[:-1]:
        cuts.append(int(tables.boundary[labels.k[j]]) - 1)
        device_cuts.append(int(labels.q[j]))
        j = int(labels.parent[j])
    return tuple(cuts), tuple(device_cuts)


def _last_stage(tables: StageTables, bounds: PrefixBounds, length_s: float) -> _Labels:
    """One label for each place where the last stage may begin."""
    stage, end, devices = tables.stages - 1, tables.end, tables.replicas_in_all
    a, i = np.nonzero(np.isfinite(bounds.busy[stage]))
    span = tables.micro_batches * (tables.C[end] - tables.C[i]) / (devices - a)
    exposed = tables.devices.all_reduce[a, devices] * (tables.W[end] - tables.W[i])
    labels = _Labels(a, i, np.full_like(a, devices), np.full_like(a, end), np.full_like(a, -1), span, exposed)
    fits = tables.fits(stage, i, labels.k, devices - a)
    return labels.take(fits & (_least_length(tables, bounds, stage, labels) <= length_s))


def _least_length(tables: StageTables, bounds: PrefixBounds, stage: int, labels: _Labels) -> FloatArray:
    """[n] lower bound on the length of any plan within the bounds that ends in such a suffix."""
    arrives = tables.A[labels.i] * tables.devices.arrival[labels.a, labels.q] if stage else np.zeros(labels.i.size)
    span = np.maximum(2.0 * tables.micro_batches * arrives, 2.0 * arrives + labels.span)
    busy = bounds.busy[stage, labels.a, labels.i]
    forward = bounds.forward[stage, labels.a, labels.i]
    least: FloatArray = span + np.maximum(busy, labels.exposed - arrives + forward)
    return least


def _earlier_stage(
    tables: StageTables, bounds: PrefixBounds, length_s: float, stage: int, rest: _Labels, deadline: Deadline
) -> _Labels:
    """The labels of a stage before those of the next one, for every device q between the two."""
    begin = np.searchsorted(rest.a, np.arange(tables.replicas_in_all + 2))
    blocks = [rest.take(slice(0, 0))]
    for q in np.unique(rest.a).tolist():
        own = np.arange(begin[q], begin[q + 1])
        devices = begin_devices(bounds, stage, q)
        rows = max(BLOCK // own.size, 1)
        for first in range(0, devices.size, rows):
            deadline.check()
            blocks += _stage_on(tables, bounds, length_s, stage, devices[first : first + rows], q, rest, own)
    joined = _Labels(*(np.concatenate([getattr(b, field.name) for b in blocks]) for field in fields(_Labels)))
    return joined.take(np.argsort(joined.a * (tables.end + 1) + joined.i, kind="stable"))


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


def _stage_on(
    tables: StageTables,
    bounds: PrefixBounds,
    length_s: float,
    stage: int,
    devices: IntArray,
    q: int,
    rest: _Labels,
    own: IntArray,
) -> Iterator[_Labels]:
    """Labels of the stage on each of `devices` … q-1, before the labels `own` of the rest, which begins on device q."""
    arriving = _cross(tables, bounds, length_s, stage, devices, q, rest, own)
    row, i = np.nonzero(np.isfinite(bounds.busy[stage, devices]))
    a = devices[row]
    latest = _latest_end(tables, bounds, length_s, stage, a, q, i)
    start = np.searchsorted(arriving.group, row * (tables.end + 1) + i + 1)
    stop = np.maximum(np.searchsorted(arriving.group, row * (tables.end + 1) + latest), start)
    cumulated = np.cumsum(stop - start)
    limits = np.searchsorted(cumulated, np.arange(BLOCK, cumulated[-1] if cumulated.size else 0, BLOCK))
    for some in np.split(np.arange(i.size), np.unique(limits)):
        owner, j = ragged_ranges(start[some], stop[some])
        begin = some[owner]
        labels = _extend(tables, arriving, a[begin], i[begin], q, j)
        short = np.flatnonzero(
            tables.fits(stage, labels.i, labels.k, q - labels.a)
            & (_least_length(tables, bounds, stage, labels) <= length_s)
        )
        front = short[pareto_front(begin[short], labels.span[short], labels.exposed[short])]
        yield labels.take(front)


def _cross(
    tables: StageTables,
    bounds: PrefixBounds,
    length_s: float,
    stage: int,
    devices: IntArray,
    q: int,
    rest: _Labels,
    own: IntArray,
) -> _Arriving:
    """Add the transfer over device cut q; what the receiver's end device was no longer matters then."""
    k = rest.i[own]
    x = tables.devices.transfer[q][devices][:, rest.q[own] - q - 1] * tables.A[k]
    span = np.maximum(2.0 * tables.micro_batches * x, 2.0 * x + rest.span[own])
    exposed = rest.exposed[own] - x
    busy, forward, unhidden = through_stage(tables, bounds, stage, devices, q, length_s)
    least = np.maximum(np.maximum(busy, unhidden)[:, k], exposed + forward[:, k])
    alive = np.flatnonzero(span + least <= length_s)
    group = (np.arange(devices.size)[:, None] * (tables.end + 1) + k).ravel()[alive]
    front = pareto_front(group, span.ravel()[alive], exposed.ravel()[alive])
    kept, from_own = alive[front], alive[front] % own.size
    return _Arriving(group[front], k[from_own], own[from_own], span.ravel()[kept], exposed.ravel()[kept])


def _latest_end(
    tables: StageTables, bounds: PrefixBounds, length_s: float, stage: int, a: IntArray, q: int, i: IntArray
) -> IntArray:
    """[n] one past the last boundary where the stage may end: busy + M·u ≤ L, forward + AR ≤ L, σ·ΣW fits."""
    C, W = tables.C, tables.W
    ring = tables.devices.all_reduce[a, q]
    compute = (length_s - bounds.busy[stage, a, i]) * (q - a) / tables.micro_batches
    with np.errstate(divide="ignore"):
        reduced = np.where(ring > 0, (length_s - bounds.forward[stage, a, i]) / ring, np.inf)
    weights = np.minimum(reduced, tables.memory / tables.state_factor)
    latest: IntArray = np.minimum(
        np.searchsorted(C, C[i] + compute + ROUNDING * C[-1], side="right"),
        np.searchsorted(W, W[i] + weights + ROUNDING * W[-1], side="right"),
    )
    return latest


def _extend(tables: StageTables, arriving: _Arriving, a: IntArray, i: IntArray, q: int, j: IntArray) -> _Labels:
    """Put a stage from boundary i on devices a … q-1 before the arriving suffixes j; all [n]."""
    k, r = arriving.k[j], q - a
    both = (tables.C[k] - tables.C[i]) / r
    backward = both - (tables.F[k] - tables.F[i]) / r
    reduce = tables.devices.all_reduce[a, q] * (tables.W[k] - tables.W[i])
    return _Labels(
        a=a,
        i=i,
        q=np.full_like(a, q),
        k=k,
        parent=arriving.parent[j],
        span=np.maximum(tables.micro_batches * both, both + arriving.span[j]),
        exposed=np.maximum(reduce, arriving.exposed[j] - backward),
    )
