"""How long a schedule takes, and nothing else about it: for prices of strategies by the thousand.

The rules are those of simulate.engine but for links: each direction of a link carries its own messages, one at a time,
in the order in which the sender computes them, as InfiniBand and NVLink do. So no step is longer than with the engine,
whose links carry one message in either direction, and without messages they are equal.

The passes are laid out once for all times, every pass after those that it waits for; one loop over them is the whole
simulation. The middle of a schedule repeats itself. So a few rounds of micro-batches are played:

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
from automap_models.core.schedules import Schedule, build_schedule, repeating_micro_batches

TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""
KINDS = "FBIW"


class _Layout(NamedTuple):
    """The passes of a schedule, n of them, each after those that it waits for.

    Attributes:
        ranks: [n] of each.
        durations: [n] 4 · stage + kind, see KINDS.
        inputs: [n] 1 + the pass that it waits for; 0 for none.
        links: [n] over which its result goes, sender and receiver; -1 for none.
        boundaries: [n] between which stages.
        number_of_links: different ones.
        early, late: passes and those a round later, of the last round of every rank's steady phase; None where it is
            too short to say.
    """

    ranks: list[int]
    durations: list[int]
    inputs: list[int]
    links: list[int]
    boundaries: list[int]
    number_of_links: int
    early: NDArray[np.int64] | None
    late: NDArray[np.int64] | None


@lru_cache(maxsize=256)
def _layout(name: str, ranks: int, micro_batches: int, virtual: int, a_round: int) -> _Layout:
    schedule = build_schedule(name, ranks, micro_batches, virtual)
    passes = sorted(
        (turn, rank, position) for rank, turns in enumerate(schedule.turns) for position, turn in enumerate(turns)
    )
    last, rank_of = schedule.stages - 1, schedule.rank_of
    result: dict[tuple[bool, int, int], int] = {}  # (backward, stage, micro-batch) → 1 + the pass whose result it needs
    link_numbers: dict[tuple[int, int], int] = {}
    layout = _Layout([], [], [], [], [], 0, None, None)
    numbers = [[0] * len(order) for order in schedule.orders]
    for number, (_, rank, position) in enumerate(passes):
        kind, stage, micro_batch = schedule.orders[rank][position]
        numbers[rank][position] = number
        back = kind in "BI"
        layout.ranks.append(rank)
        layout.durations.append(4 * stage + KINDS.index(kind))
        layout.inputs.append(0 if kind == "W" else result.get((back, stage, micro_batch), 0))
        receiver = stage - 1 if back else stage + 1
        link, boundary = -1, 0
        if kind == "F" and stage == last:
            result[True, stage, micro_batch] = number + 1
        elif kind != "W" and receiver >= 0:
            result[back, receiver, micro_batch] = number + 1
            if rank_of[receiver] != rank:
                link = link_numbers.setdefault((rank, rank_of[receiver]), len(link_numbers))
                boundary = min(stage, receiver)
        layout.links.append(link)
        layout.boundaries.append(boundary)
    early, late = _repeated(schedule, numbers, a_round)
    return layout._replace(number_of_links=len(link_numbers), early=early, late=late)


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


def _play(
    layout: _Layout, ranks: int, durations: list[float], transfers: list[float]
) -> tuple[list[float], list[float]]:
    """[S] when ranks end, and [n] when passes do."""
    free, link_free = [0.0] * ranks, [0.0] * layout.number_of_links
    arrivals: list[float] = [0.0]
    ends: list[float] = []
    arrive, end_with = arrivals.append, ends.append
    columns = (layout.ranks, layout.durations, layout.inputs, layout.links, layout.boundaries)
    for rank, duration, awaited, link, boundary in zip(*columns, strict=True):
        end, ready = free[rank], arrivals[awaited]
        if ready > end:  # noqa: PLR1730, three times as fast as max()
            end = ready
        end += durations[duration]
        free[rank] = end
        end_with(end)
        if link >= 0:
            sent = link_free[link]
            link_free[link] = sent = (end if end > sent else sent) + transfers[boundary]
            arrive(sent)
        else:
            arrive(end)
    return free, ends


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
    ranks = forward_s.size // virtual
    durations = np.stack([forward_s, input_s + weight_s, input_s, weight_s], axis=1).ravel().tolist()
    transfers = [*transfer_s.tolist(), 0.0]
    played, a_round = repeating_micro_batches(name, ranks, micro_batches, virtual)
    while True:
        layout = _layout(name, ranks, played, virtual, a_round)
        free, ends = _play(layout, ranks, durations, transfers)
        if played == micro_batches:
            return np.array(free)
        if layout.early is None or layout.late is None:
            played = micro_batches
            continue
        times = np.array(ends)
        later_s = times[layout.late] - times[layout.early]
        if np.ptp(later_s) <= TOLERANCE * times[-1]:
            return np.array(free) + float(later_s.mean()) * ((micro_batches - played) // a_round)
        played = min(micro_batches, 2 * played + (micro_batches - 2 * played) % a_round)
