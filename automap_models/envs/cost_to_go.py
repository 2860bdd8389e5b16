"""What the rest of a pipeline will cost: approximate cost-to-go tables by backward dynamic programming.

Both parts of the length L = T + R (cost-model.md) have a recursion from the back. With T' and R' of what follows a
stage of time u = f + b, and x the transfer after it,

    T = max(M·u, u + max(2M·x, 2x + T'))        R = max(AR, R' - b - x)

where R is what the all-reduces of these stages take beyond the backward passes before them. Whatever comes before
enters L only through Σu, ΣB, T and R so far, so that one table over (stages left, last point, first device) serves
every partial plan. An exact table holds all trade-offs between T and R (planners.exact). This one keeps a single label
an entry, the best under a guess of what came before, for a few points and stage sizes: approximation in value space
(Bertsekas 2019, chapter 2). Acting greedily on it is near the optimum already; what it gets wrong is left to learn.
All times are in units of the ideal length ΣC·M / D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from automap_models.cost.pipeline_batch import all_reduce_factor, transfer_factor
from automap_models.envs.scaled import Scaled

POINTS = 24
"""Grid points at which the rest of a pipeline may be cut."""
END_POINTS = 3
"""So many first and last legal points are always among them: stages of one instruction are best at the ends."""
STAGE_DEVICES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28)
"""Devices that a stage of the rest may have, but for the last one, which gets all that are left."""
IMPOSSIBLE = 1e6
"""Span of what has no place or does not fit the memory; the longest real ones are below 1e4 ideal lengths."""
BLOCKS = 4
"""The points that a stage may begin at are worked on in so many blocks: a stage cannot end before it begins."""
CHUNK = {"cpu": 1}
"""Problems worked on at a time: on a CPU the largest tensors stay in its cache."""
OTHER_CHUNK = 256


class Rest(NamedTuple):
    """T and R of the stages left and where the devices of the first of them end; all of one shape."""

    span: Tensor
    reduce: Tensor
    stop: Tensor


class CostToGo(NamedTuple):
    """Tables of B problems for 2 … L + 1 stages left (one stage left needs none, see `last_stage`).

    They hold, for the stages after each of K points on the devices from each of A on, a plan rather than its cost, so
    that the plan can be costed exactly from any point, not only from those of the tables (`the_rest`).

    points: int64 [B, K] ascending; the last grid point, which is no cut, fills up where fewer are legal.
    end, stop: [B, L, K, A] index of the point and number of the device at which the first of these stages ends.
    span, reduce: [B, L, K, A] T from the transfer after that stage on; R of the stages behind it less the transfer.
    """

    points: Tensor
    end: Tensor
    stop: Tensor
    span: Tensor
    reduce: Tensor

    def take(self, index: Tensor) -> CostToGo:
        """The tables of some of the problems."""
        return CostToGo(*(tensor[index] for tensor in self))


def cost_to_go(scaled: Scaled, cut_mask: Tensor, max_stages: int, max_devices: int) -> CostToGo:
    """The tables of a batch of problems, of which bool [B, P] says where a stage may end."""
    device = cut_mask.device
    chunks = torch.split(torch.arange(len(cut_mask), device=device), CHUNK.get(device.type, OTHER_CHUNK))
    parts = [_tables(scaled.take(rows), cut_mask[rows], max_stages, max_devices) for rows in chunks]
    return CostToGo(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _tables(scaled: Scaled, cut_mask: Tensor, max_stages: int, max_devices: int) -> CostToGo:
    points = choose_points(scaled.arrays, cut_mask)
    at, legal = scaled.at(points), cut_mask.gather(1, points)
    rest, tables = last_stage(scaled, at, first_devices(at, max_devices)), []
    for left in range(2, 2 + levels(max_stages)):
        rest, plan = earlier_stage(scaled, at, legal, rest, at.new_tensor(left))
        tables.append(plan)
    return CostToGo(points, *(torch.stack(table, 1) for table in zip(*tables, strict=True)))


def levels(max_stages: int) -> int:
    """Number L of tables: for 2 … max_stages - 1 stages left, and at least one so that no tensor is empty."""
    return max(1, max_stages - 2)


def first_devices(like: Tensor, max_devices: int) -> Tensor:
    """[1, 1, A] every device that can be a stage's first."""
    return torch.arange(max_devices, dtype=like.dtype, device=like.device).view(1, 1, -1)


