"""The consequences of one decision, and nothing behind it: what a policy sees that has to learn to plan.

    | complete stages | this stage, k, a' | the stages left |
      exact (Progress)  exact               only sums: as if they shared work, parameters and devices evenly

For every candidate (end the current stage at point k, give it the devices up to a') the stage's own times are exact, as
in envs.pipeline.features. Of what follows only sums are known: its computation, parameters and devices, evenly shared;
for a few pieces of it, measured in even stages, how many parameters each holds and at how few activations it could
be cut; and how much computation stands around its parameters. No plan of the rest is made, no table is looked up. All
times are in units of the ideal length ΣC·M / D, so that one set of features serves every size of model and cluster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from automap_models.cost.staged_torch import all_reduce_factor, transfer_factor
from automap_models.envs.pipeline.cost_to_go import IMPOSSIBLE, Rest, Scaled
from automap_models.envs.pipeline.env import OUT_OF_MEMORY_REWARD, Partial, Problems, last_cut, legal_cuts
from automap_models.envs.pipeline.features import (
    CANDIDATE_FEATURES,
    LookAhead,
    Progress,
    describe,
    describe_globally,
    first_best,
    look_ahead,
    progress,
    share,
    squash,
)
from automap_models.envs.pipeline.features import GLOBAL_FEATURES as GLOBAL_LOOK_AHEAD

EIGHTHS = 8
"""Parts of the devices left at whose ends the current stage's may end, beside those that its computation deserves."""
REFINEMENTS = (16, 32)
"""Then the best of them is moved by such a part of the devices left, twice."""
EDGES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Where the pieces of the rest begin that are looked at, in even stages; the last one ends with the model."""
HELD = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Shares of the rest's parameters: how much computation lies before and behind the point that holds so many."""
FARTHEST = 3.0
"""Candidates worse than the best by this, in logarithms, are not told apart."""
MORE_FEATURES = 12
REST_FEATURES = 2 * len(EDGES) + 2 * len(HELD) + 2
GLOBAL_FEATURES = GLOBAL_LOOK_AHEAD + 7
INSTRUCTION_FEATURES = CANDIDATE_FEATURES + MORE_FEATURES + REST_FEATURES + 3
DEVICE_FEATURES = CANDIDATE_FEATURES + MORE_FEATURES
DEVICE_GLOBAL_FEATURES = GLOBAL_FEATURES + REST_FEATURES


def rest_evenly(scaled: Scaled, done: Progress, cut: Tensor, first: Tensor) -> tuple[Rest, Tensor]:
    """The rest behind candidate cuts, channels [B, 5, k], on the devices from `first`, [B, k, a], as if shared evenly.

    With one stage left there is nothing to share: the rest is exact.

    Returns:
        The rest, and the transfer time per activation to its first stage.
    """
    compute, _, weights, _, stash = (scaled.total - cut).unsqueeze(3).unbind(1)
    devices = (scaled.devices - first).clamp(min=1)
    stop = first + torch.floor(devices / done.left + 0.5).clamp(min=1)
    memory = scaled.state * weights + stash / devices
    possible = ((memory <= 1) | (done.left > 1)) & (first < scaled.devices)
    span = torch.where(possible, compute / devices * (scaled.micro + done.left - 1), IMPOSSIBLE)
    reduce = weights / done.left * all_reduce_factor(first, stop, scaled.per_node, scaled.ratio)
    factor = transfer_factor(done.first, first, stop, scaled.per_node, scaled.ratio, scaled.samples)
    return Rest(span, reduce, stop), factor


