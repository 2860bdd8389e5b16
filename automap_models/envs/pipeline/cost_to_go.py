"""What the rest of a pipeline will cost: approximate cost-to-go tables by backward dynamic programming.

Both parts of the length L = T + R (cost-model.md) have a recursion from the back. With T' and R' of what follows a
stage of time u = f + b, and x the transfer after it,

    T = max(M·u, u + max(2M·x, 2x + T'))        R = max(AR, R' - b - x)

where R is what the all-reduces of these stages take beyond the backward passes before them. Whatever comes before
enters L only through Σu, ΣB, T and R so far, so that one table over (stages left, last point, first device) serves
every partial plan. An exact table holds all trade-offs between T and R (staged.exact). This one keeps a single label
an entry, the best under a guess of what came before, for a few points, stage sizes and first devices, so that it is no
larger for larger models and clusters: approximation in value space (Bertsekas 2019, chapter 2). Acting greedily on it
is near the optimum already; what it gets wrong is left to learn.
All times are in units of the ideal length ΣC·M / D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from automap_models.cost.staged_torch import all_reduce_factor, equal_parts, span_before, transfer_factor

POINTS = 32
"""Grid points at which the rest of a pipeline may be cut."""
END_POINTS = 3
"""So many first and last legal points are always among them: stages of one instruction are best at the ends."""
UNITS = 32
"""Equal groups that devices are counted in: single devices on up to 32 of them, pairs on up to 64, …"""
STAGE_UNITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28)
"""Units that a stage of the rest may have, but for the last one, which gets all that are left."""
IMPOSSIBLE = 1e6
"""Span of what has no place or does not fit the memory; the longest real ones are below 1e4 ideal lengths."""
BLOCKS = 4
"""The points that a stage may begin at are worked on in so many blocks: a stage cannot end before it begins."""
CHUNK = {"cpu": 1}
"""Problems worked on at a time: on a CPU the largest tensors stay in its cache."""
OTHER_CHUNK = 256


@dataclass(frozen=True)
class Fineness:
    """How fine tables are.

    Attributes:
        points: grid points at which the rest of a pipeline may be cut, at most.
        units: equal groups that devices are counted in.
        stage_units: units that a stage of the rest may have, ascending.
    """

    points: int = POINTS
    units: int = UNITS
    stage_units: tuple[int, ...] = STAGE_UNITS


SHIPPED = Fineness()
"""As policies in files have them."""


class Scaled(NamedTuple):
    """B problems with times in units of the ideal length, stash as a fraction of device memory.

    arrays: [B, 5, P] as in envs.pipeline.encoding; the rest [B, 1, 1], samples None where no problem has any.
    """

    arrays: Tensor
    devices: Tensor
    per_node: Tensor
    ratio: Tensor
    state: Tensor
    stages: Tensor
    micro: Tensor
    samples: Tensor | None = None

    def take(self, index: Tensor) -> Scaled:
        """Some of the problems."""
        given = (tensor[index] for tensor in self[:7])
        return Scaled._make((*given, None if self.samples is None else self.samples[index]))

    def at(self, points: Tensor) -> Tensor:
        """[B, 5, k] the channels at points, int64 [B, k]; -1 is the start of the model."""
        return functional.pad(self.arrays, (1, 0)).gather(2, (points + 1).unsqueeze(1).expand(-1, 5, -1))

    @property
    def total(self) -> Tensor:
        """[B, 5, 1] the channels at the end of the model."""
        return self.arrays[:, :, -1:]


class Rest(NamedTuple):
    """T and R of the stages left and where the devices of the first of them end; all of one shape."""

    span: Tensor
    reduce: Tensor
    stop: Tensor


class CostToGo(NamedTuple):
    """Tables of B problems for 2 … L + 1 stages left (one stage left needs none, see `last_stage`).

    They hold, for the stages after each of K points from each of U units on, a plan rather than its cost, so that the
    plan can be costed exactly from any point and device, not only from those of the tables.

    points: int64 [B, K] ascending; the last grid point, which is no cut, fills up where fewer are legal.
    end, stop: [B, L, K, U] index of the point and number of the device at which the first of these stages ends.
    after: [B, L, K, U] number of the device at which the second one ends; with it the transfer between them is known.
    span, reduce: [B, L, K, U] T from the transfer after that stage on; R of the stages behind it less the transfer.
    """

    points: Tensor
    end: Tensor
    stop: Tensor
    after: Tensor
    span: Tensor
    reduce: Tensor

    def take(self, index: Tensor) -> CostToGo:
        """The tables of some of the problems."""
        return CostToGo(*(tensor[index] for tensor in self))

    @property
    def units(self) -> int:
        """Number U of units that devices are counted in."""
        return int(self.end.shape[3])

    def only(self, left: Tensor) -> CostToGo:
        """The same with a single level: of each problem that for so many stages left, int64 [B]."""
        return CostToGo(self.points, *(table.gather(1, _level(table, left)) for table in self[1:]))

    def for_states(self, owner: Tensor, left: Tensor) -> CostToGo:
        """Of each state the tables of its problem, int64 [n], with the single level for so many stages left, int64 [n].

        Where there is no such level the nearest stands in its place.
        """
        level = (left - 2).clamp(0, self.end.shape[1] - 1)
        return CostToGo(self.points[owner], *(table[owner, level].unsqueeze(1) for table in self[1:]))


def _level(table: Tensor, left: Tensor) -> Tensor:
    """int64 [B, 1, K, U] the level of [B, L, K, U] tables for so many stages left, int64 [B]; the nearest there is."""
    level = (left - 2).clamp(0, table.shape[1] - 1).view(-1, 1, 1, 1)
    return level.expand(-1, 1, table.shape[2], table.shape[3])


@torch.no_grad()
def cost_to_go(
    scaled: Scaled, cut_mask: Tensor, max_stages: int, fineness: Fineness = SHIPPED, *, compiled: bool = False
) -> CostToGo:
    """The tables of a batch of problems, of which bool [B, P] says where a stage may end.

    Args:
        compiled: by loops that torch.compile makes of the operators; problems are worked on in full chunks then.
    """
    device = cut_mask.device
    chunk = CHUNK.get(device.type, OTHER_CHUNK)
    order = scaled.stages.flatten().argsort(stable=True)  # a chunk makes as many levels as its deepest pipeline needs
    parts = []
    for some in torch.split(order, chunk):
        # Compiled for one shape: filled up with the last problem.
        rows = torch.cat([some, some[-1:].expand(chunk - len(some))]) if compiled else some
        tables = _tables(scaled.take(rows), cut_mask[rows], max_stages, fineness, compiled)
        parts.append([tensor[: len(some)] for tensor in tables])
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=device)
    return CostToGo(*(torch.cat(tensors)[back] for tensors in zip(*parts, strict=True)))


@cache
def _loops(function: Callable[..., Any], fineness: Fineness, compiled: bool) -> Callable[..., Any]:
    """A function for one fineness, compiled or not."""
    bound = partial(function, fineness=fineness)
    return torch.compile(bound, dynamic=False, fullgraph=True) if compiled else bound


def _tables(scaled: Scaled, cut_mask: Tensor, max_stages: int, fineness: Fineness, compiled: bool) -> CostToGo:
    points = choose_points(scaled.arrays, cut_mask, fineness.points)
    at, legal = scaled.at(points), cut_mask.gather(1, points)
    stages = _loops(every_stage, fineness, compiled)(scaled, at)
    rest, tables = last_stage(scaled, at, first_devices(scaled, fineness.units)), []
    if compiled:  # for one layout in memory, too: that of every later rest
        rest = Rest(*(tensor.contiguous() for tensor in rest))
    needed = min(levels(max_stages), levels(int(scaled.stages.max())))
    for left in range(2, 2 + needed):
        rest, plan = _loops(earlier_stage, fineness, compiled)(scaled, at, legal, stages, rest, at.new_tensor(left))
        tables.append(plan)
    unused = (0, 0) * 2 + (0, levels(max_stages) - needed)
    return CostToGo(points, *(functional.pad(torch.stack(table, 1), unused) for table in zip(*tables, strict=True)))


def levels(max_stages: int) -> int:
    """Number L of tables: for 2 … max_stages - 1 stages left, and at least one so that no tensor is empty."""
    return max(1, max_stages - 2)


def devices_per_unit(scaled: Scaled, units: int = UNITS) -> Tensor:
    """[B, 1, 1] where devices are counted in so many units."""
    return torch.ceil(scaled.devices / units)


def first_devices(scaled: Scaled, units: int = UNITS) -> Tensor:
    """[B, 1, U] the first device of each unit; on clusters without a whole number of them some are beyond the last."""
    number = torch.arange(units, dtype=scaled.devices.dtype, device=scaled.devices.device)
    return number * devices_per_unit(scaled, units)


def stage_devices(scaled: Scaled, fineness: Fineness) -> Tensor:
    """[B, 1, R] devices of a stage of each of the sizes."""
    return scaled.devices.new_tensor(fineness.stage_units) * devices_per_unit(scaled, fineness.units)


def choose_points(arrays: Tensor, cut_mask: Tensor, points: int = POINTS) -> Tensor:
    """int64 [B, K] the grid points that tables are made for, ascending; K is `points`, or all that there are.

    By priority: the ends; the point with the smallest activations in each of K - 2·END_POINTS segments, which have
    equal shares of computation, parameters and legal points together; where computation or parameters jump.
    """
    count = min(points, arrays.shape[2])
    segments = max(1, count - 2 * END_POINTS)
    rank = cut_mask.float().cumsum(1)
    computation, parameters = (arrays[:, c] / arrays[:, c, -1:].clamp(min=1e-12) for c in (0, 2))
    weight = 0.4 * computation + 0.3 * parameters + 0.3 * rank / rank[:, -1:].clamp(min=1)
    segment = (torch.ceil(weight / weight[:, -1:] * segments) - 1).clamp(0, segments - 1)
    is_end = cut_mask & ((rank <= END_POINTS) | (rank > rank[:, -1:] - END_POINTS))
    inner = cut_mask & ~is_end

    member = inner.unsqueeze(2) & (segment.unsqueeze(2) == torch.arange(segments, device=arrays.device))
    activation = torch.where(member, arrays[:, 1].unsqueeze(2), torch.inf)
    least = member & (activation <= activation.amin(1, keepdim=True))
    is_least = (least & (least.float().cumsum(1) == 1)).any(2)  # the first of equals

    step = functional.pad(computation + parameters, (1, 1)).diff(dim=1)
    jump = (step[:, :-1] + step[:, 1:].clamp(min=0)) / 8  # both ends of a step in [0, 2]
    tie_break = 1e-6 * torch.arange(arrays.shape[2], device=arrays.device)
    priority = torch.where(is_end, 2.0, is_least.float()) + jump - tie_break
    chosen = torch.where(cut_mask, priority, -1.0).topk(count, 1)
    return torch.where(chosen.values > -1, chosen.indices, arrays.shape[2] - 1).sort(1).values


def last_stage(scaled: Scaled, at: Tensor, first: Tensor) -> Rest:
    """One stage after points with channels [B, 5, k] on all devices from `first` on, [B, 1, U]: [B, k, U]."""
    replicas = (scaled.devices - first).clamp(min=1)
    left = (scaled.total - at).unsqueeze(3)
    memory = scaled.state * left[:, 2] + left[:, 4] / replicas
    fits = (memory <= 1) & (first < scaled.devices)
    factor = all_reduce_factor(first, torch.maximum(scaled.devices, first + 1), scaled.per_node, scaled.ratio)
    span = torch.where(fits, scaled.micro * left[:, 0] / replicas, IMPOSSIBLE)
    return Rest(span, left[:, 2] * factor, scaled.devices.expand_as(span))


Plan = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""One level of CostToGo: end, stop, after, span and reduce, [B, K, U]."""


