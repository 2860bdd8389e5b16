"""How long a schedule takes, and nothing else about it: for prices of strategies by the thousand.

The rules are those of simulate.engine but for links: each direction of a link carries its own messages, one at a time,
in the order in which the sender computes them, as InfiniBand and NVLink do. So no step is longer than with the engine,
whose links carry one message in either direction, and without messages they are equal.

Passes and messages are laid out once for all times, each after those that it waits for; one loop over them is the
whole simulation. The middle of a schedule repeats itself. So a few rounds of micro-batches are played:

    warm-up | round | round | ending          every pass of the last round comes λ later than in the one before
    warm-up | round | round | round | … | ending          each further round adds λ

Where that does not hold yet, more rounds are played, in the end all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.pass_orders import Action
from automap_models.core.schedules import Schedule, build_schedule, repeating_micro_batches

TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""
KINDS = "FBIW"


class _Layout(NamedTuple):
    """The passes and messages of a schedule, n of them, each after those that it waits for.

    Attributes:
        before: [n] 1 + what the rank or the direction of a link has done before; 0 for nothing.
        inputs: [n] 1 + what it waits for besides; 0 for nothing.
        durations: [n] 4 · stage + kind of a pass, see KINDS; 4 · V + boundary of a message.
        micro_batches: [n] of a pass or a message.
        last: [S] the last pass of each rank.
        early, late: passes and those a round later, of the last round of every rank's steady phase; None where it is
            too short to say.
    """

    before: list[int]
    inputs: list[int]
    durations: list[int]
    micro_batches: list[int]
    last: NDArray[np.int64]
    early: NDArray[np.int64] | None
    late: NDArray[np.int64] | None


class _Builder:
    """A layout in the making; `done`: rank, or sender and receiver → 1 + what it has done last."""

    def __init__(self, schedule: Schedule, messages: bool) -> None:
        self.schedule, self.messages = schedule, messages
        self.before: list[int] = []
        self.inputs: list[int] = []
        self.durations: list[int] = []
        self.micro_batches: list[int] = []
        self.done: dict[int | tuple[int, int], int] = {}
        self.results: dict[
            tuple[bool, int, int], int
        ] = {}  # (backward, stage, micro-batch) → 1 + what brings its input

    def add(self, resource: int | tuple[int, int], awaited: int, duration: int, micro_batch: int) -> int:
        """1 + its number."""
        self.micro_batches.append(micro_batch)
        self.before.append(self.done.get(resource, 0))
        self.inputs.append(awaited)
        self.durations.append(duration)
        self.done[resource] = len(self.before)
        return len(self.before)

    def run(self, rank: int, action: Action) -> int:
        """Add a pass, and the message that it sends."""
        kind, stage, micro_batch = action
        back, last = kind in "BI", self.schedule.stages - 1
        awaited = 0 if kind == "W" else self.results.get((back, stage, micro_batch), 0)
        number = self.add(rank, awaited, 4 * stage + KINDS.index(kind), micro_batch)
        receiver = stage - 1 if back else stage + 1
        if kind == "F" and stage == last:
            self.results[True, stage, micro_batch] = number
        elif kind != "W" and receiver >= 0:
            to = self.schedule.rank_of[receiver]
            sent = number
            if self.messages and to != rank:
                sent = self.add((rank, to), number, 4 * (last + 1) + min(stage, receiver), micro_batch)
            self.results[back, receiver, micro_batch] = sent
        return number - 1


@lru_cache(maxsize=256)
def _layout(name: str, ranks: int, micro_batches: int, virtual: int, a_round: int, messages: bool) -> _Layout:
    schedule = build_schedule(name, ranks, micro_batches, virtual)
    passes = sorted(
        (turn, rank, position) for rank, turns in enumerate(schedule.turns) for position, turn in enumerate(turns)
    )
    builder = _Builder(schedule, messages)
    numbers = [[0] * len(order) for order in schedule.orders]
    for _, rank, position in passes:
        numbers[rank][position] = builder.run(rank, schedule.orders[rank][position])
    early, late = _repeated(schedule, numbers, a_round)
    last = np.array([of_rank[-1] for of_rank in numbers])
    return _Layout(builder.before, builder.inputs, builder.durations, builder.micro_batches, last, early, late)


def _repeated(
    schedule: Schedule, numbers: Sequence[Sequence[int]], a_round: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """See _Layout.early; the steady phase of a rank ends with its last forward pass."""
    early: list[int] = []
    late: list[int] = []
    for order, number in zip(schedule.orders, numbers, strict=True):
        period, odd = divmod(len(order) * a_round, schedule.micro_batches)
        stop = max(position for position, action in enumerate(order) if action.kind == "F") + 1
        shown = 0
        for position in range(stop - period - 1, max(-1, stop - 2 * period - 1), -1):
            kind, stage, micro_batch = order[position]
            if odd or order[position + period] != (kind, stage, micro_batch + a_round):
                break
            early.append(number[position])
            late.append(number[position + period])
            shown += 1
        if 2 * shown < period:
            return None, None
    return np.array(early), np.array(late)


def _play(layout: _Layout, durations: list[float]) -> FloatArray:
    """[n] when passes and messages end."""
    ends = [0.0]
    add = ends.append
    for before, awaited, duration in zip(layout.before, layout.inputs, layout.durations, strict=True):
        free, ready = ends[before], ends[awaited]
        add((ready if ready > free else free) + durations[duration])
    return np.array(ends[1:])


class PassTimes(NamedTuple):
    """Seconds of one micro-batch in V virtual stages.

    Attributes:
        forward_s, input_s, weight_s: [V] of its passes; a whole backward pass is both of the last.
        transfer_s: [V-1] of a message between neighbouring virtual stages, one direction.
    """

    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    transfer_s: FloatArray


def rank_ends(name: str, micro_batches: int, virtual: int, times: PassTimes) -> FloatArray:
    """[S] when each rank has run its last pass, seconds.

    Args:
        name: a key of core.schedules.SCHEDULES.
        micro_batches, virtual: M, vp.
        times: of one micro-batch.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    return _played(name, micro_batches, virtual, times).of_ranks