def choose_points(arrays: Tensor, cut_mask: Tensor) -> Tensor:
    """int64 [B, K] the grid points that tables are made for, ascending.

    By priority: the ends; the point with the smallest activations in each of K - 2·END_POINTS segments, which have
    equal shares of computation, parameters and legal points together; where computation or parameters jump.
    """
    count = min(POINTS, arrays.shape[2])
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
    return torch.where(chosen.values >= 0, chosen.indices, arrays.shape[2] - 1).sort(1).values


def last_stage(scaled: Scaled, at: Tensor, first: Tensor) -> Rest:
    """One stage after points with channels [B, 5, k] on all devices from `first` on, [B or 1, 1, A]: [B, k, A]."""
    replicas = (scaled.devices - first).clamp(min=1)
    left = (scaled.total - at).unsqueeze(3)
    memory = scaled.state * left[:, 2] + left[:, 4] / replicas
    fits = (memory <= 1) & (first < scaled.devices)
    factor = all_reduce_factor(first, torch.maximum(scaled.devices, first + 1), scaled.per_node, scaled.ratio)
    span = torch.where(fits, scaled.micro * left[:, 0] / replicas, IMPOSSIBLE)
    return Rest(span, left[:, 2] * factor, scaled.devices.expand_as(span))


Plan = tuple[Tensor, Tensor, Tensor, Tensor]
"""One level of CostToGo: end, stop, span and reduce, [B, K, A]."""