def stage_stops(scaled: Scaled, done: Progress) -> Tensor:
    """[B, P, K] where the current stage's devices may end if it ends at a point: a coarse choice.

    The share of the devices left that its computation deserves, rounded down, up and to the nodes around it; equal
    parts of all that are left; the smallest and the largest stage.
    """
    compute, left = scaled.arrays[:, 0].unsqueeze(2), scaled.devices - done.first
    deserved = left * (compute - done.compute) / (scaled.total[:, :1] - done.compute).clamp(min=1e-9)
    node = torch.floor((done.first + deserved) / scaled.per_node) * scaled.per_node
    parts = [done.first + torch.floor(left * part / EIGHTHS + 0.5) for part in range(1, EIGHTHS)]
    own = [done.first + torch.floor(deserved), done.first + torch.ceil(deserved), node, node + scaled.per_node]
    ends = [done.first + 1, scaled.devices - done.left]
    return torch.cat([*own, *(stop.expand_as(deserved) for stop in (*parts, *ends))], 2)


def best_stops(scaled: Scaled, done: Progress) -> tuple[LookAhead, Tensor]:
    """For every point the devices for the stage that look best, refined from `stage_stops`: [B, P, 1] both.

    Measured on 600 problems of two stages, where this is the whole plan: on up to 32 devices always the best.
    """
    stops, width = stage_stops(scaled, done), scaled.devices - done.first
    for part in (*REFINEMENTS, None):
        stops = torch.minimum(torch.maximum(stops, done.first + 1), scaled.devices - done.left)
        rest, factor = rest_evenly(scaled, done, scaled.arrays, stops)
        seen = look_ahead(scaled, done, scaled.arrays, stops, rest, factor)
        option = first_best(seen.reward)
        stop = stops.gather(2, option)
        if part is not None:
            by = torch.ceil(width / part)
            stops = torch.cat([stop, stop - by, stop + by], 2)
    return seen.at(option), stop


def first_points(cumulative: Tensor, wanted: Tensor) -> Tensor:
    """int64 [B, k] the first point at which non-decreasing sums [B, P] reach what is wanted, [B, k]; by bisection."""
    points = int(cumulative.shape[1])
    reached = torch.zeros_like(wanted, dtype=torch.int64)
    half = 1 << max(0, (points - 1).bit_length() - 1)
    while half:
        ahead = reached + half
        below = cumulative.gather(1, (ahead - 1).clamp(max=points - 1)) < wanted
        reached = torch.where(below & (ahead < points), ahead, reached)
        half //= 2
    return reached


def smallest_between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """[B, k] the smallest of [B, P] from one point to another, both included, int64 [B, k]; of `high` alone if none.

    By a sparse table: row i holds the smallest of 2^i values from each point on.
    """
    points, rows = int(values.shape[1]), [values]
    while 1 << len(rows) <= points:
        reach = 1 << (len(rows) - 1)
        later = torch.cat([rows[-1][:, reach:], rows[-1][:, -1:].expand(-1, reach)], 1)
        rows.append(torch.minimum(rows[-1], later))
    length = (high - low + 1).clamp(min=1)
    power = torch.zeros_like(length)
    for i in range(1, len(rows)):
        power = power + (length >= 1 << i)
    table = torch.cat(rows, 1)
    begin, end = torch.minimum(low, high), (high + 1 - 2**power).clamp(min=0)
    return torch.minimum(table.gather(1, power * points + begin), table.gather(1, power * points + end))