class _Played(NamedTuple):
    """A schedule that was played.

    Attributes:
        of_ranks: [S] when each rank has run its last pass, with all micro-batches.
        ends: [n] when passes and messages end, with the micro-batches that were played.
        layout: of these.
        micro_batches, a_round: played, and of a round; see core.schedules.repeating_micro_batches.
    """

    of_ranks: FloatArray
    ends: FloatArray
    layout: _Layout
    micro_batches: int
    a_round: int


def _played(name: str, micro_batches: int, virtual: int, times: PassTimes) -> _Played:
    """As few micro-batches as show when the ranks end; arguments as of `rank_ends`."""
    forward_s, input_s, weight_s, transfer_s = times
    ranks, messages = forward_s.size // virtual, bool(transfer_s.any())
    passes = np.stack([forward_s, input_s + weight_s, input_s, weight_s], axis=1)
    durations = [*passes.ravel().tolist(), *transfer_s.tolist()]
    played, a_round = repeating_micro_batches(name, ranks, micro_batches, virtual)
    while True:
        layout = _layout(name, ranks, played, virtual, a_round, messages)
        ends = _play(layout, durations)
        of_ranks: FloatArray = ends[layout.last]
        if played == micro_batches:
            return _Played(of_ranks, ends, layout, played, a_round)
        if layout.early is None or layout.late is None:
            played = micro_batches
            continue
        later_s = ends[layout.late] - ends[layout.early]
        if np.ptp(later_s) <= TOLERANCE * of_ranks.max():
            of_ranks = of_ranks + float(later_s.mean()) * ((micro_batches - played) // a_round)
            return _Played(of_ranks, ends, layout, played, a_round)
        played = min(micro_batches, 2 * played + (micro_batches - 2 * played) % a_round)


class Chain(NamedTuple):
    """Passes and messages each of which waits for the one before it: no order of times makes the rank end earlier.

    Attributes:
        passes: [3, V] how many F, I and W of each virtual stage are among them; a whole backward pass is an I and a W.
        messages: [V-1] how many between neighbouring virtual stages.
        rank: whose last pass is the last of them.
    """

    passes: FloatArray
    messages: FloatArray
    rank: int

    def seconds(self, times: PassTimes) -> float:
        """How long they take together."""
        return float((self.passes * np.stack(times[:3])).sum() + self.messages @ times.transfer_s)

    def from_first_pass(self) -> Chain:
        """The same from the first pass of its rank on; there is one virtual stage a rank.

        A chain that ends on a rank has come through all ranks before it, so that no count falls below 0.
        """
        passes, messages = self.passes.copy(), self.messages.copy()
        passes[0, : self.rank] -= 1.0
        messages[: self.rank] -= 1.0
        return Chain(passes, messages, self.rank)


def longest_chains(name: str, micro_batches: int, virtual: int, times: PassTimes) -> tuple[FloatArray, list[Chain]]:
    """[S] as `rank_ends`, and for each rank the chain that makes it end then; arguments as of `rank_ends`.

    A chain is one whatever passes take, so that with other times no rank ends before its chain does. Of a schedule of
    which a few rounds were played, the chain goes through a round once more for each round that was not:

        warm-up · a pass … the same pass of the next round … ending      ← between these two

    A rank whose chain has no such pair has none.
    """
    played = _played(name, micro_batches, virtual, times)
    stages = times.forward_s.size
    chains = []
    for rank, end_s in enumerate(played.of_ranks.tolist()):
        counts = _chain_counts(played, rank, micro_batches, 5 * stages - 1)
        if counts is None:
            continue
        whole, inputs = counts[1 : 4 * stages : 4], counts[2 : 4 * stages : 4]
        passes = np.stack([counts[0 : 4 * stages : 4], whole + inputs, whole + counts[3 : 4 * stages : 4]])
        chain = Chain(passes, counts[4 * stages :], rank)
        if abs(chain.seconds(times) - end_s) <= 1e-6 * end_s:
            chains.append(chain)
    return played.of_ranks, chains


def _chain_counts(played: _Played, rank: int, micro_batches: int, kinds: int) -> FloatArray | None:
    """[5V-1] how often each duration is in the chain that the rank ends with; None where rounds cannot be added."""
    layout, ends = played.layout, played.ends
    nodes, node = [], int(layout.last[rank])
    while node >= 0:
        nodes.append(node)
        before, awaited = layout.before[node] - 1, layout.inputs[node] - 1
        node = before if awaited < 0 or (before >= 0 and ends[before] >= ends[awaited]) else awaited
    nodes.reverse()
    durations = np.array(layout.durations)[nodes]
    counts = np.bincount(durations, minlength=kinds).astype(np.float64)
    if played.micro_batches == micro_batches:
        return counts
    begin, stop, rounds = _repeating_part(durations, np.array(layout.micro_batches)[nodes], played.a_round)
    added = (micro_batches - played.micro_batches) // played.a_round
    if not rounds or added % rounds:
        return None
    return counts + added // rounds * np.bincount(durations[begin:stop], minlength=kinds)


def _repeating_part(
    durations: NDArray[np.int64], micro_batches: NDArray[np.int64], a_round: int
) -> tuple[int, int, int]:
    """Where a pass stands in a chain, where the same pass comes again, and how many rounds later; 0 for never.

    Of all pairs the one of fewest rounds whose first pass is nearest to the middle.
    """
    best, middle = (0, 0, 0), durations.size / 2
    places: dict[int, list[int]] = {}
    for place, duration in enumerate(durations.tolist()):
        places.setdefault(duration, []).append(place)
    for same in places.values():
        for i, begin in enumerate(same):
            for stop in same[i + 1 :]:
                rounds, odd = divmod(int(micro_batches[stop] - micro_batches[begin]), a_round)
                if odd or rounds < 1:
                    continue
                if not best[2] or (rounds, abs(begin - middle)) < (best[2], abs(best[0] - middle)):
                    best = (begin, stop, rounds)
                break
    return best
