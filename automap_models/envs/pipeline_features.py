"""What the next decision would lead to: a one-step look-ahead by the cost model, scale-free.

For every candidate (end the current stage at point k, give it the devices up to a') the stage's own times are
exact and the rest of the pipeline is estimated: its stages share the remaining work evenly but for the heaviest
instruction, which one of them holds, and are cut where the activations are smallest. Where the next stage's devices
end decides the transfer to it: one estimate takes the best end, one the even share.
With one stage left nothing is estimated: the look-ahead is the length itself. All times are in units of the
ideal length ΣC·M / D, so that 1 / estimate estimates the reward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.cost.pipeline_batch import all_reduce_factor, pipeline_cost_batch, transfer_factor
from automap_models.envs.pipeline import OUT_OF_MEMORY_REWARD, Partial, Problems, ideal_length, last_cut

TAILS = (4, 12, 32, 64)
GLOBAL_FEATURES = 10 + 2 * len(TAILS)
CANDIDATE_FEATURES = 19
LATER_FACTOR = 0.5
"""Transfer time per activation guessed for later cuts between nodes: half of it where both ends share two nodes."""


class Progress(NamedTuple):
    """What is settled by the stages already complete; every tensor [B, 1, 1], times in units of the ideal length.

    left: stages after the current one; first, previous: first device of the current stage and of the one before;
    through: Σ u of all that is complete; span: T so far; back: Σ B so far; reduce: max (AR_s - Σ B before it);
    compute, forward, weights, stash, activation: prefix sums at the last cut (A there).
    """

    left: Tensor
    first: Tensor
    previous: Tensor
    through: Tensor
    span: Tensor
    back: Tensor
    reduce: Tensor
    activation: Tensor
    compute: Tensor
    weights: Tensor
    forward: Tensor
    stash: Tensor


class Scaled(NamedTuple):
    """Problems with times in units of the ideal length; arrays [B, 5, P], the rest [B, 1, 1]."""

    arrays: Tensor
    devices: Tensor
    per_node: Tensor
    ratio: Tensor
    state: Tensor
    stages: Tensor
    micro: Tensor

    @classmethod
    def of(cls, problems: Problems) -> Scaled:
        """Scale the time-like channels C, A, W, F; stash is a fraction of device memory already."""
        ideal = ideal_length(problems)
        one = torch.ones_like(ideal)
        per_channel = torch.stack([1 / ideal] * 4 + [one], 1)
        columns = (
            problems.devices,
            problems.devices_per_node,
            problems.inter_over_intra,
            problems.state_over_memory * ideal,
            problems.stages,
            problems.micro_batches,
        )
        return cls(problems.arrays * per_channel.unsqueeze(2), *(c.view(-1, 1, 1) for c in columns))


def progress(scaled: Scaled, partial: Partial) -> Progress:
    """Sum up the complete stages of partial plans (a stage is complete when both its cuts are made)."""
    stage = partial.step // 2
    column = torch.arange(partial.cuts.shape[1], device=stage.device)
    complete = column < stage.unsqueeze(1)
    cuts = torch.where(complete, partial.cuts, -1)
    firsts = torch.where(complete, partial.device_cuts, 0)
    point, first = cuts.amax(1, keepdim=True), firsts.amax(1, keepdim=True)
    start = torch.zeros_like(point)
    points = torch.cat([start - 1, torch.where(complete, cuts, point)], 1)
    devices = torch.cat([start, torch.where(complete, firsts, first)], 1).float()
    per_problem = (t.view(-1) for t in (scaled.per_node, scaled.ratio, scaled.state, scaled.micro))
    cost = pipeline_cost_batch(scaled.arrays, points, devices, *per_problem)
    link = torch.nn.functional.pad(cost.transfer, (0, 1))
    back = cost.backward + link
    hidden = torch.cumsum(back, 1) - back
    at = torch.nn.functional.pad(scaled.arrays, (1, 0)).gather(2, (point + 1).unsqueeze(1).expand(-1, 5, -1))
    previous = torch.where(firsts < first, firsts, 0).amax(1, keepdim=True)
    compute, activation, weights, forward, stash = at.unsqueeze(3).unbind(1)
    return Progress(
        left=scaled.stages - 1 - stage.view(-1, 1, 1),
        first=first.float().unsqueeze(2),
        previous=previous.float().unsqueeze(2),
        through=(cost.forward + cost.backward + 2 * link).sum(1).view(-1, 1, 1),
        span=cost.span.view(-1, 1, 1),
        back=back.sum(1).view(-1, 1, 1),
        reduce=torch.where(devices[:, 1:] > devices[:, :-1], cost.all_reduce - hidden, 0.0).amax(1).view(-1, 1, 1),
        activation=activation,
        compute=compute,
        weights=weights,
        forward=forward,
        stash=stash,
    )


class LookAhead(NamedTuple):
    """Consequences of ending the stage at k with the next one's devices starting at a'; all of one shape.

    reward, even: estimated rewards if the next stage's devices end where the transfer is cheapest, or evenly.
    """

    reward: Tensor
    even: Tensor
    span: Tensor
    exposed: Tensor
    stage: Tensor
    rest: Tensor
    transfer_in: Tensor
    transfer_out: Tensor
    transfer_even: Tensor
    all_reduce: Tensor
    memory: Tensor
    rest_memory: Tensor


def transfer_out_factors(scaled: Scaled, done: Progress, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Transfer time per activation to a next stage that starts at `first`: cheapest, even; and its even end.

    Considered as the cheapest: one device, up to the end of the node, the even share. The last stage has no choice.
    """
    last_stop = scaled.devices - (done.left - 1)
    is_last = done.left <= 1

    def factor(stop: Tensor) -> Tensor:
        stop = torch.where(is_last, scaled.devices, torch.minimum(stop, last_stop))
        return transfer_factor(done.first, first, stop, scaled.per_node, scaled.ratio)

    even_stop = first + torch.ceil((scaled.devices - first).clamp(min=1) / done.left.clamp(min=1))
    node_end = (torch.floor(first / scaled.per_node) + 1) * scaled.per_node
    even = factor(even_stop)
    return torch.minimum(even, torch.minimum(factor(first + 1), factor(node_end))), even, even_stop