def describe_rest(scaled: Scaled, done: Progress, cut: Tensor) -> Tensor:
    """[B, k, REST_FEATURES] what lies behind candidate cuts with channels [B, 5, k], piece by piece."""
    compute, activation, weights = scaled.arrays[:, 0], scaled.arrays[:, 1], scaled.arrays[:, 2]
    batch, count = cut.shape[0], cut.shape[2]
    begun = cut[:, 0].unsqueeze(2)  # [B, k, 1]
    stage = (compute[:, -1:].unsqueeze(2) - begun) / done.left
    edges = torch.cat([begun + edge * stage for edge in EDGES], 2)
    edges = torch.minimum(edges, compute[:, -1:].unsqueeze(2))
    at = first_points(compute, edges.flatten(1)).view(batch, count, len(EDGES))
    last = torch.full_like(at[:, :, :1], compute.shape[1] - 1)
    at = torch.cat([at, last], 2)
    held = weights.gather(1, at.flatten(1)).view_as(at)
    pieces = (held[:, :, 1:] - held[:, :, :-1]).clamp(min=0)
    least = smallest_between(activation, (at[:, :, :-1] + 1).flatten(1), at[:, :, 1:].flatten(1))
    least = least.view_as(pieces)
    even = scaled.micro * compute[:, -1:].unsqueeze(2) / scaled.devices
    rest = (scaled.total - cut).unsqueeze(3)
    memory = scaled.state * rest[:, 2] / done.left
    stash = torch.minimum(scaled.micro, done.left) * rest[:, 4] / (scaled.devices - done.first).clamp(min=1)
    wanted = torch.cat([cut[:, 2].unsqueeze(2) + part * rest[:, 2] for part in HELD], 2)
    center = first_points(weights, wanted.flatten(1))
    until = compute.gather(1, center).view(batch, count, len(HELD))
    alone = scaled.micro * (compute[:, -1:].unsqueeze(2) - until), scaled.micro * (until - begun).clamp(min=0)
    values = (share(2 * pieces, even), share(2 * scaled.micro * least, even), *map(squash, (*alone, memory, stash)))
    return torch.cat(values, 2)


def largest_behind(scaled: Scaled, points: Tensor) -> Tensor:
    """[B, 3, k] the largest computation, parameters and stash of a single point behind others, int64 [B, k].

    By doubling, like `smallest_between`: after i steps every point holds the largest of the 2^i that begin with it.
    """
    channels = torch.stack([scaled.arrays[:, channel] for channel in (0, 2, 4)], 1)
    padded = functional.pad(channels, (1, 0))
    largest = functional.pad(padded[:, :, 1:] - padded[:, :, :-1], (0, 1))  # none behind the last; ONNX has no diff
    count = int(largest.shape[2])
    for i in range((count - 1).bit_length()):
        largest = torch.maximum(largest, functional.pad(largest[:, :, 1 << i :], (0, min(1 << i, count))))
    return largest.gather(2, (points + 1).unsqueeze(1).expand(-1, 3, -1))


def _more(scaled: Scaled, done: Progress, seen: LookAhead, points: Tensor, first: Tensor, best: Tensor) -> Tensor:
    """[B, k, a, MORE_FEATURES] how a candidate stands beside the best, and the devices that it leaves a stage.

    And how little a later stage can be: one has the point with the largest computation, parameters or stash of those
    behind, int64 [B, k], and no more devices than all but one for each of the others. Last how long a round of
    micro-batches takes under 1F1B, at least: n neighbouring stages pass n of them in Σ (u + 2x), and the next one is as
    if the rest were shared evenly.
    """
    behind = (best.clamp(min=1e-9) / seen.reward.clamp(min=1e-9)).log().clamp(0.0, FARTHEST)
    size = (scaled.devices - first) / done.left
    into = first / scaled.per_node - torch.floor(first / scaled.per_node)
    compute, weights, stash = largest_behind(scaled, points).unsqueeze(3).unbind(1)
    most = (scaled.devices - first - (done.left - 1)).clamp(min=1)
    least = scaled.micro * compute / most
    values = (
        behind,
        behind.clamp(max=0.2) * 5,
        share(size, scaled.per_node),
        into,
        squash(least),
        share(least, seen.even_rest),
        share(least, seen.span),
        squash(scaled.state * weights),
        squash(torch.minimum(scaled.micro, done.left) * stash / most),
        *_rounds(scaled, done, seen),
    )
    return torch.stack(torch.broadcast_tensors(*values), -1)  # type: ignore[no-untyped-call]


