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

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.pass_orders import FORWARD, INPUT, WEIGHT, WHOLE
from automap_models.core.schedules import (
    SCHEDULES,
    passes_of_ranks,
    rank_of,
    repeating_micro_batches,
    require_runnable,
)

if TYPE_CHECKING:
    from automap_models.core.pass_orders import Passes

TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""


class _Layout(NamedTuple):
    """The passes and messages of a schedule, n of them, each after those that it waits for.

    Attributes:
        before: [n] 1 + what the rank or the direction of a link has done before; 0 for nothing.
        inputs: [n] 1 + what it waits for besides; 0 for nothing.
        durations: [n] 4 · stage + kind of a pass, see core.pass_orders.KINDS; 4 · V + boundary of a message.
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


_Numbered = Iterator[tuple[int, int, int, int, int, int]]
"""The passes of a rank in their order, of each:

    its duration and its micro-batch      see _Layout
    the input that it waits for           0 is nothing; then one for each virtual stage and micro-batch of the forward
                                          passes, and one of the backward passes
    the input that it brings              the last number is what nobody waits for
    the message that brings it            its duration; -1 for none
    the direction of a link               that the message takes
"""


def _numbered(passes: Passes, micro_batches: int, ranks: NDArray[np.int64], messages: bool) -> _Numbered:
    """Of one rank; `ranks`, [V], are those of the virtual stages."""
    kind, stage, micro_batch = passes.T
    last, nobody = ranks.size - 1, 1 + 2 * ranks.size * micro_batches
    back, weight = (kind == WHOLE) | (kind == INPUT), kind == WEIGHT
    own = 1 + stage * micro_batches + micro_batch
    backward = ranks.size * micro_batches
    awaited = np.where(back, own + backward, np.where(weight | (stage == 0), 0, own))
    receiver = np.where(back, stage - 1, stage + 1)
    turns, ends = (kind == FORWARD) & (stage == last), weight | (receiver < 0)
    brought = np.where(back, backward, 0) + 1 + receiver * micro_batches + micro_batch
    brought = np.where(turns, own + backward, np.where(ends, nobody, brought))
    to = ranks[np.clip(receiver, 0, last)]
    sends = messages & ~turns & ~ends & (to != ranks[stage])
    message = np.where(sends, 4 * ranks.size + np.minimum(stage, receiver), -1)
    columns = (4 * stage + kind, micro_batch, awaited, brought, message, ranks[stage] * ranks.size + to)
    return zip(*(column.tolist() for column in columns), strict=True)


@lru_cache(maxsize=256)
def _layout(name: str, ranks: int, micro_batches: int, virtual: int, a_round: int, messages: bool) -> _Layout:
    """Each rank runs as far as it can, then another one that what it has brought lets go on."""
    require_runnable(name, ranks, micro_batches, virtual)
    passes = passes_of_ranks(name, ranks, micro_batches, virtual)
    of_stages = np.array([rank_of(stage, ranks, SCHEDULES[name].placement) for stage in range(ranks * virtual)])
    numbered = [_numbered(of_rank, micro_batches, of_stages, messages) for of_rank in passes]
    building = _Building(1 + 2 * of_stages.size * micro_batches, ranks)
    able = list(range(ranks - 1, -1, -1))
    while able:
        rank = able.pop()
        able += building.run(rank, numbered[rank])
    early, late = _repeated(passes, micro_batches, building.numbers, a_round)
    last = np.array([of_rank[-1] for of_rank in building.numbers])
    columns = building.before, building.inputs, building.durations, building.micro_batches
    return _Layout(*columns, last, early, late)


class _Building:
    """A layout in the making.

    Args:
        inputs: how many numbers there are of inputs that are waited for; see _Numbered.
        ranks: S.

    Attributes:
        numbers: of the passes of each rank so far.
        brings: input → 1 + the pass or message that brings it; -1 before that is there.
        waits: input → the rank that waits for it.
        waiting: rank → the pass that waits.
        sent: direction of a link → 1 + its last message.
    """

    def __init__(self, inputs: int, ranks: int) -> None:
        self.before: list[int] = []
        self.inputs: list[int] = []
        self.durations: list[int] = []
        self.micro_batches: list[int] = []
        self.numbers: list[list[int]] = [[] for _ in range(ranks)]
        self.brings = [0] + [-1] * inputs
        self.waits: dict[int, int] = {}
        self.waiting: dict[int, tuple[int, int, int, int, int, int]] = {}
        self.sent: dict[int, int] = {}

    def run(self, rank: int, passes: _Numbered) -> list[int]:
        """Lay out the passes of a rank until one waits: the ranks that can go on then."""
        before, inputs, durations, micro_batches = self.before, self.inputs, self.durations, self.micro_batches
        numbers, brings, waits, sent = self.numbers[rank], self.brings, self.waits, self.sent
        done, count, able = numbers[-1] + 1 if numbers else 0, len(before), []
        row = self.waiting.pop(rank, None) or next(passes, None)
        while row is not None:
            duration, micro_batch, awaited, brought, message, link = row
            bringing = brings[awaited]
            if bringing < 0:
                self.waiting[rank], waits[awaited] = row, rank
                break
            numbers.append(count)
            before.append(done)
            inputs.append(bringing)
            durations.append(duration)
            micro_batches.append(micro_batch)
            count += 1
            done = count
            if message >= 0:
                before.append(sent.get(link, 0))
                inputs.append(done)
                durations.append(message)
                micro_batches.append(micro_batch)
                count += 1
                sent[link] = count
            brings[brought] = count
            if brought in waits:
                able.append(waits.pop(brought))
            row = next(passes, None)
        return able


def _repeated(
    passes: Sequence[Passes], micro_batches: int, numbers: Sequence[Sequence[int]], a_round: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """See _Layout.early; the steady phase of a rank ends with its last forward pass."""
    early: list[NDArray[np.int64]] = []
    late: list[NDArray[np.int64]] = []
    for order, of_rank in zip(passes, numbers, strict=True):
        period, odd = divmod(len(order) * a_round, micro_batches)
        stop = int(np.flatnonzero(order[:, 0] == FORWARD)[-1]) + 1
        begin = max(0, stop - 2 * period)
        places = np.arange(begin, max(begin, stop - period))
        same = (order[places + period] == order[places] + (0, 0, a_round)).all(axis=1)
        other = np.flatnonzero(~same)
        shown = places[other[-1] + 1 :] if other.size else places
        if odd or 2 * shown.size < period:
            return None, None
        own = np.array(of_rank)
        early.append(own[shown])
        late.append(own[shown + period])
    return np.concatenate(early), np.concatenate(late)


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


def rank_ends(
    name: str, micro_batches: int, virtual: int, times: PassTimes, messages: bool | None = None
) -> FloatArray:
    """[S] when each rank has run its last pass, seconds.

    Args:
        name: a key of core.schedules.SCHEDULES.
        micro_batches, virtual: M, vp.
        times: of one micro-batch.
        messages: whether passes and messages are laid out; None is where messages take any time. Those that take none
            change nothing, and one layout serves both.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    return _played(name, micro_batches, virtual, times, messages).of_ranks


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


def _played(name: str, micro_batches: int, virtual: int, times: PassTimes, messages: bool | None = None) -> _Played:
    """As few micro-batches as show when the ranks end; arguments as of `rank_ends`."""
    forward_s, input_s, weight_s, transfer_s = times
    ranks = forward_s.size // virtual
    messages = bool(transfer_s.any()) if messages is None else messages
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