def look_ahead(scaled: Scaled, done: Progress, cut: tuple[Tensor, ...], first: Tensor) -> LookAhead:
    """Estimate the outcome for candidates.

    Args:
        cut: at the candidate points, the channels C, A, W, F, stash and what lies behind them, the smallest
            activations and the longest single computation; each [B, k, 1] or [B, 1, 1].
        first: candidate first devices a' of the next stage, broadcasting against `cut`.
    """
    compute, activation, weights, forward, stash, smallest, longest = cut
    micro, left, devices = scaled.micro, done.left, scaled.devices
    replicas, rest_devices = (first - done.first).clamp(min=1), (devices - first).clamp(min=1)

    factor_in = transfer_factor(done.previous, done.first, first, scaled.per_node, scaled.ratio)
    transfer_in = torch.where(done.first > 0, done.activation * factor_in, 0.0)
    stage = (compute - done.compute) / replicas
    backward = stage - (forward - done.forward) / replicas
    before = done.through + 2 * transfer_in
    span = torch.maximum(done.span, torch.maximum(done.through + 2 * micro * transfer_in, before + micro * stage))
    reduce_factor = all_reduce_factor(done.first, first, scaled.per_node, scaled.ratio)
    all_reduce = (weights - done.weights) * reduce_factor
    hidden = done.back + transfer_in
    reduce = torch.maximum(done.reduce, all_reduce - hidden)

    # The stage with the longest instruction has at most what one device for each other stage leaves.
    mean = (scaled.arrays[:, 0, -1].view(-1, 1, 1) - compute) / rest_devices
    rest = torch.maximum(mean, longest / (rest_devices - left + 1).clamp(min=1))
    in_one_node = torch.floor(first / scaled.per_node) == torch.floor((devices - 1) / scaled.per_node)
    later = torch.where(left > 1, smallest * torch.where(in_one_node, scaled.ratio, LATER_FACTOR), 0.0)
    after = torch.maximum((left * mean - rest) + 2 * (left - 1) * later + micro * rest, mean + 2 * micro * later)
    before = before + stage
    cheapest, even, even_stop = transfer_out_factors(scaled, done, first)
    transfer_out, transfer_even = activation * cheapest, activation * even

    def whole(transfer: Tensor) -> Tensor:
        return torch.maximum(torch.maximum(span, before + 2 * micro * transfer), before + 2 * transfer + after)

    rest_weights = (scaled.arrays[:, 2, -1].view(-1, 1, 1) - weights) / left.clamp(min=1)
    rest_reduce = rest_weights * all_reduce_factor(first, even_stop, scaled.per_node, scaled.ratio)
    reduce = torch.maximum(reduce, rest_reduce - hidden - backward - transfer_out)

    in_flight = torch.minimum(micro, left + 1)
    memory = scaled.state * (weights - done.weights) + in_flight * (stash - done.stash) / replicas
    rest_stash = scaled.arrays[:, 4, -1].view(-1, 1, 1) - stash
    in_flight = torch.minimum(micro, (left + 1) / 2)
    rest_memory = scaled.state * rest_weights + in_flight * rest_stash / rest_devices
    fits = (memory <= 1) & ((rest_memory <= 1) | (left > 1))
    span = whole(transfer_out)
    return LookAhead(
        torch.where(fits, 1 / (span + reduce), OUT_OF_MEMORY_REWARD),
        torch.where(fits, 1 / (whole(transfer_even) + reduce), OUT_OF_MEMORY_REWARD),
        span,
        reduce,
        stage,
        rest,
        transfer_in,
        transfer_out,
        transfer_even,
        all_reduce,
        memory,
        rest_memory,
    )


