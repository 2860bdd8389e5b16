"""The passes of named schedules as arrays, by loops that numba compiles: for prices of strategies by the thousand.

core.pass_orders says the same with one object a pass, a hundred times slower; a test holds the two together.

    kinds, stages, micro_batches   [n]     of each pass, the passes of rank 0 first, each rank's in their order
    offsets                        [S+1]   where the passes of each rank begin
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.pass_orders import FORWARD, INPUT, WEIGHT, WHOLE


@jit
def rounds_order(
    rank: int, ranks: int, micro_batches: int, virtual: int, a_round: int, warm_up: int, delay: int
) -> IntArray:
    """[3, n] kinds, stages and micro-batches of a rank that runs in rounds (pass_orders.interleaved, zb_h1, zb_h2).

    Args:
        rank, ranks, micro_batches, virtual: as of pass_orders.
        a_round: micro-batches through a virtual stage before the rank turns to its next one.
        warm_up: forward passes before the first backward one.
        delay: gradients of inputs before the one that the first gradient of weights follows; -1 where backward passes
            are whole.
    """
    count = micro_batches * virtual
    split = delay >= 0
    order = np.empty((3, count * (3 if split else 2)), np.int64)
    at = forward = backward = 0
    while backward < count:
        if forward < count and forward < warm_up + backward:
            part, rest = forward // (a_round * virtual), forward % (a_round * virtual)
            order[0, at], order[1, at] = FORWARD, rest // a_round * ranks + rank
            order[2, at] = part * a_round + rest % a_round
            forward += 1
            at += 1
            continue
        part, rest = backward // (a_round * virtual), backward % (a_round * virtual)
        order[0, at] = INPUT if split else WHOLE
        order[1, at] = (virtual - 1 - rest // a_round) * ranks + rank
        order[2, at] = part * a_round + rest % a_round
        backward += 1
        at += 1
        if split:
            due = backward - 1 - delay
            for weight in range(max(0, due), count if backward == count else due + 1):
                part, rest = weight // (a_round * virtual), weight % (a_round * virtual)
                order[0, at], order[1, at] = WEIGHT, (virtual - 1 - rest // a_round) * ranks + rank
                order[2, at] = part * a_round + rest % a_round
                at += 1
    return order


@jit
def _run(kind: int, chunk: int, order: IntArray, owed: IntArray, counts: IntArray) -> None:
    """Append the next pass of a kind of a chunk; `counts`: passes, then those of F, I or B, and W by chunk, then what
    was owed and what was paid."""
    counted = 0 if kind == FORWARD else 2 if kind == WEIGHT else 1
    at, next_one = counts[0], 1 + 2 * counted + chunk
    order[0, at], order[1, at], order[2, at] = kind, chunk, counts[next_one]
    if kind == INPUT:
        owed[0, counts[7]], owed[1, counts[7]] = chunk, counts[next_one]
        counts[7] += 1
    counts[next_one] += 1
    counts[0] += 1


@jit
def _pay(order: IntArray, owed: IntArray, counts: IntArray) -> None:
    """Append the oldest gradient of weights that is left, if one is."""
    if counts[8] < counts[7]:
        at = counts[0]
        order[0, at], order[1, at], order[2, at] = WEIGHT, owed[0, counts[8]], owed[1, counts[8]]
        counts[8] += 1
        counts[0] += 1


@jit
def zb_v_order(rank: int, ranks: int, micro_batches: int) -> IntArray:
    """[3, n] as pass_orders.zb_v."""
    full = max(2 * ranks - 1, micro_batches)
    order, owed = np.empty((3, 6 * full), np.int64), np.empty((2, 2 * full), np.int64)
    counts = np.zeros(9, np.int64)
    for _ in range(2 * (ranks - rank) - 1):
        _run(FORWARD, 0, order, owed, counts)
    for _ in range(rank):
        _run(FORWARD, 1, order, owed, counts)
        _run(FORWARD, 0, order, owed, counts)
    for _ in range(ranks - rank):
        _run(FORWARD, 1, order, owed, counts)
        _run(INPUT, 1, order, owed, counts)
        _run(WEIGHT, 1, order, owed, counts)
    while counts[2] < full:
        if counts[1] < full:
            _run(FORWARD, 0, order, owed, counts)
        _run(INPUT, 0, order, owed, counts)
        _run(WEIGHT, 0, order, owed, counts)
        _run(FORWARD, 1, order, owed, counts)
        _run(INPUT, 1, order, owed, counts)
        _run(WEIGHT, 1, order, owed, counts)
    for _ in range(rank):
        _run(INPUT, 0, order, owed, counts)
        _run(INPUT, 1, order, owed, counts)
    for _ in range(ranks - rank):
        _run(INPUT, 0, order, owed, counts)
        _run(WEIGHT, 0, order, owed, counts)
    for chunk in (1, 0):
        while counts[5 + chunk] < full:
            _run(WEIGHT, chunk, order, owed, counts)
    return _on_rank(order[:, : counts[0]], rank, ranks, micro_batches)


@jit
def dualpipev_order(rank: int, ranks: int, micro_batches: int) -> IntArray:
    """[3, n] as pass_orders.dualpipev."""
    order, owed = np.empty((3, 6 * micro_batches), np.int64), np.empty((2, 2 * micro_batches), np.int64)
    counts, after = np.zeros(9, np.int64), ranks - 1 - rank
    for _ in range(2 * after):
        _run(FORWARD, 0, order, owed, counts)
    for _ in range(rank + 1):
        _run(FORWARD, 0, order, owed, counts)
        _run(FORWARD, 1, order, owed, counts)
    for _ in range(after):
        _run(INPUT, 1, order, owed, counts)
        _pay(order, owed, counts)
        _run(FORWARD, 1, order, owed, counts)
    for _ in range(micro_batches - 2 * ranks + rank + 1):
        _run(FORWARD, 0, order, owed, counts)
        _run(WHOLE, 1, order, owed, counts)
        _run(FORWARD, 1, order, owed, counts)
        _run(WHOLE, 0, order, owed, counts)
    for _ in range(after):
        _run(WHOLE, 1, order, owed, counts)
        _run(FORWARD, 1, order, owed, counts)
        _run(WHOLE, 0, order, owed, counts)
    for i in range(2 * (rank + 1)):
        _run(WHOLE if i <= rank else INPUT, (i + 1) % 2, order, owed, counts)
    for _ in range(after):
        _pay(order, owed, counts)
        _run(INPUT, 0, order, owed, counts)
    for _ in range(rank + 1):
        _pay(order, owed, counts)
    return _on_rank(order[:, : counts[0]], rank, ranks, micro_batches)


@jit
def _on_rank(order: IntArray, rank: int, ranks: int, micro_batches: int) -> IntArray:
    """The passes of micro-batches that there are, with stages in place of chunks of a V."""
    kept = np.empty_like(order)
    at = 0
    for i in range(order.shape[1]):
        if order[2, i] < micro_batches:
            kept[0, at], kept[2, at] = order[0, i], order[2, i]
            kept[1, at] = rank if order[1, i] == 0 else 2 * ranks - 1 - rank
            at += 1
    return kept[:, :at].copy()


@jit
def pareto_moments(  # noqa: PLR0912 -- one walk over the order, then one over its moments
    order: IntArray, column_of: IntArray, virtual: int
) -> IntArray:
    """[m, 2 · vp] moments of a rank's order (Schedule.waiting) that no other has more of everything than.

    Those of most in all come first, of these the ones of least in the first columns.

    Args:
        order: [3, n] of the rank.
        column_of: [V] which of its virtual stages each one is.
        virtual: vp.
    """
    count, width = order.shape[1], 2 * virtual
    moments, now = np.empty((count, width), np.int64), np.zeros(width, np.int64)
    peaks, rising = 0, False
    for i in range(count):
        kind, column = order[0, i], column_of[order[1, i]]
        if kind == FORWARD:
            now[column] += 1
            rising = True
            continue
        if rising:  # only the moment before something is freed can be the fullest
            moments[peaks] = now
            peaks += 1
            rising = False
        if kind == WEIGHT:
            now[virtual + column] -= 1
            continue
        now[column] -= 1
        if kind == INPUT:
            now[virtual + column] += 1
            rising = True
    if rising or peaks == 0:
        moments[peaks] = now
        peaks += 1
    sums = np.empty(peaks, np.int64)
    for i in range(peaks):
        sums[i] = moments[i].sum()
    left, chosen, kept = np.ones(peaks, np.bool_), np.empty((peaks, width), np.int64), 0
    while True:
        best = -1
        for i in range(peaks):
            if not left[i]:
                continue
            if best < 0 or sums[i] > sums[best]:
                best = i
            elif sums[i] == sums[best]:
                for j in range(width):
                    if moments[i, j] != moments[best, j]:
                        if moments[i, j] < moments[best, j]:
                            best = i
                        break
        if best < 0:
            return chosen[:kept].copy()
        chosen[kept] = moments[best]
        kept += 1
        for i in range(peaks):
            if left[i]:
                dominated = True
                for j in range(width):
                    if moments[i, j] > moments[best, j]:
                        dominated = False
                        break
                left[i] = not dominated