class Stages(NamedTuple):
    """Every stage from some points to later ones, whatever is left behind it; X runs over end points and sizes.

    time, backward: u and its backward part, [B, k, 1, X]; hold: how many micro-batches in flight fit, negative where
    the stage does not end behind its beginning, [B, k, 1, X]; reduce: its all-reduce, [B, k, U, X].
    """

    time: Tensor
    backward: Tensor
    hold: Tensor
    reduce: Tensor


def every_stage(scaled: Scaled, at: Tensor, fineness: Fineness = SHIPPED) -> list[Stages]:
    """The stages from points with channels [B, 5, K] on, in BLOCKS of these, each with the ends from its first on."""
    first, sizes = first_devices(scaled, fineness.units).squeeze(1).unsqueeze(2), stage_devices(scaled, fineness)
    per_node, ratio = scaled.per_node, scaled.ratio
    factor = all_reduce_factor(first, first + sizes, per_node, ratio).unsqueeze(1)  # [B, 1, U, R]
    sizes, count, several = sizes.unsqueeze(1), at.shape[2], len(fineness.stage_units)
    blocks = []
    for low, high in pairwise(count * block // BLOCKS for block in range(BLOCKS + 1)):
        rows = slice(low, high)
        stage = (at[:, :, low:].unsqueeze(2) - at[:, :, rows].unsqueeze(3)).unsqueeze(4)
        compute, _, weights, forward, stash = stage.unbind(1)  # [B, k, to, 1]
        per_device = 1 / equal_parts(sizes, _deeper(scaled.samples))
        hold = (1 - scaled.state.unsqueeze(3) * weights) / (stash * per_device).clamp(min=1e-9)
        points = torch.arange(count, device=at.device)
        later = (points[rows].unsqueeze(1) < points[low:]).view(1, -1, count - low, 1)
        whole, tiled = weights.expand(-1, -1, -1, several), factor.repeat(1, 1, 1, count - low)
        blocks.append(
            Stages(
                (compute * per_device).flatten(2).unsqueeze(2),
                ((compute - forward) * per_device).flatten(2).unsqueeze(2),
                torch.where(later, hold, -1.0).flatten(2).unsqueeze(2),
                whole.flatten(2).unsqueeze(2) * tiled,
            )
        )
    return blocks


def earlier_stage(
    scaled: Scaled,
    at: Tensor,
    legal: Tensor,
    stages: list[Stages],
    rest: Rest,
    left: Tensor,
    fineness: Fineness = SHIPPED,
) -> tuple[Rest, Plan]:
    """From the rest in left - 1 stages to that in `left`: the best stage to put in front, [B, K, U].

    The sum T + max(R, enough) decides, T with the transfer into the stage, of which only what comes before is guessed.

    Args:
        at: channels at the tables' points, [B, 5, K].
        legal: bool [B, K] which of them are cuts.
        stages: see every_stage.
        rest: with one stage less.
        left: a number ≥ 2.
        fineness: of the tables.

    Returns:
        Its cost, and the plan for the tables.
    """
    first, count, several = first_devices(scaled, fineness.units), at.shape[2], len(fineness.stage_units)
    ahead = _behind_a_cut(scaled, at[:, 1], legal, rest, left, fineness)
    enough = _reduce_before(scaled, at, first, left).unsqueeze(3)
    into = 2 * _transfer_into(scaled, at, first, left, fineness)
    span, reduce = (t.flatten(2).unsqueeze(1) for t in ahead[:2])  # [B, 1, U, X]
    in_flight, micro = torch.minimum(scaled.micro, left).unsqueeze(3), scaled.micro.unsqueeze(3)
    best, done = [], 0
    for block in stages:
        skip = span.shape[3] - block.time.shape[3]
        rows = slice(done, done + block.time.shape[1])
        steady = torch.where(block.hold >= in_flight, micro * block.time, IMPOSSIBLE)
        whole = span_before(block.time, steady, span[..., skip:])
        transfer = into[:, rows].repeat(1, 1, 1, whole.shape[3] // several)
        whole = span_before(transfer, micro * transfer, whole)
        exposed = torch.maximum(block.reduce, reduce[..., skip:] - block.backward)
        best.append((whole + torch.maximum(exposed, enough[:, rows])).argmin(3) + skip)
        done += block.time.shape[1]
    chosen = torch.cat(best, 1)  # [B, K, U] end point · R + size

    def behind(table: Tensor) -> Tensor:
        return table.flatten(2).gather(2, chosen.transpose(1, 2)).transpose(1, 2)

    end = chosen // several
    stop = first + at.new_tensor(fineness.stage_units)[chosen % several] * devices_per_unit(scaled, fineness.units)
    # Where nothing fits, all stages tie, those that end where they begin among them.
    span = torch.where(end > torch.arange(count, device=at.device).view(-1, 1), behind(ahead.span), IMPOSSIBLE)
    begun = Rest(span, behind(ahead.reduce), stop)
    plan = (end.to(at.dtype), stop, behind(ahead.stop), begun.span, begun.reduce)
    compute, _, weights, forward, stash = (gather_points(at, end) - at.unsqueeze(3)).unbind(1)
    factor = all_reduce_factor(first, stop, scaled.per_node, scaled.ratio)
    per_device = 1 / equal_parts(stop - first, scaled.samples)
    return one_more_stage(scaled, (compute, weights, forward, stash), per_device, factor, begun, left), plan


def one_more_stage(
    scaled: Scaled, stage: Sequence[Tensor], per_device: Tensor, all_reduce: Tensor, rest: Rest, left: Tensor
) -> Rest:
    """The rest that begins with a stage before another rest; all tensors of one shape.

    Args:
        stage: its computation, parameters, forward computation and stash.
        per_device: 1 / the equal parts that its devices split a micro-batch into.
        all_reduce: the time of its all-reduce per gradient.
        rest: T from the transfer behind it on, R behind it less the transfer, and where the stage itself stops.
        left: stages, this one included.
    """
    compute, weights, forward, stash = stage
    time, backward = compute * per_device, (compute - forward) * per_device
    memory = scaled.state * weights + torch.minimum(scaled.micro, left) * stash * per_device
    span = span_before(time, scaled.micro * time, rest.span)
    fits = (memory <= 1) & (compute >= 0) & (span < IMPOSSIBLE)
    reduce = torch.maximum(weights * all_reduce, rest.reduce - backward)
    return Rest(torch.where(fits, span, IMPOSSIBLE), reduce, rest.stop)


def gather_points(at: Tensor, index: Tensor) -> Tensor:
    """[B, 5, K], int64 [B, k, U] → [B, 5, k, U]."""
    flat = index.flatten(1).unsqueeze(1).expand(-1, 5, -1)
    return at.gather(2, flat).view(-1, 5, *index.shape[1:])


def _behind_a_cut(
    scaled: Scaled, activation: Tensor, legal: Tensor, rest: Rest, left: Tensor, fineness: Fineness
) -> Rest:
    """What follows a stage that begins with each unit, ends at point k and has a size r: [B, U, K, R].

    span: T from the transfer on; reduce: R', less the transfer; stop: of the stage behind.
    """
    units, several = fineness.units, len(fineness.stage_units)
    sizes = torch.tensor(fineness.stage_units, device=activation.device)
    unit = torch.arange(units, device=activation.device).unsqueeze(1) + sizes
    index = unit.clamp(max=units - 1).flatten()
    span, reduce, stop = (t.index_select(2, index).view(-1, t.shape[1], units, several).transpose(1, 2) for t in rest)
    per_node, ratio, micro, total, unit_devices = (
        t.unsqueeze(3)
        for t in (scaled.per_node, scaled.ratio, scaled.micro, scaled.devices, devices_per_unit(scaled, units))
    )
    boundary = unit.to(activation.dtype).unsqueeze(1) * unit_devices  # [B, U, 1, R]
    first = first_devices(scaled, units).squeeze(1).unsqueeze(2).unsqueeze(3)
    stop = torch.maximum(stop, boundary + 1)
    transfer = activation.unsqueeze(1).unsqueeze(3) * transfer_factor(
        first, boundary, stop, per_node, ratio, _deeper(scaled.samples)
    )
    possible = (boundary <= total - (left - 1)) & legal.unsqueeze(1).unsqueeze(3)
    span = span_before(2 * transfer, 2 * micro * transfer, span)
    return Rest(torch.where(possible, span, IMPOSSIBLE), reduce - transfer, stop)


def _reduce_before(scaled: Scaled, at: Tensor, first: Tensor, left: Tensor) -> Tensor:
    """[B, K, U] a guess of the R below which the rest's makes no difference, in terms of the rest's.

    The stages before share their work, parameters and devices evenly; the first one's all-reduce hides behind nothing.
    """
    before, devices = scaled.stages - left, first.clamp(min=1)
    before = before.clamp(min=1)
    backward = before * (at[:, 0] - at[:, 3]).unsqueeze(2) / devices
    size = torch.ceil(devices / before)
    factor = all_reduce_factor(torch.zeros_like(size), size, scaled.per_node, scaled.ratio)
    return backward + at[:, 2].unsqueeze(2) / before * factor


def _transfer_into(scaled: Scaled, at: Tensor, first: Tensor, left: Tensor, fineness: Fineness) -> Tensor:
    """[B, K, U, R] the transfer into a stage of each size, if the stages before share their devices evenly."""
    before = (scaled.stages - left).clamp(min=1)
    sender = (first - torch.ceil(first / before)).clamp(min=0).unsqueeze(3)
    boundary = first.clamp(min=1).unsqueeze(3)
    stop = boundary + stage_devices(scaled, fineness).unsqueeze(2)
    per_node, ratio, samples = scaled.per_node.unsqueeze(3), scaled.ratio.unsqueeze(3), _deeper(scaled.samples)
    return at[:, 1].unsqueeze(2).unsqueeze(3) * transfer_factor(sender, boundary, stop, per_node, ratio, samples)


def _deeper(samples: Tensor | None) -> Tensor | None:
    """[B, 1, 1] → [B, 1, 1, 1]."""
    return None if samples is None else samples.unsqueeze(3)
