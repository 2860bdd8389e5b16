"""Cost-to-go tables one number after another, of any fineness, and the plans that they lead to; compiled by numba.

    for every point k and unit u that the rest may begin at          ┐
      for every size r of its first stage, for every end e behind k  │ M·u grows with e: where it alone is longer than
        T + max(R, enough) of that stage and of what follows it      ┘ the best so far, no later end can be better

The recursion is that of envs.pipeline.cost_to_go, whose tensor operators are part of a policy's file. Loops that stop
early take a hundredth of their time. Two things are free here that are fixed there: `guess` is by how much the R of
what comes before is guessed to be larger, 0 for none; and no entry is made where the devices before it, or those after
it, could not compute all there is within a length that is known already (`limit`). With a guess of 1 and no limit every
number is computed as there, in float32 and in the same order, so that equal tables are equal to the last bit.

`plans_by_tables` follows the tables from the best first stages on to whole plans: a greedy policy without a network.
Without numba the same functions run as Python, a hundred times slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Number = Any
"""A floating-point number of either size: what is computed has the size of what is given."""
NOTHING, ONE, TWO, IMPOSSIBLE_SPAN = np.float32(0), np.float32(1), np.float32(2), np.float32(1e6)
HARDLY_ANY = np.float32(1e-9)
ANY_LENGTH = 1e30
"""A limit that nothing reaches."""
END_POINTS = 3
"""As envs.pipeline.cost_to_go."""


@jit
def parts_of(devices: Number, samples: Number) -> Number:
    """cost.staged_torch.equal_parts."""
    return samples / np.ceil(samples / devices) if samples > 0 else devices


@jit
def all_reduce(first: Number, stop: Number, per_node: Number, ratio: Number) -> Number:
    """cost.staged_torch.all_reduce_factor."""
    node_first, node_last = np.floor(first / per_node), np.floor((stop - ONE) / per_node)
    across = node_last - node_first + ONE
    inside = per_node
    if across == ONE:
        inside = stop - first
    elif across == TWO:
        inside = max((node_first + ONE) * per_node - first, stop - node_last * per_node)
    inside = max(inside, ONE)
    return TWO * (inside - ONE) / inside * ratio + TWO * (across - ONE) / max(across, ONE)


@jit
def transfer(
    first: Number,
    boundary: Number,
    stop: Number,
    per_node: Number,
    ratio: Number,
    samples: Number,
) -> Number:
    """cost.staged_torch.transfer_factor."""
    sender, receiver = max(boundary - first, ONE), max(stop - boundary, ONE)
    start = np.floor(boundary / per_node) * per_node
    inside = boundary != start
    sender_last = min(sender, boundary - (start if inside else start - per_node))
    receiver_first = min(receiver, start + per_node - boundary)
    stays = max(sender_last / sender + receiver_first / receiver - ONE, NOTHING) if inside else NOTHING
    out = max(sender_last / sender - stays, min(sender - sender_last, per_node) / sender)
    into = max(receiver_first / receiver - stays, min(receiver - receiver_first, per_node) / receiver)
    crosses = max(out, into)
    if samples > 0:
        padding = max(sender / parts_of(sender, samples), receiver / parts_of(receiver, samples))
        crosses, stays = min(padding * crosses, ONE), min(padding * stays, ONE)
    return max(crosses, stays * ratio)


@jit
def problem_tables(
    at: Floats,
    total: Floats,
    legal: Flags,
    given: Floats,
    sizes: Integers,
    needed: int,
    tables: Floats,
    guess: np.float32,
    limit: np.float32,
) -> Floats:
    """Fill in the tables [5, L, K, U] of one problem for 2 … needed + 1 stages left, in the order of CostToGo.

    Args:
        at: [5, K] channels at the tables' points; total: [5] at the end of the model.
        legal: [K] which of the points are cuts.
        given: [7] devices, per_node, ratio, state, stages, micro and samples as in Scaled; samples 0 where there are
            none.
        sizes: units that a stage may have, ascending.
        tables: zeros.
        guess: times what comes before is guessed to reduce.
        limit: length of plans to look for at most, in ideal lengths.

    Returns:
        [3, K, U] T, R and the last device of the first stage, of the rest in needed + 1 stages.
    """
    rest = last_one(at, total, given, tables.shape[3])
    for left in range(2, 2 + needed):
        rest = one_more(at, total, legal, given, sizes, np.float32(left), rest, tables[:, left - 2], guess, limit)
    return rest


@jit
def last_one(at: Floats, total: Floats, given: Floats, units: int) -> Floats:
    """[3, K, U] T, R and the last device of one stage, on all devices from each unit on (last_stage)."""
    devices, per_node, ratio, state, _, micro, _ = given
    unit = np.ceil(devices / np.float32(units))
    rest = np.empty((3, at.shape[1], units), dtype=np.float32)
    rest[0], rest[2] = IMPOSSIBLE_SPAN, devices
    for u in range(units):
        first = np.float32(u) * unit
        replicas = max(devices - first, ONE)
        factor = all_reduce(first, max(devices, first + ONE), per_node, ratio)
        for k in range(at.shape[1]):
            rest[1, k, u] = (total[2] - at[2, k]) * factor
            memory = state * (total[2] - at[2, k]) + (total[4] - at[4, k]) / replicas
            if memory <= ONE and first < devices:
                rest[0, k, u] = micro * (total[0] - at[0, k]) / replicas
    return rest


@jit
def one_more(
    at: Floats,
    total: Floats,
    legal: Flags,
    given: Floats,
    sizes: Integers,
    left: np.float32,
    rest: Floats,
    table: Floats,
    guess: np.float32,
    limit: np.float32,
) -> Floats:
    """From the rest in left - 1 stages, [3, K, U], to that in `left`, whose plans fill a level, [5, K, U]."""
    devices, _, _, state, _, micro, samples = given
    count, units = rest.shape[1], rest.shape[2]
    unit, in_flight = np.ceil(devices / np.float32(units)), min(micro, left)
    new = np.zeros_like(rest)
    new[0], new[2] = IMPOSSIBLE_SPAN, devices
    ahead, of_size = np.empty((3, len(sizes), count), dtype=np.float32), np.empty((3, len(sizes)), dtype=np.float32)
    ends = np.empty((2, len(sizes)), dtype=np.int64)
    for u in range(units):
        first = np.float32(u) * unit
        if first >= devices:
            break
        fitting = behind_a_cut(at, total, given, sizes, left, rest, u, limit, ahead, ends)
        enough = sizes_from(given, sizes[:fitting], left, first, unit, of_size)
        low, high = within(at, total, given, first, limit)
        likely = 0
        for k in range(low, high):
            e, r = best_stage(
                at, legal, given, left, k, ahead[:, :fitting], ends, of_size, enough, guess, first, limit, likely
            )
            if e < 0:
                continue
            likely = r  # the next point's best stage is likely to have it, too: the others are done with sooner
            if ahead[0, r, e] >= IMPOSSIBLE_SPAN:
                continue
            stop = first + np.float32(sizes[r]) * unit
            table[0, k, u], table[1, k, u], table[2, k, u] = np.float32(e), stop, ahead[2, r, e]
            table[3, k, u], table[4, k, u] = ahead[0, r, e], ahead[1, r, e]
            # one_more_stage
            per_device = ONE / parts_of(stop - first, samples)
            compute, weights, stash = at[0, e] - at[0, k], at[2, e] - at[2, k], at[4, e] - at[4, k]
            time, backward = compute * per_device, (compute - (at[3, e] - at[3, k])) * per_device
            new[1, k, u], new[2, k, u] = max(weights * of_size[1, r], ahead[1, r, e] - backward), stop
            if state * weights + in_flight * stash * per_device <= ONE:
                new[0, k, u] = max(micro * time, time + ahead[0, r, e])
    return new


@jit
def within(at: Floats, total: Floats, given: Floats, device: np.float32, limit: np.float32) -> tuple[int, int]:
    """The points low … high - 1 before and after which this device parts those that can compute all within a limit."""
    devices, micro, low, high = given[0], given[5], 0, at.shape[1]
    if limit >= ANY_LENGTH:
        return low, high
    while high > 0 and micro * at[0, high - 1] > limit * device:
        high -= 1
    while low < high and micro * (total[0] - at[0, low]) > limit * (devices - device):
        low += 1
    return low, high


@jit
def behind_a_cut(
    at: Floats,
    total: Floats,
    given: Floats,
    sizes: Integers,
    left: np.float32,
    rest: Floats,
    u: int,
    limit: np.float32,
    ahead: Floats,
    ends: Integers,
) -> int:
    """What follows a stage of each size and end that begins with a unit, wherever it begins, into [3, R, K].

    T from the transfer on, R less the transfer, and where the devices of the stage behind end (_behind_a_cut). Into
    `ends`, [2, R], at which points a stage of each size may end within the limit.

    Returns:
        How many of the sizes there is room for.
    """
    devices, per_node, ratio, _, _, micro, samples = given
    units = rest.shape[2]
    unit = np.ceil(devices / np.float32(units))
    for r in range(len(sizes)):
        behind = u + sizes[r]
        boundary = np.float32(behind) * unit
        if boundary > devices - (left - ONE) or behind >= units:
            return r
        ends[0, r], ends[1, r] = within(at, total, given, boundary, limit)
        was, factor = np.float32(-1), NOTHING
        for e in range(ends[0, r], ends[1, r]):
            after = max(rest[2, e, behind], boundary + ONE)
            if after != was:
                factor, was = transfer(np.float32(u) * unit, boundary, after, per_node, ratio, samples), after
            sent = at[1, e] * factor
            ahead[0, r, e] = max(TWO * micro * sent, TWO * sent + rest[0, e, behind])
            ahead[1, r, e] = rest[1, e, behind] - sent
            ahead[2, r, e] = after
    return len(sizes)


@jit
def sizes_from(
    given: Floats, sizes: Integers, left: np.float32, first: np.float32, unit: np.float32, of_size: Floats
) -> Floats:
    """What only depends on the first device of a stage and its size, into [3, R], and what not even on that, [2].

    Of each size the transfer into such a stage, its all-reduce and 1 / parts of a micro-batch; and before it
    1 / devices and an all-reduce: the stages there share their work, parameters and devices evenly (_reduce_before,
    _transfer_into).
    """
    _, per_node, ratio, _, stages, _, samples = given
    begin, before = max(first, ONE), max(stages - left, ONE)
    sender = max(first - np.ceil(first / before), NOTHING)
    for r in range(len(sizes)):
        size = np.float32(sizes[r]) * unit
        of_size[0, r] = transfer(sender, begin, begin + size, per_node, ratio, samples)
        of_size[1, r] = all_reduce(first, first + size, per_node, ratio)
        of_size[2, r] = ONE / parts_of(size, samples)
    even = np.empty(2, dtype=np.float32)
    even[0], even[1] = before, all_reduce(NOTHING, np.ceil(begin / before), per_node, ratio)
    return even


@jit
def best_stage(
    at: Floats,
    legal: Flags,
    given: Floats,
    left: np.float32,
    k: int,
    ahead: Floats,
    ends: Integers,
    of_size: Floats,
    even: Floats,
    guess: np.float32,
    first: np.float32,
    limit: np.float32,
    likely: int,
) -> tuple[int, int]:
    """End point and number of the size of the best stage from a point and a device on; -1 where none fits.

    The sum T + max(R, enough) decides, T with the transfer into the stage. Of equals the first end, then the smallest
    size.
    """
    state, micro = given[3], given[5]
    before, in_flight = even[0], min(micro, left)
    enough = guess * (before * (at[0, k] - at[3, k]) / max(first, ONE) + at[2, k] / before * even[1])
    best, best_end, best_size = np.float32(np.inf), -1, -1
    for turn in range(ahead.shape[1]):
        r = likely if turn == 0 else turn - 1 if turn <= likely else turn
        into, factor, per_device = TWO * (at[1, k] * of_size[0, r]), of_size[1, r], of_size[2, r]
        for e in range(max(k + 1, ends[0, r]), ends[1, r]):
            compute = at[0, e] - at[0, k]
            time = compute * per_device
            if micro * time + enough > best or micro * time > limit:
                break
            whole = max(micro * into, into + max(micro * time, time + ahead[0, r, e]))
            if whole + enough > best:
                continue
            weights, backward = at[2, e] - at[2, k], (compute - (at[3, e] - at[3, k])) * per_device
            score = whole + max(weights * factor, ahead[1, r, e] - backward, enough)
            if score < best or (score == best and (e < best_end or (e == best_end and r < best_size))):
                hold = (ONE - state * weights) / max((at[4, e] - at[4, k]) * per_device, HARDLY_ANY)
                if legal[e] and hold >= in_flight:
                    best, best_end, best_size = score, e, r
    return best_end, best_size


@jit
def chosen_points(arrays: Floats, most: int) -> Integers:
    """[K] the cuts that tables are made for, ascending, at most so many: those of cost_to_go.choose_points.

    Args:
        arrays: [5, n + 1] channels at n cuts, and at the end of the model.
        most: 2·END_POINTS + 1 or more.
    """
    count = arrays.shape[1] - 1
    if count <= most:
        return np.arange(count)
    segments = most - 2 * END_POINTS
    least, priority = np.full(segments, -1), np.zeros(count)
    before = 0.0
    for p in range(count):
        computation, parameters = arrays[0, p] / max(arrays[0, -1], 1e-12), arrays[2, p] / max(arrays[2, -1], 1e-12)
        nxt = arrays[0, p + 1] / max(arrays[0, -1], 1e-12) + arrays[2, p + 1] / max(arrays[2, -1], 1e-12)
        priority[p] = (computation + parameters - before + max(nxt - computation - parameters, 0.0)) / 8 - 1e-6 * p
        before = computation + parameters
        if p < END_POINTS or p >= count - END_POINTS:
            priority[p] += 2.0
            continue
        weight = 0.4 * computation + 0.3 * parameters + 0.3 * (p + 1) / count
        segment = min(max(int(np.ceil(weight * segments)) - 1, 0), segments - 1)
        if least[segment] < 0 or arrays[1, p] < arrays[1, least[segment]]:
            least[segment] = p
    for p in least:
        if p >= 0:
            priority[p] += 1.0
    chosen = np.zeros(count, dtype=np.bool_)
    for _ in range(most):
        p = int(priority.argmax())
        chosen[p], priority[p] = True, -np.inf
    return np.flatnonzero(chosen)


@jit
def first_stages(
    at: Floats, total: Floats, given: Floats, sizes: Integers, rest: Floats, limit: np.float32
) -> tuple[Floats, Integers]:
    """[K] L of the best plan whose first stage ends at each point, in ideal lengths, and [K] the number of its size."""
    _, per_node, ratio, state, stages, micro, samples = given
    unit = np.ceil(given[0] / np.float32(rest.shape[2]))
    ahead, ends = np.empty((3, len(sizes), at.shape[1]), dtype=np.float32), np.empty((2, len(sizes)), dtype=np.int64)
    fitting = behind_a_cut(at, total, given, sizes, stages, rest, 0, limit, ahead, ends)
    length, size = np.full(at.shape[1], np.float32(np.inf)), np.zeros(at.shape[1], dtype=np.int64)
    for r in range(fitting):
        stop = np.float32(sizes[r]) * unit
        factor, per_device = all_reduce(NOTHING, stop, per_node, ratio), ONE / parts_of(stop, samples)
        for e in range(ends[0, r], ends[1, r]):
            if state * at[2, e] + min(micro, stages) * at[4, e] * per_device > ONE or ahead[0, r, e] >= IMPOSSIBLE_SPAN:
                continue
            time, backward = at[0, e] * per_device, (at[0, e] - at[3, e]) * per_device
            whole = max(micro * time, time + ahead[0, r, e]) + max(at[2, e] * factor, ahead[1, r, e] - backward)
            if whole < length[e]:
                length[e], size[e] = whole, r
    return length, size


@jit
def plans_by_tables(
    arrays: Floats,
    given: Floats,
    points: int,
    units: int,
    sizes: Integers,
    guess: np.float32,
    limit: np.float32,
    beam: int,
) -> tuple[Floats, Integers]:
    """The plans that tables lead to from the ends of a first stage that look best.

    Args:
        arrays: [5, n + 1] channels at n cuts, and at the end of the model, with times in ideal lengths.
        given, sizes, guess, limit: see problem_tables; two stages or more.
        points, units: how fine the tables are, at most.
        beam: how many plans.

    Returns:
        [b] L of each in ideal lengths, ascending, and [b, 2, S - 1] the number of the cut, from 1 on, and the device
        that each stage but the first begins at; b is the beam, or less where fewer lead anywhere.
    """
    point = chosen_points(arrays, points)
    at, total = arrays[:, point], arrays[:, -1]
    stages, unit = int(given[4]), np.ceil(given[0] / np.float32(units))
    levels = stages - 2
    tables = np.zeros((5, max(levels, 1), len(point), units), dtype=np.float32)
    legal = np.ones(len(point), dtype=np.bool_)
    rest = problem_tables(at, total, legal, given, sizes, levels, tables, guess, limit)
    length, size = first_stages(at, total, given, sizes, rest, limit)
    lengths, places = np.empty(beam, dtype=np.float32), np.empty((beam, 2, stages - 1), dtype=np.int64)
    for b in range(min(beam, len(point))):
        k = int(length.argmin())
        if not np.isfinite(length[k]):
            return lengths[:b], places[:b]
        lengths[b], length[k] = length[k], np.float32(np.inf)
        u = int(sizes[size[k]])
        for s in range(stages - 1):
            places[b, 0, s], places[b, 1, s] = point[k] + 1, int(np.float32(u) * unit)
            if s < levels:
                level = levels - 1 - s
                k, u = int(tables[0, level, k, u]), int(tables[1, level, k, u] / unit)
    return lengths[: min(beam, len(point))], places[: min(beam, len(point))]
