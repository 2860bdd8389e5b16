"""Cost-to-go tables one number after another, of any fineness, and the plans that they lead to; compiled by numba.

    for every unit u that the rest may begin at
      every size r and end e of its first stage that lead on  ──▶  one list, its numbers one after another in memory
      for every point k before them
        T + max(R, enough) of that stage and of what follows it, for the whole list  ──▶  the first of the least

Both parts of the length L = T + R (cost-model.md) have a recursion from the back. With T' and R' of what follows a
stage of time u = f + b, and x the transfer after it,

    T = max(M·u, u + max(2M·x, 2x + T'))        R = max(AR, R' - b - x)

Whatever comes before enters L only through Σu, ΣB, T and R so far, so that one table over (stages left, point, first
device) serves every beginning of a plan. An exact table holds all trade-offs between T and R (staged.exact). This one
keeps a single label an entry, the best under a guess of what came before: R is guessed to be `guess` times larger, 0
for none. No entry is made where the devices before it, or those after it, could not compute all there is within a
length that is known already (`limit`), nor where it is longer than that with the least that has to come before. Points
and devices are a few, so that tables are no larger for larger models and clusters: approximation in value space
(Bertsekas 2019, chapter 2). All times are in units of the ideal length ΣC·M / D, in float32.

`plans_by_tables` follows the tables from the best first stages on to whole plans: a greedy planner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.cost.link_kernel import NOTHING, ONE, TWO, all_reduce, parts_of, received, sent

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Small = NDArray[np.int32]
IMPOSSIBLE_SPAN = np.float32(1e6)
"""T of what has no place or does not fit the memory; the longest real ones are below 1e4 ideal lengths."""
HARDLY_ANY = np.float32(1e-9)
ANY_LENGTH = 1e30
"""A limit that nothing reaches."""
END_POINTS = 3
"""So many first and last legal points are always among them: stages of one instruction are best at the ends."""


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
    """Fill in the tables [5, L, U, K] of one problem for 2 … needed + 1 stages left.

    Args:
        at: [5, K] channels at the tables' points; total: [5] at the end of the model.
        legal: [K] which of the points are cuts.
        given: [7] devices, per_node, ratio, state, stages, micro and samples of a micro-batch, 0 where there are
            none.
        sizes: units that a stage may have, ascending.
        tables: [5, L, U, K] zeros.
        guess: times what comes before is guessed to reduce.
        limit: length of plans to look for at most, in ideal lengths.

    Returns:
        [3, U, K] T, R and the last device of the first stage, of the rest in needed + 1 stages.
    """
    units = tables.shape[2]
    window = windows(at, total, given, units, limit)
    ring = np.empty((units, sizes.size), dtype=np.float32)
    unit = np.ceil(given[0] / np.float32(units))
    for u in range(units):
        for r in range(sizes.size):
            first = np.float32(u) * unit
            ring[u, r] = all_reduce(first, first + np.float32(sizes[r]) * unit, given[1], given[2])
    rest = last_one(at, total, given, units, window)
    for left in range(2, 2 + needed):
        rest = one_more(
            at, legal, given, sizes, ring, np.float32(left), rest, tables[:, left - 2], window, guess, limit
        )
    return rest


@jit
def windows(at: Floats, total: Floats, given: Floats, units: int, limit: np.float32) -> Integers:
    """[2, U] the points low … high - 1 at which stages may begin on each unit.

    The devices before it and those after it can compute all that is before and after within the limit.
    """
    window, unit = np.empty((2, units), dtype=np.int64), np.ceil(given[0] / np.float32(units))
    window[0], window[1] = 0, at.shape[1]
    if limit >= ANY_LENGTH:
        return window
    devices, micro, low, high = given[0], given[5], 0, 0
    for u in range(units):
        device = np.float32(u) * unit
        while high < at.shape[1] and micro * at[0, high] <= limit * device:
            high += 1
        while low < high and micro * (total[0] - at[0, low]) > limit * (devices - device):
            low += 1
        window[0, u], window[1, u] = low, high
    return window


@jit
def last_one(at: Floats, total: Floats, given: Floats, units: int, window: Integers) -> Floats:
    """[3, U, K] T, R and the last device of one stage, on all devices from each unit on."""
    devices, per_node, ratio, state, _, micro, _ = given
    unit = np.ceil(devices / np.float32(units))
    rest = np.empty((3, units, at.shape[1]), dtype=np.float32)
    rest[0], rest[2] = IMPOSSIBLE_SPAN, devices
    for u in range(units):
        first = np.float32(u) * unit
        replicas = max(devices - first, ONE)
        factor = all_reduce(first, max(devices, first + ONE), per_node, ratio)
        for k in range(window[0, u], window[1, u]):
            rest[1, u, k] = (total[2] - at[2, k]) * factor
            memory = state * (total[2] - at[2, k]) + (total[4] - at[4, k]) / replicas
            if memory <= ONE and first < devices:
                rest[0, u, k] = micro * (total[0] - at[0, k]) / replicas
    return rest


@jit
def one_more(
    at: Floats,
    legal: Flags,
    given: Floats,
    sizes: Integers,
    ring: Floats,
    left: np.float32,
    rest: Floats,
    table: Floats,
    window: Integers,
    guess: np.float32,
    limit: np.float32,
) -> Floats:
    """From the rest in left - 1 stages, [3, U, K], to that in `left`, whose plans fill a level, [5, U, K]."""
    devices, _, _, state, stages, micro, _samples = given
    units, count = rest.shape[1], rest.shape[2]
    unit, in_flight = np.ceil(devices / np.float32(units)), min(micro, left)
    new = np.zeros_like(rest)
    new[0], new[2] = IMPOSSIBLE_SPAN, devices
    of_size, score = np.empty((3, sizes.size), dtype=np.float32), np.empty(sizes.size * count, dtype=np.float32)
    where, stage = np.empty((2, score.size), dtype=np.int32), np.empty((10, score.size), dtype=np.float32)
    begins = np.empty(count + 1, dtype=np.int64)
    for u in range(units):
        first = np.float32(u) * unit
        if first >= devices:
            break
        low, high = window[0, u], window[1, u]
        if low >= high:
            continue
        most = max(first - max(stages - left, ONE) + ONE, ONE)  # devices of a stage before
        of_size[1] = ring[u]
        before, factor = sizes_from(given, sizes, left, first, unit, of_size)
        number = stages_from(at, legal, given, sizes, of_size, left, rest, u, window, where, stage, begins)
        for k in range(low, high):
            enough = guess * (before * (at[0, k] - at[3, k]) / max(first, ONE) + at[2, k] / before * factor)
            own = begins[k]
            lengths_from(at, k, state, micro, in_flight, enough, limit, stage, own, score[: number - own])
            x = own + first_least(score[: number - own])
            if x < own:
                continue
            e, stop = where[0, x], first + np.float32(sizes[where[1, x]]) * unit
            table[0, u, k], table[1, u, k], table[2, u, k] = np.float32(e), stop, stage[9, x]
            table[3, u, k], table[4, u, k] = stage[4, x], stage[5, x]
            # one_more_stage
            per_device = stage[8, x]
            compute, weights, stash = at[0, e] - at[0, k], at[2, e] - at[2, k], at[4, e] - at[4, k]
            time, backward = compute * per_device, (compute - (at[3, e] - at[3, k])) * per_device
            new[1, u, k], new[2, u, k] = max(weights * stage[7, x], stage[5, x] - backward), stop
            span = max(micro * time, time + stage[4, x])
            # The devices before take so long at least for one micro-batch; R hides behind their backward passes.
            computed, forward = at[0, k] / most, at[3, k] / most
            if span + max(computed, new[1, u, k] + forward) > limit:
                continue
            if state * weights + in_flight * stash * per_device <= ONE:
                new[0, u, k] = span
    return new


@jit
def stages_from(
    at: Floats,
    legal: Flags,
    given: Floats,
    sizes: Integers,
    of_size: Floats,
    left: np.float32,
    rest: Floats,
    u: int,
    window: Integers,
    where: Small,
    stage: Floats,
    begins: Integers,
) -> int:
    """The ends and sizes that stages which begin with a unit may have, wherever they begin, end after end.

    Args:
        where: [2, n] becomes the end of each and the number of its size.
        stage: [10, n] becomes the channels C, W, F and H at the end; T from the transfer behind it on and R less that
            transfer (_behind_a_cut); the three of its size (`sizes_from`); where the devices of the stage behind end.
        begins: [K + 1] becomes how many there are with an end up to each point.

    Returns:
        How many there are.
    """
    devices, per_node, ratio, _, _, micro, samples = given
    unit, number = np.ceil(devices / np.float32(rest.shape[1])), 0
    begins[:] = 0
    while number < sizes.size:
        behind = u + sizes[number]
        if np.float32(behind) * unit > devices - (left - ONE) or behind >= rest.shape[1]:
            break
        for e in range(window[0, behind], window[1, behind]):
            begins[e + 1] += legal[e] and rest[0, behind, e] < IMPOSSIBLE_SPAN
        number += 1
    for e in range(1, begins.size):
        begins[e] += begins[e - 1]
    for r in range(number):
        behind = u + sizes[r]
        boundary = np.float32(behind) * unit
        begun = sent(np.float32(u) * unit, boundary, per_node, samples)
        for e in range(window[0, behind], window[1, behind]):
            if not legal[e] or rest[0, behind, e] >= IMPOSSIBLE_SPAN:
                continue
            after = max(rest[2, behind, e], boundary + ONE)
            moved = at[1, e] * received(begun, boundary, after, per_node, ratio, samples)
            x = begins[e]
            begins[e] += 1
            where[0, x], where[1, x] = e, r
            stage[0, x], stage[1, x], stage[2, x], stage[3, x] = at[0, e], at[2, e], at[3, e], at[4, e]
            stage[4, x] = max(TWO * micro * moved, TWO * moved + rest[0, behind, e])
            stage[5, x] = rest[1, behind, e] - moved
            stage[6, x], stage[7, x], stage[8, x] = of_size[0, r], of_size[1, r], of_size[2, r]
            stage[9, x] = after
    return int(begins[-1])


@jit
def lengths_from(
    at: Floats,
    k: int,
    state: np.float32,
    micro: np.float32,
    in_flight: np.float32,
    enough: np.float32,
    limit: np.float32,
    stage: Floats,
    begin: int,
    score: Floats,
) -> None:
    """The sum T + max(R, enough) of each stage from a point on, T with the transfer into it; inf where it does not fit.

    k ├──── e, r                      all sizes of all ends behind it, one after another in memory: processors work on
      ├────── e, r                    several of them at a time
    """
    C, A, W, F, H = at[0, k], at[1, k], at[2, k], at[3, k], at[4, k]
    for i in range(score.size):
        x = np.uintp(begin) + np.uintp(i)  # no number from the end, which would have to be looked out for
        per_device, compute, weights = stage[8, x], stage[0, x] - C, stage[1, x] - W
        time, into = compute * per_device, TWO * (A * stage[6, x])
        whole = max(micro * into, into + max(micro * time, time + stage[4, x]))
        backward = (compute - (stage[2, x] - F)) * per_device
        length = whole + max(weights * stage[7, x], stage[5, x] - backward, enough)
        hold = (ONE - state * weights) / max((stage[3, x] - H) * per_device, HARDLY_ANY)
        possible = (hold >= in_flight) & (micro * time <= limit)
        score[i] = length if possible else np.float32(np.inf)


@jit
def first_least(score: Floats) -> int:
    """Which is the least, of equals the first; -1 where all are infinite.

    No length is negative: bits are in the order of the numbers, and processors compare several whole ones at a time.
    """
    bits = score.view(np.int32)
    least = np.float32(np.inf).view(np.int32)
    infinite = least
    for x in range(bits.size):
        least = min(least, bits[x])
    if least == infinite:
        return -1
    for x in range(bits.size):
        if bits[x] == least:
            return x
    return -1


@jit
def sizes_from(
    given: Floats, sizes: Integers, left: np.float32, first: np.float32, unit: np.float32, of_size: Floats
) -> tuple[np.float32, np.float32]:
    """What only depends on the first device of a stage and its size, into rows 0 and 2 of [3, R].

    Of each size the transfer into such a stage and 1 / parts of a micro-batch: the stages before share their work,
    parameters and devices evenly (_reduce_before, _transfer_into).

    Returns:
        How many stages come before, and the all-reduce of the first of them.
    """
    _, per_node, ratio, _, stages, _, samples = given
    begin, before = max(first, ONE), max(stages - left, ONE)
    begun = sent(max(first - np.ceil(first / before), NOTHING), begin, per_node, samples)
    for r in range(sizes.size):
        size = np.float32(sizes[r]) * unit
        of_size[0, r] = received(begun, begin, begin + size, per_node, ratio, samples)
        of_size[2, r] = ONE / parts_of(size, samples)
    return before, all_reduce(NOTHING, np.ceil(begin / before), per_node, ratio)


@jit
def chosen_points(arrays: Floats, most: int) -> Integers:
    """[K] the cuts that tables are made for, ascending, at most so many: the ends and an even choice of the rest.

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
def first_stages(at: Floats, given: Floats, sizes: Integers, rest: Floats, window: Integers) -> tuple[Floats, Integers]:
    """[K] L of the best plan whose first stage ends at each point, in ideal lengths, and [K] the number of its size."""
    _, per_node, ratio, state, stages, micro, samples = given
    unit, count = np.ceil(given[0] / np.float32(rest.shape[1])), at.shape[1]
    of_size = np.empty((3, sizes.size), dtype=np.float32)
    for r in range(sizes.size):
        size = np.float32(sizes[r]) * unit
        of_size[0, r], of_size[1, r] = NOTHING, all_reduce(NOTHING, size, per_node, ratio)
        of_size[2, r] = ONE / parts_of(size, samples)
    where = np.empty((2, sizes.size * count), dtype=np.int32)
    stage, legal = np.empty((10, where.shape[1]), dtype=np.float32), np.ones(count, dtype=np.bool_)
    begins = np.empty(count + 1, dtype=np.int64)
    number = stages_from(at, legal, given, sizes, of_size, stages, rest, 0, window, where, stage, begins)
    length, size = np.full(count, np.float32(np.inf)), np.zeros(count, dtype=np.int64)
    for x in range(number):
        e, per_device = where[0, x], stage[8, x]
        if state * at[2, e] + min(micro, stages) * at[4, e] * per_device > ONE:
            continue
        time, backward = at[0, e] * per_device, (at[0, e] - at[3, e]) * per_device
        whole = max(micro * time, time + stage[4, x]) + max(at[2, e] * stage[7, x], stage[5, x] - backward)
        if whole < length[e]:
            length[e], size[e] = whole, where[1, x]
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
    tables = np.zeros((5, max(levels, 1), units, len(point)), dtype=np.float32)
    legal = np.ones(len(point), dtype=np.bool_)
    rest = problem_tables(at, total, legal, given, sizes, levels, tables, guess, limit)
    length, size = first_stages(at, given, sizes, rest, windows(at, total, given, units, limit))
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
                k, u = int(tables[0, level, u, k]), int(tables[1, level, u, k] / unit)
    return lengths[: min(beam, len(point))], places[: min(beam, len(point))]
