"""What the next decision would lead to: a one-step look-ahead by the cost model, scale-free.

For every candidate (end the current stage at point k, give it the devices up to a') the stage's own times are exact.
What follows comes from the tables of envs.pipeline.cost_to_go. With one stage left nothing is estimated: the
look-ahead is the length itself. All times are in units of the ideal length ΣC·M / D, so that 1 / estimate estimates
the reward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from automap_models.cost.staged_torch import (
    all_reduce_factor,
    equal_parts,
    pipeline_cost_batch,
    span_after,
    span_before,
    transfer_factor,
)
from automap_models.envs.pipeline.completions import rest_after_points, rest_from_devices
from automap_models.envs.pipeline.cost_to_go import IMPOSSIBLE, CostToGo, Rest, Scaled, devices_per_unit, first_devices
from automap_models.envs.pipeline.env import OUT_OF_MEMORY_REWARD, Partial, Problems, last_cut, legal_cuts

TAILS = (4, 12, 32, 64)
GLOBAL_FEATURES = 10 + 2 * len(TAILS)
CANDIDATE_FEATURES = 20


class Progress(NamedTuple):
    """What is settled by the stages already complete; every tensor [B, 1, 1], times in units of the ideal length.

    left: stages after the current one; first, previous: first device of the current stage and of the one before;
    through: Σ u of all that is complete; span: T so far; back: Σ B so far; reduce: max (AR_s - Σ B before it);
    compute, forward, weights, stash, activation: prefix sums at the last cut (A there).
    last, last_two: Σ u of the last complete stage and of the last two, with 2x of the transfer between; 0 where there
    are fewer; round: the longest of Σ (u + 2x) / n over n = 1, 2 and 3 neighbouring complete stages.
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
    last: Tensor
    last_two: Tensor
    round: Tensor


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
    per_node, ratio, state, micro = (t.view(-1) for t in (scaled.per_node, scaled.ratio, scaled.state, scaled.micro))
    samples = None if scaled.samples is None else scaled.samples.view(-1)
    cost = pipeline_cost_batch(scaled.arrays, points, devices, per_node, ratio, state, micro, samples)
    link = torch.nn.functional.pad(cost.transfer, (0, 1))
    back = cost.backward + link
    hidden = torch.cumsum(back, 1) - back
    at = torch.nn.functional.pad(scaled.arrays, (1, 0)).gather(2, (point + 1).unsqueeze(1).expand(-1, 5, -1))
    previous = torch.where(firsts < first, firsts, 0).amax(1, keepdim=True)
    compute, activation, weights, forward, stash = at.unsqueeze(3).unbind(1)
    one = cost.forward + cost.backward
    into = functional.pad(2 * cost.transfer, (1, 0))  # the transfer into a stage, both ways
    two = one + into + _before(one)
    three = one + into + _before(two)
    newest = (column == (stage - 1).unsqueeze(1)).to(one.dtype)
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
        last=(one * newest).sum(1).view(-1, 1, 1),
        last_two=(two * newest).sum(1).view(-1, 1, 1),
        round=torch.maximum(torch.maximum(one, two / 2), three / 3).amax(1).view(-1, 1, 1),
    )


def _before(of_stages: Tensor) -> Tensor:
    """[B, S] of the stage before; 0 before the first."""
    return functional.pad(of_stages, (1, 0))[:, :-1]


class LookAhead(NamedTuple):
    """Consequences of ending the stage at k with the next one's devices starting at a'; all of one shape.

    reward: estimate; span, exposed: the T and R it is made of; stage: u of this stage; rest_…: what follows
    (cost_to_go.Rest); even_rest: its T if its devices shared its work evenly; memory: of this stage.
    """

    reward: Tensor
    span: Tensor
    exposed: Tensor
    stage: Tensor
    rest_span: Tensor
    rest_reduce: Tensor
    rest_stop: Tensor
    even_rest: Tensor
    transfer_in: Tensor
    transfer_out: Tensor
    all_reduce: Tensor
    memory: Tensor

    def at(self, devices: Tensor) -> LookAhead:
        """The same at some of the first devices, int64 [B, k, a]."""
        shape = self.reward.shape
        return LookAhead(*(tensor.expand(shape).gather(2, devices) for tensor in self))


