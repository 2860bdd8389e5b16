"""What a policy sees of a state: the consequences of every choice, and nothing planned behind it; compiled by numba.

    | complete stages | this stage, to point k on the devices to q | the stages left                        |
      exact (Prefix)    exact                                        only sums: as if they shared the rest evenly

Of what follows a choice only sums are known: its computation, parameters and devices, evenly shared; for a few pieces
of it, measured in even stages, how many parameters each has and at how few activations it could be cut; and how much
computation stands around its parameters. A choice of points is looked at with the devices for the stage that look best.
With one stage left nothing is shared: the look is the length itself, and the choice is settled. Times are in units of
the ideal length, so that one network serves every size of model and cluster.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.cost.link_kernel import all_reduce, transfer
from automap_models.envs.pipeline.encoding import COMPUTE, FORWARDS, SAVED, SENT, WEIGHTS
from automap_models.envs.pipeline.env import (
    DEVICES,
    MICRO,
    OUT_OF_MEMORY_REWARD,
    PER_NODE,
    RATIO,
    STAGES,
    STATE,
    Choices,
    Floats,
    Integers,
    Prefix,
    Problems,
    States,
    prefix_of,
)

MOST_DEVICE_CHOICES = 64
"""First devices that are looked at for the next stage: where more are legal, those that look best."""
EDGES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Where the pieces of the rest begin that are looked at, in even stages; the last one ends with the model."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the rest's parameters: how much computation lies before and behind the point that has so many."""
TAILS = (4, 12, 32, 64)
"""Last points of the model whose shares of computation and parameters are told."""
LOOKED = 29
PIECES = 2 * len(EDGES) + 2 * len(SHARES) + 2
FEATURES = LOOKED + PIECES + 3
GLOBAL_FEATURES = 2 * len(TAILS) + 18
ESTIMATE, LAST = 2, GLOBAL_FEATURES - 2
"""The feature that is the estimated reward, and the global one that says that one stage is left."""

Floats32 = NDArray[np.float32]


def describe(problems: Problems, states: States) -> Choices:
    """The legal choices of states, with features [B, K, FEATURES] and global features [B, GLOBAL_FEATURES]."""
    count = len(states.step)
    most = int(_choices_at_most(problems, states).max(initial=1))
    choice = np.full((count, most), -1)
    features = np.zeros((count, most, FEATURES), dtype=np.float32)
    globally = np.empty((count, GLOBAL_FEATURES), dtype=np.float32)
    _describe(problems, states, choice, features, globally)
    settled = globally[:, LAST] > 0.5
    return Choices(choice, settled, features[:, :, ESTIMATE], (features, globally))


def _choices_at_most(problems: Problems, states: States) -> Integers:
    """[B] legal choices of states, or a few more."""
    points = problems.legal.sum(axis=1) - states.step // 2
    devices = problems.numbers[:, DEVICES].astype(np.int64) - states.firsts.max(axis=1, initial=0)
    most: Integers = np.where(states.step % 2 == 0, points, np.minimum(devices, MOST_DEVICE_CHOICES))
    return most


class StageOutcome(NamedTuple):
    """What ending the stage at a point on the devices to q-1 leads to, with the rest shared evenly.

    Attributes:
        reward: 1 / (span + exposed), or -1 where this stage or the rest does not fit the memory.
        span, exposed: T and R it is made of.
        stage, memory, ring: time, memory and all-reduce of the stage.
        rest, rest_ring, rest_stop: T and all-reduce of the rest, and where the devices of its first stage end.
        arrives, leaves: transfers into the stage and after it.
    """

    reward: float
    span: float
    exposed: float
    stage: float
    memory: float
    ring: float
    rest: float
    rest_ring: float
    rest_stop: float
    arrives: float
    leaves: float