def squash(x: Tensor) -> Tensor:
    """[0, ∞) → [0, 1), so that a feature of any size stays in range."""
    return x / (1 + x)


def describe(scaled: Scaled, done: Progress, seen: LookAhead, cut: tuple[Tensor, ...], first: Tensor) -> Tensor:
    """[..., CANDIDATE_FEATURES] features of candidates with their look-ahead."""
    micro, devices = scaled.micro, scaled.devices
    total = scaled.arrays[:, 0, -1].view(-1, 1, 1)
    steady, rest = micro * seen.stage, micro * seen.rest
    values = (
        seen.reward,
        seen.even,
        1 / seen.span,
        seen.exposed / (seen.exposed.abs() + seen.span),
        squash(steady),
        squash(rest),
        steady / (steady + rest + 1e-6),
        squash(2 * micro * seen.transfer_in),
        squash(2 * micro * seen.transfer_out),
        squash(2 * micro * seen.transfer_even),
        squash(seen.all_reduce),
        (seen.exposed > 0).float(),
        squash(seen.memory),
        squash(seen.rest_memory),
        (cut[0] - done.compute) / total,
        cut[0] / total,
        (first - done.first) / devices,
        first / devices,
        (torch.floor(first / scaled.per_node) * scaled.per_node == first).float(),
    )
    return torch.stack(torch.broadcast_tensors(*values), -1)  # type: ignore[no-untyped-call]


def describe_globally(scaled: Scaled, done: Progress) -> Tensor:
    """[B, GLOBAL_FEATURES] features of the state as a whole."""
    last = scaled.arrays.shape[2] - 1
    tails = [
        ((channel[:, -1] - channel[:, max(0, last - points)]) / channel[:, -1].clamp(min=1e-9)).view(-1, 1, 1)
        for channel in (scaled.arrays[:, 0], scaled.arrays[:, 2])
        for points in TAILS
    ]
    values = (
        *tails,
        done.left / scaled.stages,
        1 / scaled.stages,
        1 / scaled.micro,
        scaled.stages / (scaled.stages + scaled.micro),
        1 / scaled.per_node,
        scaled.per_node / scaled.devices,
        scaled.ratio.clamp(min=1e-4).log10() / 4,
        squash(done.span),
        squash(done.reduce),
        squash(scaled.arrays[:, 2, -1].view(-1, 1, 1)),
    )
    return torch.cat([v.view(-1, 1) for v in values], 1)


def _columns(scaled: Scaled, legal: Tensor, points: Tensor | None) -> tuple[Tensor, ...]:
    """The columns that look_ahead takes, as [B, P, 1], or at one point each, int64 [B], as [B, 1, 1]."""
    smallest = _smallest_after(scaled.arrays[:, 1], legal)
    longest = -_smallest_after(-scaled.arrays[:, 0].diff(dim=1, prepend=torch.zeros_like(scaled.arrays[:, 0, :1])))
    columns = torch.cat([scaled.arrays, smallest.unsqueeze(1), longest.clamp(min=0).unsqueeze(1)], 1)
    if points is not None:
        columns = columns.gather(2, points.view(-1, 1, 1).expand(-1, 7, 1))
    return tuple(columns.unsqueeze(3).unbind(1))


