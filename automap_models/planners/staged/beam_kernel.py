"""The loops of planners.staged.beam_search, compiled by numba.

What a stage and what follows it cost is worked out pair by pair:

    for every place (a, i) where the stage may begin
      for every suffix (q, k) behind it, by q, then by k      what depends on a and q alone: once for each q;
        T, R of the two                                       M·u grows with k: past the limit, on to the next
      keep the least by the known prefix, and the least by itself

The fastest sender into a stage is looked for among two: all devices before it, and those of the node before it.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray
from automap_models.cost.link_kernel import all_reduce, received, sent, transfer
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, PlainStages
from automap_models.planners.staged.stage_arrays import FROZEN, TRAINED, UNTRAINED, C, F, H, W

SPARE = 0.3
"""How much longer than the plan known beforehand, relatively, a suffix may look behind that plan's prefix: another
prefix may be shorter."""
SLACK = 1e-9
"""Relative rounding: the plan known beforehand shall not be lost, and is no shorter than itself."""


@jit
def moved_s(stages: PlainStages, first: int, boundary: int, stop: int) -> float:
    """Seconds per byte from devices first … boundary-1 to boundary … stop-1."""
    ratio, per_node = stages.inter / stages.intra, stages.per_node
    return transfer(float(first), float(boundary), float(stop), per_node, ratio, 0.0) / stages.inter  # type: ignore[no-any-return]


@jit
def reduced_s(stages: PlainStages, first: int, stop: int) -> float:
    """Seconds per byte of parameters that replicas on devices first … stop-1 reduce their gradients in."""
    factor = all_reduce(float(first), float(stop), stages.per_node, stages.inter / stages.intra) / stages.inter
    if (stop - 1) // stages.per_node > first // stages.per_node:
        factor = min(factor, 2.0 * (stop - first - 1) / (stop - first) * stages.hop_s)
    return stages.gradient_share * factor  # type: ignore[no-any-return]


@jit
def weights_bytes(stages: PlainStages, i: int, k: int) -> float:
    """Parameters of a stage between two boundaries, with the copies of tied ones."""
    nbytes = stages.sums[W, k] - stages.sums[W, i]
    for p in range(stages.copies_nbytes.shape[1]):
        if k >= stages.copies_end[p, i]:
            nbytes += stages.copies_nbytes[TRAINED, p]
    return nbytes  # type: ignore[no-any-return]


@jit
def state_bytes(stages: PlainStages, i: int, k: int) -> float:
    """σ·ΣW + Σfrozen of a stage between two boundaries, with copies."""
    nbytes = stages.state_factor * weights_bytes(stages, i, k) + (stages.sums[FROZEN, k] - stages.sums[FROZEN, i])
    for p in range(stages.copies_nbytes.shape[1]):
        if k >= stages.copies_end[p, i]:
            nbytes += stages.copies_nbytes[UNTRAINED, p]
    return nbytes  # type: ignore[no-any-return]


@jit
def fits(stages: PlainStages, route: IntArray, s: int) -> bool:
    """Whether the memory of its devices holds stage s of a route."""
    i, k, replicas = route[0, s], route[0, s + 1], route[1, s + 1] - route[1, s]
    stash = stages.held[s] * (stages.sums[H, k] - stages.sums[H, i]) / stages.parts[replicas]
    return bool(state_bytes(stages, i, k) + stash <= stages.memory)


@jit
def prefixes(stages: PlainStages, boundary: IntArray, device: IntArray) -> FloatArray:
    """[S+1, 4] busy, span, hidden and exposed before each stage of a route, and at its end.

    Busy is Σ u_j over stages and transfers before, span max (Σ_{j<e} u_j + M·u_e) over them, hidden Σ of their backward
    and transfer times, and exposed max (AR - hidden) over the stages; the transfer into a stage is left out.
    """
    count, rounds = boundary.size - 1, stages.micro_batches
    table = np.zeros((count + 1, 4))
    busy, span, hidden, exposed = 0.0, 0.0, 0.0, -np.inf
    table[0, 3] = exposed
    for s in range(count):
        i, k, a, q = boundary[s], boundary[s + 1], device[s], device[s + 1]
        if s:
            x = stages.sums[A, i] * moved_s(stages, device[s - 1], a, q)
            span, busy, hidden = max(span, busy + 2.0 * rounds * x), busy + 2.0 * x, hidden + x
        parts = stages.parts[q - a]
        u = (stages.sums[C, k] - stages.sums[C, i]) / parts
        exposed = max(exposed, reduced_s(stages, a, q) * weights_bytes(stages, i, k) - hidden)
        span, busy = max(span, busy + rounds * u), busy + u
        hidden += u - (stages.sums[F, k] - stages.sums[F, i]) / parts
        table[s + 1, 0], table[s + 1, 1], table[s + 1, 2], table[s + 1, 3] = busy, span, hidden, exposed
    return table


@jit
def route_length_s(stages: PlainStages, route: IntArray) -> float:
    """L of a route; inf where it does not fit the memory."""
    for s in range(route.shape[1] - 1):
        if not fits(stages, route, s):
            return np.inf
    whole = prefixes(stages, route[0], route[1])[-1]
    return whole[1] + whole[3]  # type: ignore[no-any-return]


@jit
def shortest(
    stages: PlainStages,
    known_boundary: IntArray,
    known_device: IntArray,
    limit_s: float,
    boundary: IntArray,
    device: IntArray,
    begin: IntArray,
) -> tuple[float, IntArray]:
    """the shortest plan found whose stages begin at the places given; inf where none is shorter than the limit.

    Args:
        stages: two or more.
        known_boundary, known_device: [S+1] the route by whose prefixes suffixes are judged; limit_s: its length.
        boundary, device: places where stages may begin, ascending by device and then by boundary; that of the first
            stage is among them.
        begin: [S+1] the first of each stage's places, and their number.

    Returns:
        L, and [2, S+1] the boundaries and devices where its stages begin, and the end.
    """
    count, end, devices = known_boundary.size - 1, stages.sums.shape[1] - 1, stages.parts.size - 1
    before = prefixes(stages, known_boundary, known_device)
    where = np.empty((4, 2 * boundary.size + 1), dtype=np.int64)  # q, k, e and parent of each suffix
    cost = np.empty((2, 2 * boundary.size + 1))  # T and R
    where[0, 0], where[1, 0], where[2, 0], where[3, 0] = devices, end, -1, -1
    cost[0, 0], cost[1, 0] = 0.0, -np.inf
    low, high = 0, 1
    for stage in range(count - 1, -1, -1):
        sender = known_device[stage - 1] if stage else -1
        own = slice(begin[stage], begin[stage + 1])
        low, high = (
            high,
            put_before(
                stages, stage, sender, before[stage], limit_s, boundary[own], device[own], where, cost, low, high
            ),
        )
        if low == high:
            break
    route = np.empty((2, count + 1), dtype=np.int64)
    if low == high:
        return np.inf, route
    j = low + int((cost[0, low:high] + cost[1, low:high]).argmin())
    length_s = cost[0, j] + cost[1, j]
    if length_s >= limit_s * (1.0 - SLACK):
        return np.inf, route
    for stage in range(count + 1):
        route[0, stage], route[1, stage] = where[1, j], where[0, j]
        j = where[3, j]
    return length_s, route


@jit
def put_before(
    stages: PlainStages,
    stage: int,
    sender: int,
    before: FloatArray,
    limit_s: float,
    boundary: IntArray,
    device: IntArray,
    where: IntArray,
    cost: FloatArray,
    low: int,
    high: int,
) -> int:
    """A stage at its places before the suffixes low … high - 1; those that stay are added behind them.

    Returns:
        Where they end.
    """
    work, rounds, devices = stages.sums[C], stages.micro_batches, stages.parts.size - 1
    stop, most, a, number = high, min(limit_s * (1.0 + SLACK), np.finfo(np.float64).max), -1, 0
    after, into = np.empty((2, high - low)), np.empty((4, high - low))
    groups = np.empty(high - low + 1, dtype=np.int64)  # the first suffix of each q
    for j in range(low, high):
        if j == low or where[0, j] != where[0, j - 1]:
            groups[number] = j
            number += 1
    groups[number] = high
    chosen, costs = np.empty(2, dtype=np.int64), np.empty((2, 2))
    for p in range(boundary.size):
        # The devices before and after a place can compute all there is in time: M·ΣC / D ≤ L.
        computed = rounds * work[boundary[p]]
        if computed > most * device[p] or rounds * work[-1] - computed > most * (devices - device[p]):
            continue
        if device[p] != a:
            a = device[p]
            move_on(stages, a, sender, where, cost, groups[: number + 1], after, into)
        two_best(
            stages, stage, boundary[p], a, before, limit_s, where, groups[: number + 1], after, into, chosen, costs
        )
        for which in range(2):
            if chosen[which] >= 0 and not (which and chosen[1] == chosen[0]):
                where[0, stop], where[1, stop], where[2, stop] = a, boundary[p], where[0, chosen[which]]
                where[3, stop], cost[0, stop], cost[1, stop] = chosen[which], costs[which, 0], costs[which, 1]
                stop += 1
    return stop


@jit
def two_best(
    stages: PlainStages,
    stage: int,
    i: int,
    a: int,
    before: FloatArray,
    limit_s: float,
    where: IntArray,
    groups: IntArray,
    after: FloatArray,
    into: FloatArray,
    best: IntArray,
    costs: FloatArray,
) -> None:
    """The suffixes that a stage from (a, i) on is best put before: by the known prefix, and by itself.

    Args:
        before: of the known prefix, see `prefixes`.
        where, groups, after, into: see `move_on`.
        best: [2] becomes the numbers of the two, -1 where there are none; costs: [2, 2] becomes T and R with the stage.
    """
    rounds, most, low = stages.micro_batches, min(limit_s * (1.0 + SLACK), np.finfo(np.float64).max), groups[0]
    sums, ends, held = stages.sums, where[1], float(stages.held[stage])
    least, least_own = limit_s * (1.0 + SPARE), np.inf
    best[0], best[1] = -1, -1
    for g in range(groups.size - 1):
        if where[0, groups[g]] <= a:
            continue
        parts, ring, moved, fastest = (
            into[0, g],
            into[1, g],
            into[2, g] * stages.sums[A, i],
            into[3, g] * stages.sums[A, i],
        )
        begin, share = groups[g], 1.0 / parts
        while begin < groups[g + 1] and ends[begin] <= i:
            begin += 1
        for j in range(begin, groups[g + 1]):
            k = ends[j]
            u = (sums[C, k] - sums[C, i]) * share
            if rounds * u > most:
                break
            span = max(rounds * u, u + after[0, j - low])
            if not span <= most:
                continue
            weights = weights_bytes(stages, i, k)
            stash = held * (sums[H, k] - sums[H, i]) * share
            if state_bytes(stages, i, k) + stash > stages.memory:
                continue
            exposed = max(ring * weights, after[1, j - low] - (u - (sums[F, k] - sums[F, i]) * share))
            whole, uncovered = max(2.0 * rounds * moved, 2.0 * moved + span), exposed - moved
            looks = max(before[1], before[0] + whole) + max(before[3], uncovered - before[2])
            if not looks <= limit_s * (1.0 + SPARE):
                continue
            own = max(2.0 * rounds * fastest, 2.0 * fastest + span) + exposed - fastest
            if best[0] < 0 or looks < least:
                least, best[0], costs[0, 0], costs[0, 1] = looks, j, span, exposed
            if own < least_own:
                least_own, best[1], costs[1, 0], costs[1, 1] = own, j, span, exposed


@jit
def move_on(
    stages: PlainStages,
    a: int,
    sender: int,
    where: IntArray,
    cost: FloatArray,
    groups: IntArray,
    after: FloatArray,
    into: FloatArray,
) -> None:
    """What depends on the device a stage begins at, but not on the boundary.

    Args:
        stages, a: the stage; sender: the first device of the known route's stage before it, -1 where there is none.
        where, cost: of all suffixes; groups: the first suffix of each q, and the end.
        after: [2, n] becomes T and R of each suffix with the transfer into it.
        into: [4, n] becomes, for each q, the parts of a micro-batch, the all-reduce, and the transfers into the stage
            from the sender and from the fastest one, in seconds per byte.
    """
    rounds, low, per_node, inter = stages.micro_batches, groups[0], stages.per_node, stages.inter
    ratio, place = stages.inter / stages.intra, float(a)
    known = sent(float(sender if a > sender else 0), place, per_node, 0.0)
    whole, node = (
        sent(0.0, place, per_node, 0.0),
        sent(np.floor((place - 1.0) / per_node) * per_node, place, per_node, 0.0),
    )
    memo = np.empty(stages.parts.size)
    for g in range(groups.size - 1):
        q = where[0, groups[g]]
        if q <= a:
            continue
        stop = float(q)
        into[0, g], into[1, g] = stages.parts[q - a], all_reduce(place, stop, per_node, ratio) / inter
        into[2, g], into[3, g] = 0.0, 0.0
        if sender >= 0:
            into[2, g] = received(known, place, stop, per_node, ratio, 0.0) / inter if a > sender else 0.0
            fastest = min(
                received(whole, place, stop, per_node, ratio, 0.0), received(node, place, stop, per_node, ratio, 0.0)
            )
            into[3, g] = fastest / inter
        begun, memo[q:] = sent(place, stop, per_node, 0.0), -1.0
        for j in range(groups[g], groups[g + 1]):
            e, x = where[2, j], 0.0
            if e >= 0:
                if memo[e] < 0.0:
                    memo[e] = received(begun, stop, float(e), per_node, ratio, 0.0) / inter
                x = memo[e] * stages.sums[A, where[1, j]]
            after[0, j - low] = max(2.0 * rounds * x, 2.0 * x + cost[0, j])
            after[1, j - low] = cost[1, j] - x


@jit
def shortest_around(
    stages: PlainStages, route: IntArray, limit_s: float, others: IntArray, by_boundary: IntArray, by_device: IntArray
) -> tuple[float, IntArray]:
    """The shortest plan that begins its stages near where a route does, or where any of the others does.

    Args:
        route: [2, S+1] boundaries and devices, as `shortest` returns them; others: [n, 2, S+1], n ≥ 0.
        limit_s: its length.
        by_boundary, by_device: how far a stage may begin beside the route's.
    """
    count, end, devices = route.shape[1] - 1, stages.sums.shape[1] - 1, stages.parts.size - 1
    size = by_boundary.size + others.shape[0] + 1
    most = size * (by_device.size + others.shape[0] + 1) * count + 1
    boundary, device, begin = (
        np.zeros(most, dtype=np.int64),
        np.zeros(most, dtype=np.int64),
        np.empty(count + 1, np.int64),
    )
    begin[0], total = 0, 1
    for s in range(1, count):
        begin[s] = total
        k = nearby(route[0, s], by_boundary, others[:, 0, s], s, end - count + s, end)
        d = nearby(route[1, s], by_device, others[:, 1, s], s, devices - count + s, devices)
        for q in d:
            boundary[total : total + k.size], device[total : total + k.size] = k, q
            total += k.size
    begin[count] = total
    return shortest(stages, route[0], route[1], limit_s, boundary[:total], device[:total], begin)


@jit
def nearby(own: int, beside: IntArray, others: IntArray, least: int, most: int, end: int) -> IntArray:
    """The numbers own + beside and others that lie between least and most, ascending, each once; all are below end."""
    some = np.zeros(end + 1, dtype=np.bool_)
    some[own] = True
    for by in beside:
        if least <= own + by <= most:
            some[own + by] = True
    for other in others:
        if least <= other <= most:
            some[other] = True
    return np.flatnonzero(some)
