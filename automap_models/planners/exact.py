"""The true optimum over every instruction cut on the grid and every device cut, by a label search.

From the back, with T(s) and R(s) the span and the exposed all-reduce of the stages s … S-1 alone,

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0) (cost-model.md). Both never fall when T(s+1) or R(s+1) rises, so of two suffixes that begin
stage s at the same boundary on the same devices a … q-1 one with both numbers no smaller can be dropped. Suffixes
are shared: the search runs over (stage, boundary, first device, end device), never over tuples of device cuts.

A known length U prunes it: a suffix dies when it and the least that must come before it (relaxation.prefix_bounds)
reach beyond U. U comes from the same search on every 2^j-th cut point, and around the plan found there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.plan import Optimality, PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import FloatArray
from automap_models.cost.pipeline import plan_cost
from automap_models.planners.base import Planner
from automap_models.planners.pareto import IntArray, pareto_front, ragged_ranges
from automap_models.planners.relaxation import (
    PrefixBounds,
    begin_devices,
    lower_bound_s,
    out_of_memory,
    prefix_bounds,
    through_stage,
)
from automap_models.planners.stage_tables import ROUNDING, StageTables, stage_tables

__all__ = ["ExactPlanner", "exact_search", "lower_bound_s"]

TIE = 1e-11
"""Plans whose lengths differ relatively by no more are equally long."""
SLACK = 1e-9
"""The search keeps plans longer than its bound by so much: rounding shall not lose the optimum."""
BLOCK = 1 << 18
"""Extensions looked at in one go; what bounds the memory."""
COARSEST = 8
"""Fewest segments of a coarse search."""
AROUND = (3, 2)
"""How far around a plan to look for a better one: boundaries, devices."""


class ExactPlanner(Planner):
    """The shortest plan of S stages on the grid, proven."""

    name: ClassVar[str] = "exact"

    def plan(self, problem: PipelineProblem) -> PipelinePlan:
        """The optimum over every cut on the grid and every device cut, among plans that fit the memory.

        Raises:
            Infeasible: none fits; saying what the best-packed plan would need.
        """
        plan = exact_search(problem)
        if plan is None:
            raise out_of_memory(problem)
        return plan


def exact_search(problem: PipelineProblem, upper_bound_s: float | None = None) -> PipelinePlan | None:
    """The optimum, or None when no plan that fits is shorter than the bound (by more than TIE, relatively).

    With the length of a known plan as the bound, None proves that plan optimal; without a bound None says that
    no plan fits the memory. The length is that of cost.pipeline.
    """
    search = _Search(problem, np.inf if upper_bound_s is None else upper_bound_s)
    plan = search.run()
    return plan and replace(plan, optimality=Optimality(search.length_s, "exact"))


class _Search:
    """Coarse to fine, each level starting from the length that the one before it reached."""

    def __init__(self, problem: PipelineProblem, upper_bound_s: float) -> None:
        self.problem, self.length_s = problem, upper_bound_s
        self.best: PipelinePlan | None = None

    def run(self) -> PipelinePlan | None:
        """The optimum if it is shorter than the upper bound."""
        for stride in _strides(self.problem):
            tables = stage_tables(self.problem, stride)
            while self.best is not None and self._improve(tables, _around(tables, self.best)):
                pass
            self._improve(tables, prefix_bounds(tables, self.length_s * (1.0 + SLACK)))
        return self.best

    def _improve(self, tables: StageTables, bounds: PrefixBounds) -> bool:
        """Search within the bounds; whether a shorter plan than the best so far came out."""
        improved = False
        for cuts, device_cuts in _shortest(tables, bounds, self.length_s * (1.0 + SLACK)):
            plan = self._as_plan(cuts, device_cuts)
            length_s = plan_cost(self.problem, plan).length_s
            if length_s < self.length_s * (1.0 - TIE):
                self.best, self.length_s, improved = plan, length_s, True
        return improved

    def _as_plan(self, cuts: tuple[int, ...], device_cuts: tuple[int, ...]) -> PipelinePlan:
        return PipelinePlan(
            cuts=cuts,
            device_cuts=device_cuts,
            micro_batches=self.problem.micro_batches,
            planner=ExactPlanner.name,
            coarse_cuts=self.problem.grid.to_points(cuts),
        )


def _strides(problem: PipelineProblem) -> list[int]:
    """Powers of two down to 1, the first leaving enough segments for the stages."""
    segments = problem.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, -1, -1)]


def _around(tables: StageTables, plan: PipelinePlan) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin."""
    stages, devices, end = tables.stages, tables.replicas_in_all, tables.end
    begin = np.full((stages, devices + 1, end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = AROUND
    for s, (cut, device) in enumerate(zip(plan.cuts, plan.device_cuts, strict=True), start=1):
        k = int(np.searchsorted(tables.boundary, cut + 1))
        some = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, some, max(s, k - by_boundary) : min(end - stages + s, k + by_boundary) + 1] = 0.0
    return PrefixBounds(begin, begin)


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


def _shortest(
    tables: StageTables, bounds: PrefixBounds, length_s: float
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Instruction and device cuts of the shortest plans within the bounds, best first, at most a few of one length."""
    stages = [_last_stage(tables, bounds, length_s)]
    for s in range(tables.stages - 2, -1, -1):
        stages.insert(0, _earlier_stage(tables, bounds, length_s, s, stages[0]))
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
    return labels.take(
        tables.fits(stage, i, labels.k, devices - a) & _may_be_short(tables, bounds, length_s, stage, labels)
    )


def _may_be_short(
    tables: StageTables, bounds: PrefixBounds, length_s: float, stage: int, labels: _Labels
) -> NDArray[np.bool_]:
    """[n] whether a plan with such a suffix may be no longer than that."""
    arrives = tables.A[labels.i] * tables.devices.arrival[labels.a, labels.q] if stage else np.zeros(labels.i.size)
    span = np.maximum(2.0 * tables.micro_batches * arrives, 2.0 * arrives + labels.span)
    busy = bounds.busy[stage, labels.a, labels.i]
    forward = bounds.forward[stage, labels.a, labels.i]
    short: NDArray[np.bool_] = span + np.maximum(busy, labels.exposed - arrives + forward) <= length_s
    return short


def _earlier_stage(tables: StageTables, bounds: PrefixBounds, length_s: float, stage: int, rest: _Labels) -> _Labels:
    """The labels of a stage before those of the next one, for every device q between the two."""
    begin = np.searchsorted(rest.a, np.arange(tables.replicas_in_all + 2))
    blocks = [rest.take(slice(0, 0))]
    for q in np.unique(rest.a).tolist():
        own = np.arange(begin[q], begin[q + 1])
        devices = begin_devices(bounds, stage, q)
        rows = max(BLOCK // own.size, 1)
        for first in range(0, devices.size, rows):
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
            & _may_be_short(tables, bounds, length_s, stage, labels)
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