def _rounds(scaled: Scaled, done: Progress, seen: LookAhead) -> tuple[Tensor, Tensor, Tensor]:
    """The longest round up to the current stage; with the next one, beside the rest's even span, and beside T."""
    own = 2 * seen.transfer_in + seen.stage
    longest = torch.maximum(done.round, torch.maximum(seen.stage, (done.last + own) / 2))
    longest = torch.maximum(longest, (done.last_two + own) / 3)
    following = seen.stage + 2 * seen.transfer_out + seen.even_rest / scaled.micro
    ahead = torch.maximum(following / 2, (done.last + 2 * seen.transfer_in + following) / 3)
    whole = scaled.micro * torch.maximum(longest, ahead)
    return squash(scaled.micro * longest), share(whole, seen.even_rest), share(whole, seen.span)


def _globally(scaled: Scaled, done: Progress) -> Tensor:
    """[B, GLOBAL_FEATURES] features of the state as a whole."""
    size = (scaled.devices - done.first) / (done.left + 1)
    values = (
        1 / (done.left + 1),
        1 / done.left,
        share(size, scaled.per_node),
        done.first / scaled.per_node - torch.floor(done.first / scaled.per_node),
        squash(done.through),
        squash(2 * scaled.micro * done.activation),
        squash(done.back),
    )
    return torch.cat([describe_globally(scaled, done), *(v.view(-1, 1) for v in values)], 1)


def _bounded(features: Tensor) -> Tensor:
    """Features of what cannot be, which may be anything, in a range."""
    return torch.nan_to_num(features, nan=0.0, posinf=5.0, neginf=-5.0).clamp(-5.0, 5.0)


def instruction_features(problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
    """Features of ending the current stage at each point, with the devices for it that look best.

    Returns:
        [B, P, INSTRUCTION_FEATURES], [B, GLOBAL_FEATURES], and [B, P] ideal / L if the rest shared its work evenly,
        which with one stage left is ideal / L itself.
    """
    scaled = problems.scaled()
    done = progress(scaled, partial)
    seen, first = best_stops(scaled, done)
    estimate = seen.reward.select(2, 0)
    best = torch.where(legal_cuts(problems, partial), estimate, OUT_OF_MEMORY_REWARD).amax(1).view(-1, 1, 1)
    weights, points = scaled.arrays[:, 2], torch.arange(problems.points, device=estimate.device)
    points = points.expand_as(estimate)  # as long as the batch: an export fixes a number
    standing = torch.stack(
        [
            squash(scaled.micro.select(2, 0) * 2 * scaled.arrays[:, 1]),
            weights / weights[:, -1:].clamp(min=1e-9),
            squash(weights[:, -1:] - weights),
        ],
        2,
    )
    features = torch.cat(
        [
            describe(scaled, done, seen, scaled.arrays, first).select(2, 0),
            _more(scaled, done, seen, points, first, best).select(2, 0),
            describe_rest(scaled, done, scaled.arrays),
            standing,
        ],
        2,
    )
    return _bounded(features), _bounded(_globally(scaled, done)), estimate


def device_features(problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of starting the next stage at each of some devices, [a].

    Returns:
        [B, a, DEVICE_FEATURES], [B, DEVICE_GLOBAL_FEATURES], and [B, a] as in `instruction_features`.
    """
    scaled = problems.scaled()
    done = progress(scaled, partial)
    point = last_cut(partial)[0].clamp(min=0).unsqueeze(1)
    cut = scaled.at(point)
    first = first.view(1, 1, -1)
    rest, factor = rest_evenly(scaled, done, cut, first)
    seen = look_ahead(scaled, done, cut, first, rest, factor)
    possible = (first > done.first) & (first <= scaled.devices - done.left)
    best = torch.where(possible, seen.reward, OUT_OF_MEMORY_REWARD).amax(2, keepdim=True)
    features = torch.cat([describe(scaled, done, seen, cut, first), _more(scaled, done, seen, point, first, best)], 3)
    globally = torch.cat([_globally(scaled, done), describe_rest(scaled, done, cut).select(1, 0)], 1)
    return _bounded(features.select(1, 0)), _bounded(globally), seen.reward.select(1, 0)
