"""Completions: what may follow any cut of a problem, from the plans of its cost-to-go tables.

The tables (envs.pipeline.cost_to_go) hold a plan for the rest of a pipeline from a few points and devices on. Such a
plan serves the points and devices nearby, too: only its first stage grows or shrinks, and the transfer to it changes.
So the plans of the tables next to a cut are costed exactly from it, and the best of them is taken. Following it ends no
later than its cost says.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.cost.staged_torch import all_reduce_factor, equal_parts, span_before, transfer_factor
from automap_models.envs.pipeline.cost_to_go import (
    IMPOSSIBLE,
    CostToGo,
    Rest,
    Scaled,
    devices_per_unit,
    first_devices,
    gather_points,
    one_more_stage,
)

OF_STAGES = (0, 2, 3, 4)
"""Channels that add up over a stage: computation, parameters, forward computation and stash."""


class _Begun(NamedTuple):
    """Plans for the stages left with all but the point that they begin at, [B, k, a] each.

    compute, weights, forward, stash: channels at the end of their first stage; per_device: 1 / its equal parts; stop:
    where they end; span, reduce: T and R behind it; all_reduce: its time per gradient; transfer: time per activation
    to it.
    """

    compute: Tensor
    weights: Tensor
    forward: Tensor
    stash: Tensor
    per_device: Tensor
    stop: Tensor
    span: Tensor
    reduce: Tensor
    all_reduce: Tensor
    transfer: Tensor


class _Known(NamedTuple):
    """Plans for the stages left with all but the point and device that they begin at, [B, k, a] each.

    compute, weights, forward, stash: channels at the end of their first stage; stop: where its devices end; span,
    reduce: T and R behind it; activation: sent from it, with the transfer in `span` and `reduce`; after: where the
    devices that it is sent to end.
    """

    compute: Tensor
    weights: Tensor
    forward: Tensor
    stash: Tensor
    stop: Tensor
    span: Tensor
    reduce: Tensor
    activation: Tensor
    after: Tensor


def _known(scaled: Scaled, tables: CostToGo, left: Tensor) -> Tensor:
    """[B, 9, K, U] the tables' plans for so many stages left, in the order of _Known."""
    several = left > 1
    end, stop, after, span, reduce = (table.squeeze(1) for table in tables.only(left.long())[1:])
    ends = torch.where(
        several.unsqueeze(1), gather_points(scaled.at(tables.points), end.long()), scaled.total.unsqueeze(3)
    )
    # The only stage left has nothing behind it; those that cannot be have no end after their beginning.
    stop, after = (torch.where(several, t, scaled.devices) for t in (stop, after))
    span, reduce = (torch.where(several, t, -IMPOSSIBLE) for t in (span, reduce))
    sent = torch.where(several, ends[:, 1], 0.0)
    columns = (*(ends[:, c] for c in OF_STAGES), stop, span, reduce, sent, after)
    return torch.stack(torch.broadcast_tensors(*columns), 1)  # type: ignore[no-untyped-call]


def _from_device(scaled: Scaled, known: Tensor, origin: Tensor, first: Tensor) -> Tensor:
    """The same plans [B, 9, k, a] from other devices on than those of the tables: the first stage's transfer changes.

    Where that takes less and was all that counted behind the stage, T is an upper bound.
    """
    plan = _Known(*known.unbind(1))
    was, now = (
        plan.activation * transfer_factor(sender, plan.stop, plan.after, scaled.per_node, scaled.ratio, scaled.samples)
        for sender in (origin, first)
    )
    span = torch.maximum(2 * scaled.micro * now, plan.span + 2 * (now - was))
    span = torch.where(plan.span < IMPOSSIBLE, span, plan.span)
    changed = plan._replace(span=span, reduce=plan.reduce + (was - now))
    return torch.stack(changed, 1)


def _begun(scaled: Scaled, known: Tensor, first: Tensor, sender: Tensor) -> Tensor:
    """[B, 10, k, a] plans [B, 9, k, a] that begin on the devices from `first` on, in the order of _Begun."""
    *ends, stop, span, reduce, _, _ = known.unbind(1)
    possible = (first < scaled.devices) & (stop > first)
    stop = torch.maximum(stop, first + 1)
    columns = (
        *ends,
        1 / equal_parts(stop - first, scaled.samples),
        stop,
        torch.where(possible, span, IMPOSSIBLE),
        reduce,
        all_reduce_factor(first, stop, scaled.per_node, scaled.ratio),
        transfer_factor(sender, first, stop, scaled.per_node, scaled.ratio, scaled.samples),
    )
    return torch.stack(torch.broadcast_tensors(*columns), 1)  # type: ignore[no-untyped-call]


