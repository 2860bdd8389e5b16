"""A staged plan run interleaved: every rank holds its share of the model in several pieces; compiled by numba.

A plan of S stages says what share of the computation each rank has, and its devices. Under the interleaved schedule
(Narayanan et al., 2104.04473) the model goes through the ranks vp times, each time with that share of 1 / vp of it:

    plan, S = 2       |       rank 0, 60 %        |     rank 1, 40 %    |
    vp = 2            | rank 0, 30 % | 1, 20 %    | rank 0, 30 % | 1, 20 %   |
                        stage 0        stage 1      stage 2        stage 3       virtual stages

Each boundary is the place to cut at which the computation before it is nearest to that, of several the last; where two
would be the same, the later one is the next. A rank holds the training state of all of its pieces. What a piece sends
goes from the last rank to the first one, too, wherever their devices are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.compiled import jit
from automap_models.core.pass_orders import FORWARD
from automap_models.envs.pipeline.cost_to_go import Scaled
from automap_models.envs.pipeline.encoding import COMPUTE, SENT
from automap_models.envs.pipeline.interleaving import INTERLEAVED, VIRTUAL, runs
from automap_models.envs.pipeline.stage_kernel import PER_NODE, RATIO, SAMPLES, from_start, numbers_of, stage_times
from automap_models.envs.pipeline.table_kernel import parts_of
from automap_models.simulate.order_kernel import pass_order, simulated_step

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def interleaved_steps(scaled: Scaled, cut_mask: Tensor, owner: Tensor, points: Tensor, devices: Tensor) -> Tensor:
    """[n] the simulated steps of plans, in the problems' units; ∞ where one does not fit the memory or does not run.

    Args:
        scaled, cut_mask: B problems as they are; bool [B, P] where their stages may end.
        owner: int64 [n] which problem a plan is of.
        points: int64 [n, S+1] last point of each stage, from -1; unused stages repeat the last one.
        devices: [n, S+1] first device of each stage, from 0; unused ones repeat their number.
    """
    steps = np.full(len(owner), np.inf)
    arrays, given, legal = from_start(scaled.arrays), numbers_of(scaled), cut_mask.cpu().numpy()
    of = owner.cpu().numpy()
    cuts, firsts = points.cpu().numpy(), devices.cpu().numpy().astype(np.int64)
    sizes = torch.cat([scaled.stages, scaled.micro], 1).squeeze(2).long().cpu().numpy()
    for stages, micro, rows in _alike(sizes[of]):
        if not runs(INTERLEAVED, stages, micro):
            continue
        plans = (of[rows], cuts[rows, : stages + 1], firsts[rows, : stages + 1])
        own = np.empty(len(rows))
        _steps(arrays, legal, given, *plans, VIRTUAL, micro, *pass_order(INTERLEAVED, stages, micro, VIRTUAL), own)
        steps[rows] = own
    return torch.from_numpy(steps).to(scaled.arrays)


def _alike(sizes: Integers) -> Iterator[tuple[int, int, Integers]]:
    """S, M and the rows [n, 2] that have them."""
    distinct, number = np.unique(sizes, axis=0, return_inverse=True)
    for n, (stages, micro) in enumerate(distinct.tolist()):
        yield stages, micro, np.flatnonzero(number.reshape(-1) == n)


@jit
def lay_out(compute: Floats, legal: Flags, cuts: Integers, virtual: int, ends: Integers) -> bool:
    """The last points of the virtual stages of a plan; whether there are places enough to cut at.

    Args:
        compute: [P+1] sums of the computation.
        legal: [P] where a stage may end.
        cuts: [S+1] last point of each stage, from -1.
        virtual: vp.
        ends: [V+1] to be filled, from -1.
    """
    stages, last = cuts.size - 1, cuts[cuts.size - 1]
    places = np.flatnonzero(legal[:last])
    inner, total = stages * virtual - 1, compute[last + 1]
    if places.size < inner:
        return False
    ends[0], ends[inner + 1] = -1, last
    at = 0
    for v in range(inner):
        lap, s = v // stages, v % stages
        target = (lap * total + compute[cuts[s + 1] + 1]) / virtual
        while at + 1 < places.size:
            here, further = compute[places[at] + 1], compute[places[at + 1] + 1]
            if abs(further - target) > abs(here - target):
                break
            at += 1
        ends[v + 1] = at
        if v and ends[v + 1] <= ends[v]:
            ends[v + 1] = ends[v] + 1
    room = places.size - 1
    for v in range(inner - 1, -1, -1):
        ends[v + 1] = min(ends[v + 1], room)
        room = ends[v + 1] - 1
        ends[v + 1] = places[ends[v + 1]]
    return True


@jit
def message_factor(a: int, e: int, c: int, d: int, per_node: int, ratio: float, samples: float) -> float:
    """Time per unit of activations from devices a … e-1 to c … d-1, wherever these are (cost.collectives).

    Slices lie on both ends in the order of their devices. What both ends hold of them on one node stays inside it.
    """
    sender, receiver = e - a, d - c
    crosses, stays = 0.0, 0.0
    for node in range(min(a, c) // per_node, (max(e, d) - 1) // per_node + 1):
        low, high = node * per_node, (node + 1) * per_node
        begun, sent = (min(max(low, a), e) - a) / sender, (min(max(high, a), e) - a) / sender
        taken, got = (min(max(low, c), d) - c) / receiver, (min(max(high, c), d) - c) / receiver
        stay = max(0.0, min(sent, got) - max(begun, taken))
        crosses, stays = max(crosses, sent - begun - stay, got - taken - stay), max(stays, stay)
    if samples > 0:
        padding = max(sender / parts_of(float(sender), samples), receiver / parts_of(float(receiver), samples))
        crosses, stays = min(padding * crosses, 1.0), min(padding * stays, 1.0)
    return max(crosses, stays * ratio)


@jit
def _fits(passes: Integers, offsets: Integers, rank_of: Integers, state: Floats, stash: Floats) -> bool:
    """Whether every rank holds its training state, [V] of virtual stages, and what waits for backward passes."""
    for rank in range(offsets.size - 1):
        held = 0.0
        for v in range(rank_of.size):
            if rank_of[v] == rank:
                held += state[v]
        most = held
        for i in range(offsets[rank], offsets[rank + 1]):
            held += stash[passes[1, i]] if passes[0, i] == FORWARD else -stash[passes[1, i]]
            most = max(most, held)
        if most > 1.0:
            return False
    return True


@jit
def _steps(
    arrays: Floats,
    legal: Flags,
    given: Floats,
    owner: Integers,
    cuts: Integers,
    firsts: Integers,
    virtual: int,
    micro_batches: int,
    passes: Integers,
    offsets: Integers,
    rank_of: Integers,
    links: Integers,
    steps: Floats,
) -> None:
    """See interleaved_steps; plans of as many stages and micro-batches, the arguments of order_kernel.PassOrder."""
    stages = rank_of.size
    ends, shares = np.empty(stages + 1, dtype=np.int64), np.zeros(stages, dtype=np.bool_)
    times, gradients, memory = np.zeros((3, stages)), np.zeros((2, stages)), np.zeros((2, stages))
    for n in range(owner.size):
        b, devices = owner[n], firsts[n]
        per_node, ratio, samples = int(given[b, PER_NODE]), given[b, RATIO], given[b, SAMPLES]
        steps[n] = np.inf
        if not lay_out(arrays[b, COMPUTE], legal[b], cuts[n], virtual, ends):
            continue
        for v in range(stages):
            begin, stop, rank = ends[v] + 1, ends[v + 1] + 1, rank_of[v]
            first, end = devices[rank], devices[rank + 1]
            (times[0, v], times[1, v], gradients[0, v], gradients[1, v], memory[0, v], memory[1, v]) = stage_times(
                arrays[b], given[b], begin, stop, first, end
            )
            if v + 1 < stages:
                to = rank_of[v + 1]
                factor = message_factor(first, end, devices[to], devices[to + 1], per_node, ratio, samples)
                times[2, v] = arrays[b, SENT, stop] * factor
            if v:
                low, high = devices[rank_of[v - 1]], devices[rank_of[v - 1] + 1]
                alone = min(low, first) // per_node == (max(high, end) - 1) // per_node
                shares[v] = alone or first // per_node < (end - 1) // per_node
        if _fits(passes, offsets, rank_of, memory[0], memory[1]):
            steps[n] = simulated_step(
                passes, offsets, rank_of, links, micro_batches, times, gradients[0], gradients[1], shares
            )
