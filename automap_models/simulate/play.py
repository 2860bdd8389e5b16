"""The player of schedules, compiled by numba: a step is the longest path of a graph that does not depend on times.

What each rank runs is fixed (core.passes), and so is what each direction of a link carries: the results of the
passes of the rank that sends, in their order. So everything is laid out once for a schedule, S and M, each node after
those that it waits for, and one loop over the nodes is the whole simulation (`play`).

    rank 0   F0  F1  ·   ·   ·   B0  ·   B1        1F1B on two ranks, every node of the same length: a node waits for
    link →   ·   m0  m1  ·   ·   ·   ·   ·         the one to its left in its row, BEFORE, and for the one that makes or
    rank 1   ·   ·   F0  B0  F1  B1  ·   ·         brings what it takes, INPUT_OF: F1 of rank 1 for B0 and for m1
    link ←   ·   ·   ·   ·   m0  ·   m1  ·

    ends[1 + i] = max(ends[BEFORE of i], ends[INPUT_OF of i]) + durations[DURATION of i]           (`play`)

Long steady phases are played for a few rounds: where all that a round waits for is as much later than a round before,
each further round is as much later again (`repeated` says what is compared, `later_s` by how much).

    nodes       [4, n]     rows BEFORE, INPUT_OF, DURATION and MICRO_BATCH
    durations   [1 + 7·V]  0 s, and of each virtual stage the seconds of its kinds of nodes, FORWARD to MESSAGE; then
                           what of its gradients' all-reduce comes after its last pass, LATE, and its update, UPDATE
    ends        [n + 1]    0 s, and when each node ends: the later one of the two that it waits for, plus its duration
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.schedules import BACKWARD, FORWARD, WEIGHT

BEFORE, INPUT_OF, DURATION, MICRO_BATCH = range(4)
"""Rows of nodes: 1 + what the rank or the direction of a link has done before, 0 for nothing; 1 + what it waits for
besides, 0 for nothing; which duration it has; and of which micro-batch it is."""
MESSAGE, LATE, UPDATE = 4, 5, 6
"""Durations of a virtual stage beside those of its passes (core.schedules): of the message to and from the stage
after it, and of two things that no node of the schedule waits for."""
KINDS = 7
"""Of durations, FORWARD to UPDATE."""
TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""


class ScheduleGraph(NamedTuple):
    """A schedule as nodes.

    Attributes:
        nodes: [4, n], see above.
        last: [S] the last pass of each rank.
        early, late: nodes and those a round later, of the last round of every rank's steady phase; empty where it is
            too short to say.
        more: rounds that a longer schedule has beyond this one.
    """

    nodes: IntArray
    last: IntArray
    early: IntArray
    late: IntArray
    more: int


@jit
def lay_out(
    passes: IntArray, offsets: IntArray, rank_of: IntArray, micro_batches: int, messages: bool
) -> tuple[IntArray, IntArray]:
    """[4, n] the nodes, and [passes] the node of each pass.

    There are fewer nodes, and numbers of -1, where ranks wait for each other for ever. A rank runs as far as it can;
    then one goes on that waited for what it has run.

    Args:
        passes: [3, passes] kinds, stages and micro-batches, the passes of rank 0 first.
        offsets: [S+1] where those of each rank begin.
        rank_of: [V] of virtual stages.
        micro_batches: M.
        messages: whether boundaries between ranks have messages.
    """
    ranks, last = offsets.size - 1, rank_of.size - 1
    count = passes.shape[1]
    nodes = np.zeros((4, count + (2 * last * micro_batches if messages else 0)), np.int64)
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
            # Until a pass whose input is not there; who brings that finds the rank's name in its place, and wakes it.
            kind, stage, m = passes[0, place[rank]], passes[1, place[rank]], passes[2, place[rank]]
            back, awaited = 0 if kind == FORWARD else 1, 0
            if kind != WEIGHT:
                awaited = inputs[back, stage, m]
                if awaited == 0:
                    inputs[back, stage, m] = -1 - rank
                    break
                awaited = max(0, awaited)
            numbers[place[rank]] = n
            by_rank[rank] = n = _add(nodes, n, by_rank[rank], awaited, 1 + KINDS * stage + kind, m)
            place[rank] += 1
            # A forward pass feeds the stage after it, a backward one that before; the last stage turns round by itself.
            receiver, source = stage + 1 - 2 * back, back
            if kind == FORWARD and stage == last:
                receiver, source = last, 1
            if kind == WEIGHT or receiver < 0:
                continue
            sent, to = by_rank[rank], rank_of[receiver]
            if messages and to != rank:
                boundary = 1 + KINDS * min(stage, receiver) + MESSAGE
                by_link[rank, to] = sent = n = _add(nodes, n, by_link[rank, to], sent, boundary, m)
            waiter = -1 - inputs[source, receiver, m]
            inputs[source, receiver, m] = sent
            if waiter >= 0:
                able[waiting] = waiter
                waiting += 1
    return nodes[:, :n].copy(), numbers


@jit
def _add(nodes: IntArray, n: int, before: int, awaited: int, duration: int, micro_batch: int) -> int:
    """Append node n: how many there are then, which is 1 + its number."""
    nodes[BEFORE, n], nodes[INPUT_OF, n] = before, awaited
    nodes[DURATION, n], nodes[MICRO_BATCH, n] = duration, micro_batch
    return n + 1


@jit
def repeated(
    passes: IntArray, offsets: IntArray, numbers: IntArray, nodes: IntArray, micro_batches: int, a_round: int
) -> tuple[IntArray, IntArray]:
    """Nodes and those a round later, of the end of every rank's steady phase; none where it is too short.

    They are the passes of the last round, or of the last two where a round is one micro-batch, as two messages may be
    under way between ranks; and their messages. Where all of these are as much later than a round before, everything
    that the next round waits for is, too.
    """
    compared = 2 if a_round == 1 else 1
    early, late = np.empty(2 * numbers.size, np.int64), np.empty(2 * numbers.size, np.int64)
    count, nothing = 0, np.empty(0, np.int64)
    for rank in range(offsets.size - 1):
        begin, size = offsets[rank], offsets[rank + 1] - offsets[rank]
        period, odd = size * a_round // micro_batches, size * a_round % micro_batches
        stop = 0
        for place in range(size):  # the steady phase ends with the last forward pass
            if passes[0, begin + place] == FORWARD:
                stop = place + 1
        if odd or stop < (compared + 1) * period:
            return nothing, nothing
        for place in range(stop - period - 1, stop - (compared + 1) * period - 1, -1):
            one, other = begin + place, begin + place + period
            same = passes[0, one] == passes[0, other] and passes[1, one] == passes[1, other]
            if not same or passes[2, one] + a_round != passes[2, other]:
                return nothing, nothing
            early[count], late[count] = numbers[one], numbers[other]
            count += 1
            sends = numbers[one] + 1 < nodes.shape[1] and nodes[INPUT_OF, numbers[one] + 1] == numbers[one] + 1
            if sends and nodes[DURATION, numbers[one] + 1] % KINDS == 1 + MESSAGE:
                early[count], late[count] = numbers[one] + 1, numbers[other] + 1
                count += 1
    return early[:count], late[:count]


@jit
def play(nodes: IntArray, durations: FloatArray, ends: FloatArray) -> None:
    """Fill in when nodes end, [n + 1] or more numbers; see above."""
    ends[0] = 0.0
    for i in range(nodes.shape[1]):
        free, ready = ends[nodes[BEFORE, i]], ends[nodes[INPUT_OF, i]]
        ends[i + 1] = max(free, ready) + durations[nodes[DURATION, i]]


@jit
def later_s(graph: ScheduleGraph, ends: FloatArray) -> float:
    """How much later everything is with all rounds of the longer schedule; nan where what was played does not say."""
    if graph.more == 0:
        return 0.0
    if graph.early.size == 0:
        return np.nan
    least, most, latest = np.inf, -np.inf, 0.0
    for i in range(graph.early.size):
        later = ends[graph.late[i] + 1] - ends[graph.early[i] + 1]
        least, most = min(least, later), max(most, later)
    for node in graph.last:
        latest = max(latest, ends[node + 1])
    return graph.more * (least + most) / 2.0 if most - least <= TOLERANCE * latest else np.nan


@jit
def put_stage(
    durations: FloatArray, stage: int, forward_s: float, backward_s: float, late_s: float, update_s: float
) -> None:
    """Write what a virtual stage takes but for messages; its backward passes are whole."""
    first = 1 + KINDS * stage
    durations[first + FORWARD], durations[first + BACKWARD], durations[first + MESSAGE] = forward_s, backward_s, 0.0
    durations[first + LATE], durations[first + UPDATE] = late_s, update_s


@jit
def stage_ends(
    few: ScheduleGraph, full: ScheduleGraph, durations: FloatArray, room: FloatArray, of_stages: FloatArray
) -> float:
    """Fill in when stages have reduced their gradients, [S], one a rank; and when all have updated their parameters.

    Args:
        few: rounds of a schedule, from which the others mostly follow.
        full: the schedule, or the same.
        durations: of its nodes.
        room: for the ends of all nodes.
    """
    graph = few
    play(graph.nodes, durations, room)
    later = later_s(graph, room)
    if np.isnan(later):
        graph, later = full, 0.0
        play(graph.nodes, durations, room)
    for s in range(graph.last.size):
        of_stages[s] = room[graph.last[s] + 1] + later + durations[1 + KINDS * s + LATE]
    return updated(durations, of_stages[: graph.last.size])


@jit
def updated(durations: FloatArray, of_stages: FloatArray) -> float:
    """When all stages have updated their parameters, from when they have reduced their gradients, [S]."""
    step = 0.0
    for s in range(of_stages.size):
        step = max(step, of_stages[s] + durations[1 + KINDS * s + UPDATE])
    return step


@jit
def steps(few: ScheduleGraph, full: ScheduleGraph, durations: FloatArray) -> FloatArray:
    """[P, S] when stages have reduced their gradients, of P plans; durations are [P, 1 + 7·S]."""
    ends, room = np.empty((durations.shape[0], few.last.size)), np.empty(full.nodes.shape[1] + 1)
    for p in range(durations.shape[0]):
        stage_ends(few, full, durations[p], room, ends[p])
    return ends


@jit
def chain_counts(
    graph: IntArray, ends: FloatArray, last: int, kinds: int, added: int, a_round: int
) -> tuple[FloatArray, bool]:
    """[kinds] how often each duration is in the chain that ends with a pass, and whether rounds could be added to it.

    Args:
        graph, ends: [4, n] the nodes of what was played, and [n] when they end.
        last: the pass.
        kinds: of durations.
        added: rounds that were not played.
        a_round: micro-batches of a round.
    """
    # From the pass back to what it waited for: the later of the two; twice, to count and then to keep the nodes.
    count, node = 0, last
    while node >= 0:
        count += 1
        before, awaited = graph[BEFORE, node] - 1, graph[INPUT_OF, node] - 1
        node = before if awaited < 0 or (before >= 0 and ends[before] >= ends[awaited]) else awaited
    nodes, node = np.empty(count, np.int64), last
    counts = np.zeros(kinds)
    for i in range(count - 1, -1, -1):
        nodes[i] = node
        counts[graph[DURATION, node]] += 1.0
        before, awaited = graph[BEFORE, node] - 1, graph[INPUT_OF, node] - 1
        node = before if awaited < 0 or (before >= 0 and ends[before] >= ends[awaited]) else awaited
    if not added:
        return counts, True
    # A piece of the chain between the same node of two rounds is repeated by every round that is added: so often its
    # durations are counted again. That of one round is the best, of more of them only where they divide the rounds.
    begin, stop, rounds = 0, 0, 0
    low, high = count // 2, count // 2 + 1
    while rounds != 1 and (low >= 0 or high < count):  # from the middle on: of pairs of one round the nearest counts
        if high >= count or (low >= 0 and count - 2 * low <= 2 * high - count):
            i, low = low, low - 1
        else:
            i, high = high, high + 1
        duration, m = graph[DURATION, nodes[i]], graph[MICRO_BATCH, nodes[i]]
        for j in range(i + 1, count):
            later = graph[MICRO_BATCH, nodes[j]] - m
            if graph[DURATION, nodes[j]] == duration and later >= a_round and later % a_round == 0:
                if rounds == 0 or later // a_round < rounds:
                    begin, stop, rounds = i, j, later // a_round
                break
    if rounds == 0 or added % rounds:
        return counts, False
    for i in range(begin, stop):
        counts[graph[DURATION, nodes[i]]] += added // rounds
    return counts, True
