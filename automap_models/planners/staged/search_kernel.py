"""The innermost loops of the exact search, compiled by numba: the same numbers to the last bit as in numpy.

    least_through    relaxation.through_shardings     one window a row that slides, in place of a table of minima
    undominated      pareto.pareto_front              group by group, in place of segmented scans
    furthest_ends    feasibility._reached             only stages that get further than those before them go on

Each pass over numpy's arrays that this saves takes longer than its arithmetic.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.planners.staged.search_arrays import ShardingArrays, StageLimits

ROUNDING = 1e-12
"""As planners.staged.stage_tables."""


@jit
def least_through(
    own: ShardingArrays,
    stage: StageLimits,
    busy: FloatArray,
    forward: FloatArray,
    arrives: FloatArray,
    a: IntArray,
    q: int,
) -> FloatArray:
    """[2, a, m+1] the least busy and forward time of prefixes that end at k with a stage on devices a … q-1.

    A stage costs the difference of two sums, leaving[k] - entering[i], so that its best beginning i is the least of
    before[i] - entering[i] among those that are not too far before k:

        i:    0 1 2 3 4 5 6 7 8 …
                  [· · · · ·)           from `start`, which never goes back, to k
                     ╲   ╲  ╲           waiting: of these the indices that nothing after them is below; the first
                     least              one's value is the least

    Args:
        busy, forward: [D+1, m+1] before the stage (relaxation.PrefixBounds).
        arrives: [a, m+1] the least transfer into it, one direction.
    """
    rows, n = arrives.shape
    least = np.empty((2, rows, n))
    begun, waiting = np.empty((3, n)), np.empty((3, n), np.int64)
    for r in range(rows):
        first, last = np.zeros(3, np.int64), np.zeros(3, np.int64)  # the queue of each number, ascending in both
        place, rate, ring = own.place[a[r], q], own.rate[a[r], q], own.ring[a[r], q]
        memory, parts = own.memory[a[r], q], own.parts[a[r], q]
        reduced = stage.length_s / ring if ring > 0 else np.inf
        state, kept = min(reduced, memory / stage.state_factor), memory * parts / stage.in_flight
        computed = stage.length_s / stage.micro_batches * rate
        of_work, of_state, of_stash = 0, 0, 0
        for k in range(n):
            of_work = _first_at(own.least_C, own.least_C[k] - computed - ROUNDING * own.least_C[-1], of_work)
            of_state = _first_at(own.W, own.W[k] - state - ROUNDING * own.W[-1], of_state)
            of_stash = _first_at(own.H, own.H[k] - kept - ROUNDING * own.H[-1], of_stash)
            start = max(of_work, of_state, of_stash)
            gather = own.gather_s[place, k] / rate
            compute = own.C[place, k] / rate + own.start_s[k]
            ahead = own.F[place, k] / rate + own.start_forward_s[k]
            reduce = compute + ring * own.W[k] + own.gradient_s[place, k]
            before = forward[a[r], k] + arrives[r, k]
            begun[0, k] = busy[a[r], k] + 2.0 * arrives[r, k] - (compute - gather)
            begun[1, k] = before - (ahead - gather)
            begun[2, k] = before - (reduce - gather)
            for c in range(3):
                value = np.inf
                if k > 0:
                    last[c] = _queued(begun[c], waiting[c], first[c], last[c], k - 1)
                while first[c] < last[c] and waiting[c, first[c]] < start:
                    first[c] += 1
                if first[c] < last[c]:
                    value = begun[c, waiting[c, first[c]]]
                if c == 0:
                    least[0, r, k] = value + (compute + gather)
                elif c == 1:
                    least[1, r, k] = value + ahead
                else:
                    least[0, r, k] = max(least[0, r, k], value + (reduce + gather))
    return least


@jit
def _first_at(sums: FloatArray, least: float, i: int) -> int:
    """The first index from i on at which sums that never fall are no less; their number where there is none."""
    while i < sums.size and sums[i] < least:
        i += 1
    return i


@jit
def _queued(values: FloatArray, waiting: IntArray, first: int, last: int, i: int) -> int:
    """Where a queue ends after index i is put behind those of smaller values."""
    while last > first and values[waiting[last - 1]] >= values[i]:
        last -= 1
    waiting[last] = i
    return last + 1


@jit
def undominated(group: IntArray, numbers: FloatArray) -> IntArray:
    """See `pareto.pareto_front`."""
    n = group.size
    kept, count, begin = np.empty(n, np.int64), 0, 0
    alive, room = np.empty(n, np.int64), np.empty(n, np.int64)
    while begin < n:
        end = begin + 1
        while end < n and group[end] == group[begin]:
            end += 1
        size = _beyond_pivot(numbers, begin, end, alive)
        count = _kept_of(numbers, _sorted(numbers, alive, room, size), size, kept, count)
        begin = end
    return kept[:count].copy()


@jit
def _sorted(numbers: FloatArray, order: IntArray, room: IntArray, size: int) -> IntArray:
    """The first so many entries by their numbers, the first number first, equal ones as they were: `order` or `room`.

    Runs of twice the length are merged each time; np.argsort would take numba a second to compile.
    """
    length = 1
    while length < size:
        for begin in range(0, size, 2 * length):
            left, right = begin, min(begin + length, size)
            middle, end = right, min(begin + 2 * length, size)
            for at in range(begin, end):
                if right < end and (left == middle or _precedes(numbers, order[right], order[left])):
                    room[at] = order[right]
                    right += 1
                else:
                    room[at] = order[left]
                    left += 1
        order, room, length = room, order, 2 * length
    return order


@jit
def _precedes(numbers: FloatArray, j: int, other: int) -> bool:
    """Whether an entry comes before another one: the first number that differs is smaller."""
    for c in range(len(numbers)):
        if numbers[c, j] != numbers[c, other]:
            return numbers[c, j] < numbers[c, other]  # type: ignore[no-any-return]
    return False


@jit
def _beyond_pivot(numbers: FloatArray, begin: int, end: int, alive: IntArray) -> int:
    """How many of a group are not dominated by the one of the least sum, or are that one; which, into `alive`."""
    pivot, least = begin, np.inf
    for j in range(begin, end):
        total = numbers[0, j]
        for c in range(1, len(numbers)):
            total += numbers[c, j]
        if total < least:
            pivot, least = j, total
    size = 0
    for j in range(begin, end):
        below = j == pivot
        for c in range(len(numbers)):
            below = below or numbers[c, j] < numbers[c, pivot]
        if below:
            alive[size] = j
            size += 1
    return size


@jit
def _kept_of(numbers: FloatArray, order: IntArray, size: int, kept: IntArray, count: int) -> int:
    """Append those of a group, the first so many of an order by numbers, that none of a few before them dominates."""
    several = len(numbers) > 2
    tracked = len(numbers) if several else 1  # by each number but the first, and by their sum
    at, least = np.full(tracked, -1), np.full(tracked, np.inf)
    for place in range(size):
        j = order[place]
        alive, total = True, 0.0
        for t in range(tracked):
            value = numbers[1, j]
            if t + 1 < len(numbers):
                value = numbers[t + 1, j]
                total = value if t == 0 else total + value
            else:
                value = total
            if several:
                alive = alive and (at[t] < 0 or _below_somewhere(numbers, j, at[t]))
            elif at[t] >= 0:
                alive = value < least[t]
            if at[t] < 0 or value < least[t]:
                at[t], least[t] = j, value
        if alive:
            kept[count] = j
            count += 1
    return count


@jit
def _below_somewhere(numbers: FloatArray, j: int, other: int) -> bool:
    """Whether an entry is below another one in any number but the first."""
    below = False
    for c in range(1, len(numbers)):
        below = below or numbers[c, j] < numbers[c, other]
    return below


@jit
def furthest_ends(
    own: ShardingArrays,
    stage: StageLimits,
    begin: IntArray,
    stops: tuple[int, int],
    memory: tuple[float, float],
    last: int,
    furthest: IntArray,
) -> None:
    """The furthest boundary at which a stage can end before each device, where that is further than is known.

    Args:
        begin: [D+1] where it begins at the furthest on each device; -1 nowhere.
        stops: the first and the last device before which it may end.
        memory: that the smallest devices may hold, and that they have.
        last: boundary where it may end.
        furthest: [D+1] what is known, and then what is found.
    """
    C, W, H, start_s, gradient_s = own.C, own.W, own.H, own.start_s, own.gradient_s
    frozen = own.frozen
    most_s, best = stage.length_s * (1.0 + ROUNDING), 0
    for q in range(stops[0], stops[1] + 1):
        # What gets furthest before one device mostly does so before the next one: most others then fail at once.
        for at in range(-1, q):
            a = best if at < 0 else at
            i = begin[a]
            if i < 0 or not own.allowed[a, q]:
                continue
            end, place, rate, ring = max(i, furthest[q]), own.place[a, q], own.rate[a, q], own.ring[a, q]
            parts, most_bytes = own.parts[a, q], memory[0] * (own.memory[a, q] / memory[1]) * (1.0 + ROUNDING)
            step, grows = 1, True  # what is further is looked for by steps that double, and then by ever smaller ones
            while step and end < last:
                k, copies = min(end + step, last), 0.0
                for p in range(own.copies_nbytes.size):
                    if k >= own.copies_end[p, i]:
                        copies += own.copies_nbytes[p]
                weights, busy = W[k] - W[i] + copies, (C[place, k] - C[place, i]) / rate + (start_s[k] - start_s[i])
                reduce = ring * weights + (gradient_s[place, k] - gradient_s[place, i])
                reduce += stage.update_s * weights - stage.hidden * min(reduce, busy)
                held = stage.state_factor * weights + (frozen[k] - frozen[i]) + stage.in_flight * (H[k] - H[i]) / parts
                for p in range(own.frozen_nbytes.size):
                    if k >= own.frozen_end[p, i]:
                        held += own.frozen_nbytes[p]
                # `feasibility._Stages.within`; here and not in a function, whose arrays take longer to pass
                within = stage.micro_batches * busy + reduce <= most_s and held <= most_bytes
                grows = grows and within
                end, step = (k if within else end), (2 * step if grows else step // 2)
            if end > furthest[q]:
                furthest[q], best = min(end, last), a