def earlier_stage(scaled: Scaled, at: Tensor, legal: Tensor, rest: Rest, left: Tensor) -> tuple[Rest, Plan]:
    """From the rest in left - 1 stages to that in `left`: the best stage to put in front, [B, K, A].

    Args:
        at: channels at the tables' points, [B, 5, K].
        legal: bool [B, K] which of them are cuts.
        rest: with one stage less.
        left: a number ≥ 2.

    Returns:
        Its cost, and the plan for the tables.
    """
    ahead = _behind_a_cut(scaled, at[:, 1], legal, rest, left)
    first = first_devices(at, rest.span.shape[2])
    before = _Before(_reduce_before(scaled, at, first, left), _transfer_into(scaled, at, first, left))
    count, size = at.shape[2], -(-at.shape[2] // BLOCKS)
    best = torch.cat(
        [
            _best_stages(scaled, at, ahead, before, left, slice(low, min(low + size, count)))
            for low in range(0, count, size)
        ],
        1,
    )  # [B, K, A]

    def chosen(table: Tensor) -> Tensor:
        return table.flatten(2).gather(2, best.transpose(1, 2)).transpose(1, 2)

    end = best // len(STAGE_DEVICES)
    stop = first + at.new_tensor(STAGE_DEVICES)[best % len(STAGE_DEVICES)]
    # Where nothing fits, all stages tie, those that end where they begin among them.
    span = torch.where(end > torch.arange(count, device=at.device).view(-1, 1), chosen(ahead.span), IMPOSSIBLE)
    plan = (end.to(at.dtype), stop, span, chosen(ahead.reduce))
    return _stage_in_front(scaled, _gather_points(at, end) - at.unsqueeze(3), first, *plan[1:], left), plan


def _gather_points(at: Tensor, index: Tensor) -> Tensor:
    """[B, 5, K], int64 [B, k, A] → [B, 5, k, A]."""
    flat = index.flatten(1).unsqueeze(1).expand(-1, 5, -1)
    return at.gather(2, flat).view(-1, 5, *index.shape[1:])


class _Before(NamedTuple):
    """Guesses of what comes before the rest.

    enough: [B, K, A] the R below which the rest's makes no difference; transfer: [B, K, A, R] into its first stage.
    """

    enough: Tensor
    transfer: Tensor


def _best_stages(scaled: Scaled, at: Tensor, ahead: Rest, before: _Before, left: Tensor, rows: slice) -> Tensor:
    """int64 [B, rows, A] the best stage from each of some points on, as (its last point)·R + (its number of devices).

    The sum T + max(R, enough) decides, T with the transfer into the stage, which hangs on its devices. All tensors are
    [B, from, A, to, R] or broadcast to it.
    """
    sizes, low = at.new_tensor(STAGE_DEVICES), int(rows.start)
    stage = (at[:, :, low:].unsqueeze(2) - at[:, :, rows].unsqueeze(3)).unsqueeze(3).unsqueeze(5)
    each = stage / sizes
    micro, state = (t.view(-1, 1, 1, 1, 1) for t in (scaled.micro, scaled.state))
    memory = state * stage[:, 2] + torch.minimum(micro, left) * each[:, 4]
    points = torch.arange(at.shape[2], device=at.device)
    later = (points[rows].view(-1, 1) < points[low:]).unsqueeze(1).unsqueeze(3)
    steady = torch.where((memory <= 1) & later, micro * each[:, 0], IMPOSSIBLE)
    first = first_devices(at, before.enough.shape[2]).squeeze(0).unsqueeze(2)
    factor = all_reduce_factor(first, first + sizes, scaled.per_node, scaled.ratio).unsqueeze(1).unsqueeze(3)
    behind = (t[:, :, low:].unsqueeze(1) for t in (ahead.span, ahead.reduce))

    span = torch.maximum(steady, each[:, 0] + next(behind))
    reduce = torch.maximum(stage[:, 2] * factor, next(behind) - (each[:, 0] - each[:, 3]))
    transfer = 2 * before.transfer[:, rows].unsqueeze(3)
    span = torch.maximum(micro * transfer, transfer + span)
    score = span + torch.maximum(reduce, before.enough[:, rows].unsqueeze(3).unsqueeze(4))
    return score.flatten(3).argmin(3) + low * len(STAGE_DEVICES)


def _behind_a_cut(scaled: Scaled, activation: Tensor, legal: Tensor, rest: Rest, left: Tensor) -> Rest:
    """What follows a stage that begins at each device, ends at point k and has r devices: [B, A, K, R].

    span: T from the transfer on; reduce: R', less the transfer; stop: of the stage behind.
    """
    devices = rest.span.shape[2]
    first = torch.arange(devices, dtype=activation.dtype, device=activation.device).view(1, -1, 1, 1)
    boundary = first + activation.new_tensor(STAGE_DEVICES)
    index = boundary.clamp(max=devices - 1).long().flatten()
    span, reduce, stop = (
        t.index_select(2, index).view(-1, t.shape[1], devices, len(STAGE_DEVICES)).transpose(1, 2) for t in rest
    )
    per_node, ratio, micro, total = (
        t.unsqueeze(3) for t in (scaled.per_node, scaled.ratio, scaled.micro, scaled.devices)
    )
    stop = torch.maximum(stop, boundary + 1)
    transfer = activation.unsqueeze(1).unsqueeze(3) * transfer_factor(first, boundary, stop, per_node, ratio)
    possible = (boundary <= total - (left - 1)) & legal.unsqueeze(1).unsqueeze(3)
    span = torch.maximum(2 * micro * transfer, 2 * transfer + span)
    return Rest(torch.where(possible, span, IMPOSSIBLE), reduce - transfer, stop)


def _reduce_before(scaled: Scaled, at: Tensor, first: Tensor, left: Tensor) -> Tensor:
    """[B, K, A] a guess of the R below which the rest's makes no difference, in terms of the rest's.

    The stages before share their work, parameters and devices evenly; the first one's all-reduce hides behind nothing.
    """
    before, devices = scaled.stages - left, first.clamp(min=1)
    before = before.clamp(min=1)
    backward = before * (at[:, 0] - at[:, 3]).unsqueeze(2) / devices
    each = torch.ceil(devices / before)
    factor = all_reduce_factor(torch.zeros_like(each), each, scaled.per_node, scaled.ratio)
    return backward + at[:, 2].unsqueeze(2) / before * factor


def _transfer_into(scaled: Scaled, at: Tensor, first: Tensor, left: Tensor) -> Tensor:
    """[B, K, A, R] the transfer into a stage of each size, if the stages before share their devices evenly."""
    before = (scaled.stages - left).clamp(min=1)
    sender = (first - torch.ceil(first / before)).clamp(min=0).unsqueeze(3)
    boundary = first.clamp(min=1).unsqueeze(3)
    stop = boundary + at.new_tensor(STAGE_DEVICES)
    per_node, ratio = scaled.per_node.unsqueeze(3), scaled.ratio.unsqueeze(3)
    return at[:, 1].unsqueeze(2).unsqueeze(3) * transfer_factor(sender, boundary, stop, per_node, ratio)


def the_rest(scaled: Scaled, tables: CostToGo, left: Tensor, points: Tensor, sender: Tensor) -> tuple[Rest, Tensor]:
    """What may follow after any points, int64 [B, k], on the devices from each one on: [B, k, A].

    Between two of the tables' points two plans are known: the one from the point before, with a first stage that much
    shorter, and the one from the point behind, with a first stage that much longer. Both are costed exactly, and the
    one with the smaller T + R, the transfer to it included, is taken.

    Args:
        left: [B, 1, 1] stages left; one is all that remains, on all devices.
        sender: [B, 1, 1] first device of the stage that ends at the points.

    Returns:
        The rest, and the transfer time per activation from the stage on `sender` … to it.
    """
    plans = _plans(scaled, tables, left, sender)
    at, count = scaled.at(points).unsqueeze(3), tables.points.shape[1]
    behind = (tables.points.unsqueeze(1) < points.unsqueeze(2)).sum(2).clamp(max=count - 1)
    hit = tables.points.gather(1, behind) == points
    before = torch.where(hit, behind, (behind - 1).clamp(min=0))
    offset = count * torch.arange(points.shape[0], device=points.device).unsqueeze(1)
    in_flight = torch.minimum(scaled.micro, left)

    def costed(index: Tensor) -> tuple[Rest, Tensor]:
        rows = plans.flatten(0, 1).index_select(0, (offset + index).flatten())
        *ends, each, stop, span, reduce, all_reduce, transfer = rows.view(-1, points.shape[1], *rows.shape[1:]).unbind(
            2
        )
        compute, weights, forward, stash = (end - at[:, c] for end, c in zip(ends, (0, 2, 3, 4), strict=True))
        time, backward = compute * each, (compute - forward) * each
        fits = (scaled.state * weights + in_flight * stash * each <= 1) & (compute >= 0) & (span < IMPOSSIBLE)
        span = torch.where(fits, torch.maximum(scaled.micro * time, time + span), IMPOSSIBLE)
        return Rest(span, torch.maximum(weights * all_reduce, reduce - backward), stop), transfer

    def whole(rest: Rest, factor: Tensor) -> Tensor:
        transfer = 2 * at[:, 1] * factor
        return torch.maximum(scaled.micro * transfer, transfer + rest.span) + rest.reduce.clamp(min=0)

    (one, one_factor), (other, other_factor) = costed(before), costed(behind)
    better = whole(other, other_factor) < whole(one, one_factor)
    rest = Rest(*(torch.where(better, o, a) for o, a in zip(other, one, strict=True)))
    return rest, torch.where(better, other_factor, one_factor)


def _plans(scaled: Scaled, tables: CostToGo, left: Tensor, sender: Tensor) -> Tensor:
    """[B, K, 10, A] the plans for so many stages left, from the tables' points on.

    Of their first stage: C, W, F and stash at its end, 1 / devices, the device at its end; T and R behind it; its
    all-reduce time per gradient, and the transfer time per activation to it.
    """
    size = tables.end.shape
    level = (left.long() - 2).clamp(0, size[1] - 1).unsqueeze(3).expand(-1, 1, size[2], size[3])
    several = left > 1
    end, stop, span, reduce = (table.gather(1, level).squeeze(1) for table in tables[1:])
    first = first_devices(span, size[3])
    stop = torch.where(several, stop, scaled.devices)
    # The only stage left has nothing behind it; those that cannot be have no end after their beginning.
    span, reduce = (torch.where(several, t, -IMPOSSIBLE) for t in (span, reduce))
    ends = torch.where(
        several.unsqueeze(1), _gather_points(scaled.at(tables.points), end.long()), scaled.total.unsqueeze(3)
    )
    stop = torch.maximum(stop, first + 1)
    columns = (
        *(ends[:, c] for c in (0, 2, 3, 4)),
        1 / (stop - first),
        stop,
        torch.where(first < scaled.devices, span, IMPOSSIBLE),
        reduce,
        all_reduce_factor(first, stop, scaled.per_node, scaled.ratio),
        transfer_factor(sender, first, stop, scaled.per_node, scaled.ratio),
    )
    return torch.stack(torch.broadcast_tensors(*columns), 2)  # type: ignore[no-untyped-call]


def _stage_in_front(
    scaled: Scaled, stage: Tensor, first: Tensor, stop: Tensor, span: Tensor, reduce: Tensor, left: Tensor
) -> Rest:
    """The rest that begins with a stage of channels [B, 5, K, A] on devices first … stop - 1, before a known one."""
    compute, _, weights, forward, stash = stage.unbind(1)
    replicas = stop - first
    time, backward = compute / replicas, (compute - forward) / replicas
    factor = all_reduce_factor(first, stop, scaled.per_node, scaled.ratio)
    memory = scaled.state * weights + torch.minimum(scaled.micro, left) * stash / replicas
    whole = torch.maximum(scaled.micro * time, time + span)
    fits = (memory <= 1) & (compute >= 0) & (whole < IMPOSSIBLE)
    return Rest(torch.where(fits, whole, IMPOSSIBLE), torch.maximum(weights * factor, reduce - backward), stop)
