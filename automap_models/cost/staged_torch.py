"""The pipeline cost model for thousands of plans at once: the float32 torch twin of cost.staged.

Units: times in any one unit, bytes as their time over `inter`, so that inter = 1 and intra = 1 / ρ with
ρ = inter / intra. Device numbers are float tensors, so that everything broadcasts and exports to ONNX.
The per-node maxima of cost.collectives have closed forms because a stage's devices are contiguous and
all nodes are equal. Where a problem has a number of samples, replicas get whole ones (cost.staged).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def equal_parts(devices: Tensor, samples: Tensor | None) -> Tensor:
    """Into how many equal parts so many replicas split a micro-batch: StagedProblem.shares.

    Args:
        devices: of a stage, 1 or more.
        samples: N of a micro-batch, which replicas get as a whole; 0 where it splits evenly, None where all do.
    """
    if samples is None:
        return devices
    return torch.where(samples > 0, samples / torch.ceil(samples / devices), devices)


def all_reduce_factor(first: Tensor, stop: Tensor, per_node: Tensor, inter_over_intra: Tensor) -> Tensor:
    """All-reduce time per unit of gradients on devices first … stop-1; all arguments broadcast."""
    node_first = torch.floor(first / per_node)
    node_last = torch.floor((stop - 1) / per_node)
    across = node_last - node_first + 1
    ends = torch.maximum((node_first + 1) * per_node - first, stop - node_last * per_node)
    inside = torch.where(across == 1, stop - first, torch.where(across == 2, ends, per_node))
    inside = inside.clamp(min=1)
    return 2 * (inside - 1) / inside * inter_over_intra + 2 * (across - 1) / across.clamp(min=1)


def transfer_factor(
    first: Tensor,
    boundary: Tensor,
    stop: Tensor,
    per_node: Tensor,
    inter_over_intra: Tensor,
    samples: Tensor | None = None,
) -> Tensor:
    """Transfer time per unit of activations from devices first … boundary-1 to boundary … stop-1; all broadcast.

    Args:
        samples: see `equal_parts`.
    """
    sender, receiver = (boundary - first).clamp(min=1), (stop - boundary).clamp(min=1)
    node = torch.floor(boundary / per_node)
    start = node * per_node
    inside = boundary != start
    # The boundary's own node: the sender's devices below the boundary, the receiver's above it.
    # On a node boundary the sender's last node is the one before.
    last_start = torch.where(inside, start, start - per_node)
    sender_last = torch.minimum(sender, boundary - last_start)
    receiver_first = torch.minimum(receiver, start + per_node - boundary)
    stays = torch.where(inside, (sender_last / sender + receiver_first / receiver - 1).clamp(min=0), 0.0)
    # The fullest of the other nodes: a whole node if there are two more, else what is left.
    sender_rest = torch.minimum(sender - sender_last, per_node)
    receiver_rest = torch.minimum(receiver - receiver_first, per_node)
    out = torch.maximum(sender_last / sender - stays, sender_rest / sender)
    into = torch.maximum(receiver_first / receiver - stays, receiver_rest / receiver)
    crosses = torch.maximum(out, into)
    if samples is not None:
        padding = torch.maximum(sender / equal_parts(sender, samples), receiver / equal_parts(receiver, samples))
        crosses, stays = (padding * crosses).clamp(max=1), (padding * stays).clamp(max=1)
    return torch.maximum(crosses, stays * inter_over_intra)


def span_before(time: Tensor, steady: Tensor, rest: Tensor) -> Tensor:
    """T of a pseudo-stage and all behind it, T = max(M·t, t + T') (cost-model.md); all arguments broadcast.

    Both kinds of pseudo-stages have this recursion: a stage, t = u = f + b, and a transfer, t = 2x.

    Args:
        time: t, one micro-batch forward and backward.
        steady: M·t.
        rest: T' of what is behind it.
    """
    return torch.maximum(steady, time + rest)


def span_after(span: Tensor, through: Tensor, transfer: Tensor, time: Tensor, micro: Tensor | int) -> Tensor:
    """T up to and with a stage, the same recursion from the front; all arguments broadcast.

    Args:
        span, through: T and Σt of all pseudo-stages before the transfer into the stage.
        transfer: x of that transfer.
        time: u of the stage.
        micro: M.
    """
    arrived = through + 2 * transfer
    return torch.maximum(span, torch.maximum(through + 2 * micro * transfer, arrived + micro * time))


class BatchCost(NamedTuple):
    """Costs of B plans of up to S stages; the stages beyond a plan's own are zero.

    forward, backward, all_reduce, memory: [B, S]; transfer: [B, S-1]; span, length: [B];
    memory is a fraction of the device memory, feasible: bool [B].
    """

    forward: Tensor
    backward: Tensor
    transfer: Tensor
    all_reduce: Tensor
    memory: Tensor
    span: Tensor
    length: Tensor
    feasible: Tensor


def pipeline_cost_batch(
    arrays: Tensor,
    points: Tensor,
    devices: Tensor,
    per_node: Tensor,
    inter_over_intra: Tensor,
    state_over_memory: Tensor,
    micro_batches: Tensor,
    samples: Tensor | None = None,
    held: Tensor | None = None,
) -> BatchCost:
    """Costs of B plans (cost.staged.plan_cost, batched).

    Args:
        arrays: [B, 5, P] prefix sums of C, W, F and stash, and A itself, in the order C, A, W, F, stash.
        points: int64 [B, S+1] last point of each stage, from -1 to P-1; unused stages repeat P-1.
        devices: [B, S+1] first device of each stage, from 0 to D; unused stages repeat D.
        per_node, inter_over_intra, state_over_memory, micro_batches: [B].
        samples: [B] or None, see `equal_parts`.
        held: [B, S] micro-batches that each stage holds at once; None is the min(M, S - s) of 1F1B.
    """
    per_node, ratio, state, micro = (
        t.unsqueeze(1) for t in (per_node, inter_over_intra, state_over_memory, micro_batches)
    )
    samples = None if samples is None else samples.unsqueeze(1)
    padded = torch.nn.functional.pad(arrays, (1, 0))
    at = padded.gather(2, (points + 1).unsqueeze(1).expand(-1, 5, -1))
    compute, _, weights, forward, stash = (at[:, :, 1:] - at[:, :, :-1]).unbind(1)
    activation = at[:, 1, 1:-1]
    first, stop = devices[:, :-1], devices[:, 1:]
    used = stop > first
    parts = equal_parts((stop - first).clamp(min=1), samples)
    f = forward / parts
    b = (compute - forward) / parts
    linked = used[:, 1:]
    x = activation * transfer_factor(first[:, :-1], first[:, 1:], stop[:, 1:], per_node, ratio, samples)
    x = torch.where(linked, x, 0.0)
    all_reduce = torch.where(used, weights * all_reduce_factor(first, stop, per_node, ratio), 0.0)

    u, link = f + b, torch.nn.functional.pad(2 * x, (0, 1))
    through = torch.cumsum(u + link, 1)
    before_stage = through - u - link
    span = torch.maximum(before_stage + micro * u, before_stage + u + micro * link).amax(1)
    both_back = b + link / 2
    hidden = torch.cumsum(both_back, 1) - both_back
    length = torch.where(used, span.unsqueeze(1) - hidden + all_reduce, 0.0).amax(1)

    left = used.sum(1, keepdim=True) - torch.arange(used.shape[1], device=used.device)
    in_flight = torch.minimum(micro, left.to(micro.dtype)) if held is None else held
    memory = torch.where(used, state * weights + in_flight * stash / parts, 0.0)
    return BatchCost(f, b, x, all_reduce, memory, span, length, (memory <= 1).all(1))