def look_ahead(scaled: Scaled, done: Progress, cut: Tensor, first: Tensor, rest: Rest, factor_out: Tensor) -> LookAhead:
    """Estimate the outcome for candidates.

    Args:
        cut: [B, 5, k] the channels at the candidate points.
        first: candidate first devices a' of the next stage, [B or 1, k or 1, a].
        rest, factor_out: what follows them and the transfer time per activation to it, [B, k, a].
    """
    compute, activation, weights, forward, stash = cut.unsqueeze(3).unbind(1)
    micro, per_device = scaled.micro, 1 / equal_parts((first - done.first).clamp(min=1), scaled.samples)

    factor_in = transfer_factor(done.previous, done.first, first, scaled.per_node, scaled.ratio, scaled.samples)
    transfer_in = torch.where(done.first > 0, done.activation * factor_in, 0.0)
    stage = (compute - done.compute) * per_device
    backward = stage - (forward - done.forward) * per_device
    span = span_after(done.span, done.through, transfer_in, stage, micro)
    all_reduce = (weights - done.weights) * all_reduce_factor(done.first, first, scaled.per_node, scaled.ratio)
    hidden = done.back + transfer_in
    reduce = torch.maximum(done.reduce, all_reduce - hidden)

    before = done.through + 2 * transfer_in + stage
    transfer_out = activation * factor_out
    after = span_before(2 * transfer_out, 2 * micro * transfer_out, rest.span)
    span = torch.maximum(span, before + after)
    reduce = torch.maximum(reduce, rest.reduce - hidden - backward - transfer_out)

    in_flight = torch.minimum(micro, done.left + 1)
    memory = scaled.state * (weights - done.weights) + in_flight * (stash - done.stash) * per_device
    fits = (memory <= 1) & (rest.span < IMPOSSIBLE)
    return LookAhead(
        torch.where(fits, 1 / (span + reduce), OUT_OF_MEMORY_REWARD),
        span,
        reduce,
        stage,
        *rest,
        micro * (scaled.total[:, :1] - compute) / (scaled.devices - first).clamp(min=1),
        transfer_in,
        transfer_out,
        all_reduce,
        memory,
    )


def look_at_cuts(problems: Problems, scaled: Scaled, done: Progress) -> tuple[LookAhead, Tensor]:
    """The look-ahead for every point and each unit of devices after it, [B, P, U], and the units' first devices."""
    points = torch.arange(problems.points, device=scaled.arrays.device).expand(scaled.arrays.shape[0], -1)
    tables = _tables(problems)
    first = first_devices(scaled, tables.units)
    rest, factor_out = rest_after_points(scaled, tables, done.left, points, done.first)
    return look_ahead(scaled, done, scaled.arrays, first, rest, factor_out), first


def look_at_devices(problems: Problems, scaled: Scaled, done: Progress, point: Tensor, first: Tensor) -> LookAhead:
    """The look-ahead for one point, int64 [B, 1], and first devices [1, 1, a]: [B, 1, a]."""
    rest, factor_out = rest_from_devices(scaled, _tables(problems), done.left, point, done.first, first)
    return look_ahead(scaled, done, scaled.at(point), first, rest, factor_out)


def _tables(problems: Problems) -> CostToGo:
    if problems.cost_to_go is None:
        raise ValueError("the problems have no cost-to-go tables: take problems.with_cost_to_go(…)")
    return problems.cost_to_go


def squash(x: Tensor) -> Tensor:
    """[0, ∞) → [0, 1), so that a feature of any size stays in range."""
    return x / (1 + x)


def share(x: Tensor, y: Tensor) -> Tensor:
    """x of x + y, both ≥ 0."""
    return x / (x + y + 1e-6)


