"""The loops of simulate.rounds where nothing compiles them: over lists, which Python goes through ten times as fast as
through arrays.

`lay_out` and `play` take and give what their namesakes of simulate.rounds_kernel do, in the same order: each rank runs
as far as it can, then one that goes on from there.

    rank 0   F F F F . . .        waits for I of rank 1
    rank 1   F F F . . .          waits for the fourth F of rank 0, which is there: it goes on
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.pass_orders import FORWARD, WEIGHT

Row = tuple[int, int, int, int, int, int]
"""A pass:

    its duration and its micro-batch      see simulate.rounds_kernel
    the input that it waits for           0 is nothing; then one for each virtual stage and micro-batch of the forward
                                          passes, and one of the backward passes
    the input that it brings              the last number is what nobody waits for
    the message that brings it            its duration; -1 for none
    the direction of a link               that the message takes
"""


def lay_out(
    passes: IntArray, offsets: IntArray, rank_of: IntArray, micro_batches: int, messages: bool
) -> tuple[IntArray, IntArray]:
    """[4, n] the layout, and [passes] the number of each pass in it; see simulate.rounds_kernel.lay_out."""
    columns = _columns(passes, rank_of, micro_batches, messages)
    layout = _Layout(1 + 2 * rank_of.size * micro_batches, offsets.size - 1)
    rows: list[Iterator[Row]] = []
    for begin, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        rows.append(zip(*(column[begin:stop].tolist() for column in columns), strict=True))
    able = list(range(len(rows) - 1, -1, -1))
    while able:
        rank = able.pop()
        able += layout.run(rank, rows[rank])
    nodes = np.array([layout.before, layout.inputs, layout.durations, layout.micro_batches])
    numbers = np.full(passes.shape[1], -1, np.int64)
    for begin, of_rank in zip(offsets.tolist(), layout.numbers, strict=False):
        numbers[begin : begin + len(of_rank)] = of_rank
    return nodes, numbers


def _columns(passes: IntArray, rank_of: IntArray, micro_batches: int, messages: bool) -> tuple[IntArray, ...]:
    """[passes] each of the entries of Row."""
    kind, stage, micro_batch = passes
    last, nobody, backward = rank_of.size - 1, 1 + 2 * rank_of.size * micro_batches, rank_of.size * micro_batches
    back, weight = (kind != FORWARD) & (kind != WEIGHT), kind == WEIGHT
    own = 1 + stage * micro_batches + micro_batch
    awaited = np.where(back, own + backward, np.where(weight | (stage == 0), 0, own))
    receiver = np.where(back, stage - 1, stage + 1)
    turns, ends = (kind == FORWARD) & (stage == last), weight | (receiver < 0)
    brought = np.where(back, backward, 0) + 1 + receiver * micro_batches + micro_batch
    brought = np.where(turns, own + backward, np.where(ends, nobody, brought))
    to = rank_of[np.clip(receiver, 0, last)]
    sends = messages & ~turns & ~ends & (to != rank_of[stage])
    message = np.where(sends, 4 * rank_of.size + np.minimum(stage, receiver), -1)
    return 4 * stage + kind, micro_batch, awaited, brought, message, rank_of[stage] * rank_of.size + to


class _Layout:
    """A layout in the making.

    Args:
        inputs: how many numbers there are of inputs that are waited for; see Row.
        ranks: S.

    Attributes:
        before, inputs, durations, micro_batches: its rows.
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
        self.waiting: dict[int, Row] = {}
        self.sent: dict[int, int] = {}

    def run(self, rank: int, passes: Iterator[Row]) -> list[int]:
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


def play(layout: IntArray, durations: FloatArray) -> FloatArray:
    """[n] when passes and messages end, of [4V + V-1] durations."""
    times = durations.tolist()
    ends = [0.0]
    add = ends.append
    for before, awaited, duration in zip(*layout[:3].tolist(), strict=True):
        free, ready = ends[before], ends[awaited]
        add((ready if ready > free else free) + times[duration])
    return np.array(ends[1:])
