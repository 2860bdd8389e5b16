"""The loops of simulate.rounds, compiled by numba.

A layout is an array [4, n] of the n passes and messages of a schedule, each after those that it waits for; see the rows
BEFORE to MICRO_BATCH.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.pass_orders import FORWARD, WEIGHT

BEFORE, INPUT_OF, DURATION, MICRO_BATCH = 0, 1, 2, 3
"""Rows of a layout: 1 + what the rank or the direction of a link has done before, 0 for nothing; 1 + what it waits for
besides, 0 for nothing; which duration it has, 4 · stage + kind of a pass and 4 · V + boundary of a message; and of
which micro-batch it is."""


@jit
def lay_out(
    passes: IntArray, offsets: IntArray, rank_of: IntArray, micro_batches: int, messages: bool
) -> tuple[IntArray, IntArray]:
    """[4, n] the layout, and [passes] the number of each pass in it; fewer than all, and numbers of -1, where ranks
    wait for each other for ever.

    A rank runs as far as it can; then one goes on that waited for what it has run.

    Args:
        passes: [3, passes] kinds, stages and micro-batches, the passes of rank 0 first.
        offsets: [S+1] where those of each rank begin.
        rank_of: [V] of virtual stages.
        micro_batches: M.
        messages: whether boundaries between ranks have messages.
    """
    ranks, last = offsets.size - 1, rank_of.size - 1
    count = passes.shape[1]
    layout = np.zeros((4, count + (2 * last * micro_batches if messages else 0)), np.int64)
    numbers = np.full(count, -1, np.int64)
    # 1 + what brings the input of each stage's forward and backward passes; 0 before it is there, -1 - rank where one
    # waits for it, and -1 - S where nothing is waited for
    inputs = np.zeros((2, last + 1, micro_batches), np.int64)
    inputs[0, 0] = -1 - ranks
    by_rank, by_link = np.zeros(ranks, np.int64), np.zeros((ranks, ranks), np.int64)
    place, able = offsets[:-1].copy(), np.arange(ranks - 1, -1, -1)
    waiting, n = ranks, 0
    while waiting:
        waiting -= 1
        rank = able[waiting]
        while place[rank] < offsets[rank + 1]:
            kind, stage, m = passes[0, place[rank]], passes[1, place[rank]], passes[2, place[rank]]
            back, awaited = 0 if kind == FORWARD else 1, 0
            if kind != WEIGHT:
                awaited = inputs[back, stage, m]
                if awaited == 0:
                    inputs[back, stage, m] = -1 - rank
                    break
                awaited = max(0, awaited)
            layout[BEFORE, n], layout[INPUT_OF, n] = by_rank[rank], awaited
            layout[DURATION, n], layout[MICRO_BATCH, n] = 4 * stage + kind, m
            numbers[place[rank]] = n
            place[rank] += 1
            n += 1
            by_rank[rank] = n
            receiver, of = stage + 1 - 2 * back, back
            if kind == FORWARD and stage == last:
                receiver, of = last, 1
            if kind == WEIGHT or receiver < 0:
                continue
            sent, to = n, rank_of[receiver]
            if messages and to != rank:
                layout[BEFORE, n], layout[INPUT_OF, n] = by_link[rank, to], n
                layout[DURATION, n], layout[MICRO_BATCH, n] = 4 * (last + 1) + min(stage, receiver), m
                n += 1
                by_link[rank, to] = sent = n
            waiter = -1 - inputs[of, receiver, m]
            inputs[of, receiver, m] = sent
            if waiter >= 0:
                able[waiting] = waiter
                waiting += 1
    return layout[:, :n], numbers


@jit
def repeated(
    passes: IntArray, offsets: IntArray, numbers: IntArray, micro_batches: int, a_round: int
) -> tuple[IntArray, IntArray]:
    """Passes and those a round later, of the last round of every rank's steady phase; none where it is too short."""
    early, late = np.empty(numbers.size, np.int64), np.empty(numbers.size, np.int64)
    shown, nothing = 0, np.empty(0, np.int64)
    for rank in range(offsets.size - 1):
        begin, size = offsets[rank], offsets[rank + 1] - offsets[rank]
        period, odd = size * a_round // micro_batches, size * a_round % micro_batches
        stop = 0
        for place in range(size):
            if passes[0, begin + place] == FORWARD:
                stop = place + 1
        before = shown
        for place in range(stop - period - 1, max(-1, stop - 2 * period - 1), -1):
            one, other = begin + place, begin + place + period
            same = passes[0, one] == passes[0, other] and passes[1, one] == passes[1, other]
            if odd or not same or passes[2, one] + a_round != passes[2, other]:
                break
            early[shown], late[shown] = numbers[one], numbers[other]
            shown += 1
        if 2 * (shown - before) < period:
            return nothing, nothing
    return early[:shown], late[:shown]


@jit
def play(layout: IntArray, durations: FloatArray) -> FloatArray:
    """[n] when passes and messages end, of [4V + V-1] durations."""
    count = layout.shape[1]
    ends = np.empty(count + 1)
    ends[0] = 0.0
    for i in range(count):
        free, ready = ends[layout[BEFORE, i]], ends[layout[INPUT_OF, i]]
        ends[i + 1] = max(free, ready) + durations[layout[DURATION, i]]
    return ends[1:]


@jit
def chain_counts(
    layout: IntArray, ends: FloatArray, last: int, kinds: int, added: int, a_round: int
) -> tuple[FloatArray, bool]:
    """[kinds] how often each duration is in the chain that ends with a pass, and whether rounds could be added to it.

    Args:
        layout, ends: of what was played.
        last: the pass.
        kinds: of durations.
        added: rounds that were not played.
        a_round: micro-batches of a round.
    """
    count, node = 0, last
    while node >= 0:
        count += 1
        before, awaited = layout[BEFORE, node] - 1, layout[INPUT_OF, node] - 1
        node = before if awaited < 0 or (before >= 0 and ends[before] >= ends[awaited]) else awaited
    nodes, node = np.empty(count, np.int64), last
    counts = np.zeros(kinds)
    for i in range(count - 1, -1, -1):
        nodes[i] = node
        counts[layout[DURATION, node]] += 1.0
        before, awaited = layout[BEFORE, node] - 1, layout[INPUT_OF, node] - 1
        node = before if awaited < 0 or (before >= 0 and ends[before] >= ends[awaited]) else awaited
    if not added:
        return counts, True
    begin, stop, rounds = 0, 0, 0
    for i in range(count):
        duration, m = layout[DURATION, nodes[i]], layout[MICRO_BATCH, nodes[i]]
        for j in range(i + 1, count):
            if layout[DURATION, nodes[j]] != duration:
                continue
            later = layout[MICRO_BATCH, nodes[j]] - m
            if later < a_round or later % a_round:
                continue
            of = later // a_round
            nearer = abs(i - 0.5 * count) < abs(begin - 0.5 * count)
            if rounds == 0 or of < rounds or (of == rounds and nearer):
                begin, stop, rounds = i, j, of
            break
    if rounds == 0 or added % rounds:
        return counts, False
    for i in range(begin, stop):
        counts[layout[DURATION, nodes[i]]] += added // rounds
    return counts, True