def describe(scaled: Scaled, done: Progress, seen: LookAhead, cut: Tensor, first: Tensor) -> Tensor:
    """[..., CANDIDATE_FEATURES] features of candidates with their look-ahead."""
    micro, devices = scaled.micro, scaled.devices
    compute, total = cut[:, 0].unsqueeze(2), scaled.total[:, :1]
    steady, rest = micro * seen.stage, seen.rest_span
    values = (
        seen.reward,
        1 / seen.span,
        seen.exposed / (seen.exposed.abs() + seen.span),
        squash(steady),
        squash(rest),
        squash(seen.even_rest),
        share(steady, rest),
        share(seen.even_rest, rest),
        squash(2 * micro * seen.transfer_in),
        squash(2 * micro * seen.transfer_out),
        squash(seen.all_reduce),
        seen.rest_reduce / (seen.rest_reduce.abs() + 1),
        (seen.exposed > 0).float(),
        squash(seen.memory),
        (compute - done.compute) / total,
        compute / total,
        (first - done.first) / devices,
        first / devices,
        (seen.rest_stop - first) / devices,
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
        squash(scaled.total[:, 2:3]),
    )
    return torch.cat([v.view(-1, 1) for v in values], 1)


INSTRUCTION_FEATURES = CANDIDATE_FEATURES + 4
DEVICE_FEATURES = CANDIDATE_FEATURES


def instruction_features(problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
    """Features of ending the current stage at each point, with the device cut that looks best after it.

    Returns:
        [B, P, INSTRUCTION_FEATURES], [B, GLOBAL_FEATURES], and [B, P] the best estimated reward.
    """
    scaled = problems.scaled()
    done = progress(scaled, partial)
    all_seen, first = look_at_cuts(problems, scaled, done)
    possible = (first > done.first) & (first <= scaled.devices - done.left)
    best = first_best(torch.where(possible, all_seen.reward, OUT_OF_MEMORY_REWARD - 1))
    seen, first = all_seen.at(best), best * devices_per_unit(scaled, _tables(problems).units)
    # Where stages are as many as devices, none of those left may be the first of a unit: nothing is promised then.
    seen = seen._replace(reward=torch.where(possible.any(2, keepdim=True), seen.reward, OUT_OF_MEMORY_REWARD))
    estimate = seen.reward.squeeze(2)
    features = describe(scaled, done, seen, scaled.arrays, first).squeeze(2)
    return (
        torch.cat([features, _standing(problems, partial, scaled, estimate)], 2),
        describe_globally(scaled, done),
        estimate,
    )


def first_best(reward: Tensor) -> Tensor:
    """int64 [B, P, 1] the first unit whose reward is the best but for rounding.

    Many device cuts tie exactly where something else sets the length; the tolerance keeps every runtime's choice equal.
    """
    best = reward.amax(2, keepdim=True)
    near = reward >= best - 1e-5 * best.abs()
    # As floats, in which they are exact: TorchInductor 2.11 stumbles over the least of whole numbers.
    unit = torch.arange(reward.shape[2], device=reward.device, dtype=reward.dtype)
    first = torch.where(near, unit, reward.shape[2]).amin(2, keepdim=True)
    return first.clamp(max=reward.shape[2] - 1).long()


def _standing(problems: Problems, partial: Partial, scaled: Scaled, reward: Tensor) -> Tensor:
    """[B, P, 4] how a point stands among the others: its estimate, its activations, its parameters before and after."""
    best = torch.where(legal_cuts(problems, partial), reward, 2 * OUT_OF_MEMORY_REWARD).amax(1, keepdim=True)
    weights = scaled.arrays[:, 2]
    return torch.stack(
        [
            best - reward,
            squash(scaled.micro.squeeze(2) * 2 * scaled.arrays[:, 1]),
            weights / weights[:, -1:].clamp(min=1e-9),
            squash(weights[:, -1:] - weights),
        ],
        2,
    )


def device_features(problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of starting the next stage at each of some devices, [a].

    Returns:
        [B, a, DEVICE_FEATURES], [B, GLOBAL_FEATURES], and [B, a] the estimated reward.
    """
    scaled = problems.scaled()
    done = progress(scaled, partial)
    point, first = last_cut(partial)[0].clamp(min=0).unsqueeze(1), first.view(1, 1, -1)
    seen = look_at_devices(problems, scaled, done, point, first)
    features = describe(scaled, done, seen, scaled.at(point), first).squeeze(1)
    return features, describe_globally(scaled, done), seen.reward.squeeze(1)