def _neighbours(tables: CostToGo, points: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [B, k] the tables' points before and behind others [B, k]; both the point itself where it is one."""
    behind = (tables.points.unsqueeze(1) < points.unsqueeze(2)).sum(2).clamp(max=tables.points.shape[1] - 1)
    hit = tables.points.gather(1, behind) == points
    return torch.where(hit, behind, (behind - 1).clamp(min=0)), behind


def rest_after_points(
    scaled: Scaled, tables: CostToGo, left: Tensor, points: Tensor, sender: Tensor
) -> tuple[Rest, Tensor]:
    """What may follow after any points, int64 [B, k], from each unit on: [B, k, U].

    Between two of the tables' points two plans are known: the one from the point before, with a first stage that much
    shorter, and the one from the point behind, with a first stage that much longer. Both are costed exactly, and the
    one with the smaller T + R, the transfer to it included, is taken.

    Args:
        left: [B, 1, 1] stages left; one is all that remains, on all devices.
        sender: [B, 1, 1] first device of the stage that ends at the points.

    Returns:
        The rest, and the transfer time per activation from the stage on `sender` … to it.
    """
    plans = _begun(scaled, _known(scaled, tables, left), first_devices(scaled, tables.units), sender).transpose(1, 2)
    batch, count = points.shape[0], tables.points.shape[1]
    offset = count * torch.arange(batch, device=points.device).unsqueeze(1)
    index = torch.cat([offset + near for near in _neighbours(tables, points)], 1)
    rows = plans.flatten(0, 1).index_select(0, index.flatten())
    rows = rows.view(batch, index.shape[1], *rows.shape[1:]).transpose(1, 2)
    return _best(scaled, left, scaled.at(points), rows, 1)


def rest_from_devices(
    scaled: Scaled, tables: CostToGo, left: Tensor, point: Tensor, sender: Tensor, first: Tensor
) -> tuple[Rest, Tensor]:
    """What may follow after one point, int64 [B, 1], on the devices from each of `first`, [1, 1, a], on: [B, 1, a].

    As rest_after_points; between two units the plans from both are known.
    """
    known, per_unit = _known(scaled, tables, left), devices_per_unit(scaled, tables.units)
    near = torch.cat(_neighbours(tables, point), 1).repeat_interleave(2, 1)  # before, before, behind, behind
    rows = known.gather(2, near.view(-1, 1, 4, 1).expand(-1, known.shape[1], -1, tables.units))
    units = torch.cat([torch.floor(first / per_unit), torch.ceil(first / per_unit)], 1).clamp(max=tables.units - 1)
    units = units.repeat(1, 2, 1)  # below, above, below, above
    mine = rows.gather(3, units.long().unsqueeze(1).expand(-1, known.shape[1], -1, -1))
    mine = _from_device(scaled, mine, units * per_unit, first)
    return _best(scaled, left, scaled.at(point), _begun(scaled, mine, first, sender), 2)


def _best(scaled: Scaled, left: Tensor, cut: Tensor, plans: Tensor, halvings: int) -> tuple[Rest, Tensor]:
    """Cost plans [B, 10, n·k, a] after cuts with channels [B, 5, k], n = 2^halvings for each, and take the best."""
    plan = _Begun(*plans.unbind(1))
    several = cut.repeat(1, 1, 1 << halvings).unsqueeze(3)
    ends = (plan.compute, plan.weights, plan.forward, plan.stash)
    stage = [end - several[:, channel] for end, channel in zip(ends, OF_STAGES, strict=True)]
    rest = one_more_stage(
        scaled, stage, plan.per_device, plan.all_reduce, Rest(plan.span, plan.reduce, plan.stop), left
    )
    transfer = 2 * several[:, 1] * plan.transfer
    size = span_before(transfer, scaled.micro * transfer, rest.span) + rest.reduce.clamp(min=0)
    best: tuple[Tensor, ...] = (*rest, plan.transfer)
    for _ in range(halvings):
        (one, other), pairs = size.chunk(2, 1), [t.chunk(2, 1) for t in best]
        best = tuple(torch.where(other < one, b, a) for a, b in pairs)
        size = torch.minimum(one, other)
    *which, factor = best
    return Rest(*which), factor