@jit
def stage_outcome(arrays: Floats32, given: Floats, passed: Prefix, point: int, stop: float) -> StageOutcome:
    """Of a choice behind a prefix."""
    end, micro, per_node, ratio = arrays.shape[1] - 1, given[MICRO], given[PER_NODE], given[RATIO]
    parts, remaining = max(stop - passed.first, 1.0), passed.remaining
    both = (arrays[COMPUTE, point] - passed.compute) / parts
    forward = (arrays[FORWARDS, point] - passed.forwards) / parts
    weights, saved = arrays[WEIGHTS, point] - passed.weights, arrays[SAVED, point] - passed.saved
    arrives = 0.0
    if passed.point >= 0:
        arrives = arrays[SENT, passed.point] * transfer(passed.previous, passed.first, stop, per_node, ratio)
    arrived, hidden = passed.through + 2.0 * arrives, passed.back + arrives
    span = max(passed.span, passed.through + 2.0 * micro * arrives, arrived + micro * both)
    ring = weights * all_reduce(passed.first, stop, per_node, ratio)
    memory = given[STATE] * weights + min(micro, remaining + 1.0) * saved / parts

    devices = max(given[DEVICES] - stop, 1.0)
    rest_stop = stop + max(np.floor(devices / remaining + 0.5), 1.0)
    rest = (arrays[COMPUTE, end] - arrays[COMPUTE, point]) / devices * (micro + remaining - 1.0)
    rest_weights = arrays[WEIGHTS, end] - arrays[WEIGHTS, point]
    rest_ring = rest_weights / remaining * all_reduce(stop, rest_stop, per_node, ratio)
    rest_memory = given[STATE] * rest_weights + (arrays[SAVED, end] - arrays[SAVED, point]) / devices
    leaves = arrays[SENT, point] * transfer(passed.first, stop, rest_stop, per_node, ratio)
    span = max(span, arrived + both + max(2.0 * micro * leaves, 2.0 * leaves + rest))
    exposed = max(passed.reduce, ring - hidden, rest_ring - hidden - (both - forward) - leaves)
    fits = memory <= 1.0 and stop < given[DEVICES] and (remaining > 1.0 or rest_memory <= 1.0)
    reward = 1.0 / (span + exposed) if fits else OUT_OF_MEMORY_REWARD
    return StageOutcome(reward, span, exposed, both, memory, ring, rest, rest_ring, rest_stop, arrives, leaves)


@jit
def best_stop(arrays: Floats32, given: Floats, passed: Prefix, point: int) -> tuple[float, StageOutcome]:
    """Where the devices of a stage that ends at a point end best, and the outlook that says so.

    The share of the devices left that its computation deserves, rounded down, up and to the nodes around it, quarters
    of all that are left, and the ends; then the best of these a sixteenth and a thirty-second of them further.
    """
    width, least, most = given[DEVICES] - passed.first, passed.first + 1.0, given[DEVICES] - passed.remaining
    work = max(arrays[COMPUTE, arrays.shape[1] - 1] - passed.compute, 1e-9)
    deserved = passed.first + width * (arrays[COMPUTE, point] - passed.compute) / work
    node = np.floor(deserved / given[PER_NODE]) * given[PER_NODE]
    best = min(max(np.floor(deserved), least), most)
    ahead = stage_outcome(arrays, given, passed, point, best)
    for option in range(1, 13):
        if option == 1:
            stop = np.floor(deserved) + 1.0
        elif option < 4:
            stop = node + (option - 2) * given[PER_NODE]
        elif option < 7:
            stop = passed.first + np.floor(width * (option - 3) / 4.0 + 0.5)
        elif option < 9:
            stop = least if option == 7 else most
        else:
            by = np.ceil(width / (16.0 if option < 11 else 32.0))
            stop = best + (by if option % 2 else -by)
        stop = min(max(stop, least), most)
        if stop == best:
            continue
        other = stage_outcome(arrays, given, passed, point, stop)
        if other.reward > ahead.reward:
            best, ahead = stop, other
    return best, ahead


@jit
def squash(x: float) -> float:
    """[0, ∞) → [0, 1)."""
    return x / (1.0 + x)


@jit
def share(x: float, y: float) -> float:
    """x of x + y, both ≥ 0."""
    return x / (x + y + 1e-6)


@jit
def behind(arrays: Floats32) -> tuple[Floats32, Floats32]:
    """What points have behind them.

    Returns:
        [3, P] the most computation, parameters and stash of a single point behind each one; and [R, P] the fewest
        activations among 2^r points from each one on: row r.
    """
    points = arrays.shape[1]
    largest = np.zeros((3, points), dtype=np.float32)
    for row, channel in enumerate((COMPUTE, WEIGHTS, SAVED)):
        for p in range(points - 2, -1, -1):
            largest[row, p] = max(largest[row, p + 1], arrays[channel, p + 1] - arrays[channel, p])
    rows = 1
    while 1 << rows <= points:
        rows += 1
    fewest = np.empty((rows, points), dtype=np.float32)
    fewest[0] = arrays[SENT]
    for r in range(1, rows):
        for p in range(points):
            fewest[r, p] = min(fewest[r - 1, p], fewest[r - 1, min(p + (1 << (r - 1)), points - 1)])
    return largest, fewest


