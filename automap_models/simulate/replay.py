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
from automap_models.core.schedules import Action, Schedule, build_schedule, repeating_micro_batches

TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""
KINDS = "FBIW"


class _Layout(NamedTuple):
    """The passes and messages of a schedule, n of them, each after those that it waits for.

    Attributes:
        before: [n] 1 + what the rank or the direction of a link has done before; 0 for nothing.
        inputs: [n] 1 + what it waits for besides; 0 for nothing.
        durations: [n] 4 · stage + kind of a pass, see KINDS; 4 · V + boundary of a message.
        last: [S] the last pass of each rank.
        early, late: passes and those a round later, of the last round of every rank's steady phase; None where it is
            too short to say.
    """

    before: list[int]
    inputs: list[int]
    durations: list[int]
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
        self.done: dict[int | tuple[int, int], int] = {}
        self.results: dict[
            tuple[bool, int, int], int
        ] = {}  # (backward, stage, micro-batch) → 1 + what brings its input

    def add(self, resource: int | tuple[int, int], awaited: int, duration: int) -> int:
        """1 + its number."""
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
        number = self.add(rank, awaited, 4 * stage + KINDS.index(kind))
        receiver = stage - 1 if back else stage + 1
        if kind == "F" and stage == last:
            self.results[True, stage, micro_batch] = number
        elif kind != "W" and receiver >= 0:
            to = self.schedule.rank_of[receiver]
            sent = number
            if self.messages and to != rank:
                sent = self.add((rank, to), number, 4 * (last + 1) + min(stage, receiver))
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
    return _Layout(builder.before, builder.inputs, builder.durations, last, early, late)


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


def rank_ends(
    name: str,
    micro_batches: int,
    virtual: int,
    forward_s: FloatArray,
    input_s: FloatArray,
    weight_s: FloatArray,
    transfer_s: FloatArray,
) -> FloatArray:
    """[S] when each rank has run its last pass, seconds.

    Args:
        name: a key of core.schedules.SCHEDULES.
        micro_batches, virtual: M, vp.
        forward_s, input_s, weight_s: [S·vp] seconds of one micro-batch's passes; a whole backward pass is both.
        transfer_s: [S·vp-1] seconds of a message between neighbouring virtual stages, one direction.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    ranks, messages = forward_s.size // virtual, bool(transfer_s.any())
    passes = np.stack([forward_s, input_s + weight_s, input_s, weight_s], axis=1)
    durations = [*passes.ravel().tolist(), *transfer_s.tolist()]
    played, a_round = repeating_micro_batches(name, ranks, micro_batches, virtual)
    while True:
        layout = _layout(name, ranks, played, virtual, a_round, messages)
        ends = _play(layout, durations)
        of_ranks: FloatArray = ends[layout.last]
        if played == micro_batches:
            return of_ranks
        if layout.early is None or layout.late is None:
            played = micro_batches
            continue
        later_s = ends[layout.late] - ends[layout.early]
        if np.ptp(later_s) <= TOLERANCE * of_ranks.max():
            return of_ranks + float(later_s.mean()) * ((micro_batches - played) // a_round)
        played = min(micro_batches, 2 * played + (micro_batches - 2 * played) % a_round)