def _device_candidates(scaled: Scaled, max_devices: int) -> Tensor:
    return torch.arange(1, max_devices, device=scaled.arrays.device, dtype=torch.float32).view(1, 1, -1)


INSTRUCTION_FEATURES = 2 * CANDIDATE_FEATURES + 5
DEVICE_FEATURES = CANDIDATE_FEATURES


def instruction_features(
    problems: Problems, partial: Partial, legal: Tensor, max_devices: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Features of ending the current stage at each point.

    A point is described by its best continuations over all device cuts, by either estimate.

    Returns:
        [B, P, INSTRUCTION_FEATURES], [B, GLOBAL_FEATURES], and [B, P] the best estimated reward.
    """
    scaled = Scaled.of(problems)
    done = progress(scaled, partial)
    cut, first = _columns(scaled, problems.cut_mask, None), _device_candidates(scaled, max_devices)
    table = look_ahead(scaled, done, cut, first)
    possible = (first > done.first) & (first <= scaled.devices - done.left)
    described = []
    for estimates in (table.even, table.reward):
        best = _first_best(torch.where(possible, estimates, OUT_OF_MEMORY_REWARD - 1), first)
        seen = look_ahead(scaled, done, cut, best)
        described.append(describe(scaled, done, seen, cut, best).squeeze(2))
    estimate = torch.where(possible, table.even, OUT_OF_MEMORY_REWARD).amax(2)
    neighbours = _neighbourhood(scaled, estimate, legal, cut[5].squeeze(2))
    return torch.cat([*described, neighbours], 2), describe_globally(scaled, done), estimate


def _first_best(reward: Tensor, first: Tensor) -> Tensor:
    """[B, P, 1] the smallest first device whose reward is the best but for rounding.

    Many device cuts tie exactly where something else sets the length; the tolerance keeps every runtime's choice equal.
    """
    tolerance = 1e-5 * reward.abs().amax(2, keepdim=True)
    near = reward >= reward.amax(2, keepdim=True) - tolerance
    return torch.where(near, first, 1e6).amin(2, keepdim=True)


def _neighbourhood(scaled: Scaled, reward: Tensor, legal: Tensor, smallest: Tensor) -> Tensor:
    """[B, P, 5] how a point stands among the others: rank of its estimate, its activations against those after it."""
    activation = scaled.micro.squeeze(2) * 2 * scaled.arrays[:, 1]
    masked = torch.where(legal, reward, -2.0)
    best = masked.amax(1, keepdim=True)
    weights = scaled.arrays[:, 2]
    return torch.stack(
        [
            best - reward,
            squash(activation),
            squash(2 * scaled.micro.squeeze(2) * smallest.clamp(max=1e3)),
            weights / weights[:, -1:].clamp(min=1e-9),
            squash(weights[:, -1:] - weights),
        ],
        2,
    )


def _smallest_after(values: Tensor, legal: Tensor | None = None) -> Tensor:
    """[B, P] the smallest (legal) value behind each point; large where there is none.

    Max-pooling exports to ONNX, cummin does not.
    """
    points, none = values.shape[1], -1e6
    negative = -values if legal is None else torch.where(legal, -values, none)
    following = torch.nn.functional.pad(negative[:, 1:], (0, points), value=none)
    return -torch.nn.functional.max_pool1d(following.unsqueeze(1), points, 1).squeeze(1)


def device_features(problems: Problems, partial: Partial, max_devices: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of starting the next stage at each device.

    Returns:
        [B, max_devices-1, DEVICE_FEATURES], [B, GLOBAL_FEATURES], and [B, max_devices-1] the estimated reward.
    """
    scaled = Scaled.of(problems)
    done = progress(scaled, partial)
    point = last_cut(partial)[0].clamp(min=0)
    cut = _columns(scaled, problems.cut_mask, point)
    first = _device_candidates(scaled, max_devices)
    seen = look_ahead(scaled, done, cut, first)
    features = describe(scaled, done, seen, cut, first).squeeze(1)
    return features, describe_globally(scaled, done), seen.even.squeeze(1)