@jit
def describe_choice(
    out: Floats32,
    arrays: Floats32,
    given: Floats,
    passed: Prefix,
    choice: tuple[int, float, StageOutcome],
    largest: Floats32,
) -> None:
    """The first LOOKED features of a choice (k, q) with its outlook, but for its place beside the best, into `out`."""
    point, stop, ahead = choice
    micro, devices, per_node, remaining = given[MICRO], given[DEVICES], given[PER_NODE], passed.remaining
    total, compute, steady = arrays[COMPUTE, arrays.shape[1] - 1], arrays[COMPUTE, point], micro * ahead.stage
    even = micro * (total - compute) / max(devices - stop, 1.0)
    most = max(devices - stop - (remaining - 1.0), 1.0)
    least = micro * largest[0, point] / most
    out[ESTIMATE] = ahead.reward
    out[3] = 1.0 / ahead.span
    out[4] = ahead.exposed / (abs(ahead.exposed) + ahead.span)
    out[5] = squash(steady)
    out[6] = squash(ahead.rest)
    out[7] = squash(even)
    out[8] = share(steady, ahead.rest)
    out[9] = share(even, ahead.rest)
    out[10] = squash(2.0 * micro * ahead.arrives)
    out[11] = squash(2.0 * micro * ahead.leaves)
    out[12] = squash(ahead.ring)
    out[13] = squash(ahead.rest_ring)
    out[14] = 1.0 if ahead.exposed > 0.0 else 0.0
    out[15] = squash(ahead.memory)
    out[16] = (compute - passed.compute) / total
    out[17] = compute / total
    out[18] = (stop - passed.first) / devices
    out[19] = stop / devices
    out[20] = (ahead.rest_stop - stop) / devices
    out[21] = 1.0 if np.floor(stop / per_node) * per_node == stop else 0.0
    out[22] = share((devices - stop) / remaining, per_node)
    out[23] = stop / per_node - np.floor(stop / per_node)
    out[24] = squash(least)
    out[25] = share(least, even)
    out[26] = share(least, ahead.span)
    out[27] = squash(given[STATE] * largest[1, point])
    out[28] = squash(min(micro, remaining) * largest[2, point] / most)


@jit
def describe_rest(out: Floats32, arrays: Floats32, given: Floats, passed: Prefix, point: int, fewest: Floats32) -> None:
    """What lies behind a point, piece by piece, and how the point stands, into the features behind LOOKED.

    A piece ends at the first point at which so much is computed, and where rounding leaves none, with the model.
    """
    end, micro, remaining = arrays.shape[1] - 1, given[MICRO], passed.remaining
    total, begun, weights = arrays[COMPUTE, end], arrays[COMPUTE, point], arrays[WEIGHTS, end]
    rest_weights = weights - arrays[WEIGHTS, point]
    even, place = micro * total / given[DEVICES], LOOKED
    low = min(np.searchsorted(arrays[COMPUTE], begun + EDGES[0]), end)
    for piece in range(len(EDGES)):
        high = end
        if piece + 1 < len(EDGES):
            wanted = min(begun + EDGES[piece + 1] * (total - begun) / remaining, total)
            high = min(np.searchsorted(arrays[COMPUTE], wanted), end)
        row, length = 0, max(high - low, 1)
        while 2 << row <= length:
            row += 1
        first = min(low + 1, high)
        least = min(fewest[row, first], fewest[row, max(high + 1 - (1 << row), 0)])
        out[place] = share(2.0 * max(arrays[WEIGHTS, high] - arrays[WEIGHTS, low], 0.0), even)
        out[place + 1] = share(2.0 * micro * least, even)
        place, low = place + 2, high
    for part in SHARES:
        center = min(np.searchsorted(arrays[WEIGHTS], arrays[WEIGHTS, point] + part * rest_weights), end)
        out[place] = squash(micro * (total - arrays[COMPUTE, center]))
        out[place + 1] = squash(micro * max(arrays[COMPUTE, center] - begun, 0.0))
        place += 2
    saved = min(micro, remaining) * (arrays[SAVED, end] - arrays[SAVED, point])
    out[place] = squash(given[STATE] * rest_weights / remaining)
    out[place + 1] = squash(saved / max(given[DEVICES] - passed.first, 1.0))
    out[place + 2] = squash(2.0 * micro * arrays[SENT, point])
    out[place + 3] = arrays[WEIGHTS, point] / max(weights, 1e-9)
    out[place + 4] = squash(rest_weights)


@jit
def describe_globally(out: Floats32, arrays: Floats32, given: Floats, passed: Prefix, step: int) -> None:
    """The state as a whole, into `out`."""
    end, micro, devices, per_node = arrays.shape[1] - 1, given[MICRO], given[DEVICES], given[PER_NODE]
    for i in range(len(TAILS)):
        begin = max(end - TAILS[i], 0)
        out[2 * i] = (arrays[COMPUTE, end] - arrays[COMPUTE, begin]) / max(arrays[COMPUTE, end], 1e-9)
        out[2 * i + 1] = (arrays[WEIGHTS, end] - arrays[WEIGHTS, begin]) / max(arrays[WEIGHTS, end], 1e-9)
    place, remaining = 2 * len(TAILS), passed.remaining
    out[place] = remaining / given[STAGES]
    out[place + 1] = 1.0 / given[STAGES]
    out[place + 2] = 1.0 / micro
    out[place + 3] = given[STAGES] / (given[STAGES] + micro)
    out[place + 4] = 1.0 / per_node
    out[place + 5] = per_node / devices
    out[place + 6] = np.log10(max(given[RATIO], 1e-4)) / 4.0
    out[place + 7] = squash(passed.span)
    out[place + 8] = squash(passed.reduce)
    out[place + 9] = squash(arrays[WEIGHTS, end])
    out[place + 10] = 1.0 / (remaining + 1.0)
    out[place + 11] = share((devices - passed.first) / (remaining + 1.0), per_node)
    out[place + 12] = passed.first / per_node - np.floor(passed.first / per_node)
    out[place + 13] = squash(passed.through)
    out[place + 14] = squash(passed.back)
    out[place + 15] = squash(2.0 * micro * arrays[SENT, passed.point]) if passed.point >= 0 else 0.0
    out[LAST] = 1.0 if remaining == 1.0 else 0.0
    out[LAST + 1] = step % 2


@jit
def _describe(problems: Problems, states: States, choice: Integers, features: Floats32, globally: Floats32) -> None:
    for b in range(choice.shape[0]):
        arrays, given, step, out = problems.arrays[b], problems.numbers[b], int(states.step[b]), features[b]
        passed = prefix_of(arrays, given, states.cuts[b], states.firsts[b], step // 2)
        largest, fewest = behind(arrays)
        describe_globally(globally[b], arrays, given, passed, step)
        if step % 2 == 0:
            point, count = passed.point, problems.legal[b, passed.point + 1 :].sum() - int(passed.remaining - 1.0)
            for x in range(count):  # the last points are for the stages after the next one
                point += 1
                while not problems.legal[b, point]:
                    point += 1
                choice[b, x] = point
                stop, ahead = best_stop(arrays, given, passed, point)
                describe_choice(out[x], arrays, given, passed, (point, stop, ahead), largest)
                describe_rest(out[x], arrays, given, passed, point, fewest)
        else:
            point = int(states.cuts[b, step // 2])
            stops = np.arange(passed.first + 1.0, given[DEVICES] - passed.remaining + 1.0)
            if stops.size > MOST_DEVICE_CHOICES:
                worse = np.empty(stops.size)
                for x in range(stops.size):
                    worse[x] = -stage_outcome(arrays, given, passed, point, stops[x]).reward
                stops = np.sort(stops[np.argsort(worse, kind="mergesort")[:MOST_DEVICE_CHOICES]])
            count = stops.size
            describe_rest(out[0], arrays, given, passed, point, fewest)
            for x in range(count):
                choice[b, x] = int(stops[x])
                ahead = stage_outcome(arrays, given, passed, point, stops[x])
                describe_choice(out[x], arrays, given, passed, (point, stops[x], ahead), largest)
                out[x, LOOKED:] = out[0, LOOKED:]
        best = 1e-9
        for x in range(count):
            best = max(best, out[x, ESTIMATE])
        for x in range(count):  # how choices stand beside the best, in logarithms; behind 3 they are all alike
            distance = min(max(np.log(best / max(out[x, ESTIMATE], 1e-9)), 0.0), 3.0)
            out[x, 0], out[x, 1] = distance, 5.0 * min(distance, 0.2)
