"""What the stages of a plan take under a schedule, and how long its step is at least; compiled by numba.

Stages are PlainStages, their gradients ScheduledStages. Everything is as cost.staged and cost.overlap have it, to
rounding.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.pass_orders import FORWARD, WHOLE
from automap_models.core.profile import FloatArray
from automap_models.cost.overlap import BUCKET_BYTES
from automap_models.envs.pipeline.table_kernel import transfer
from automap_models.planners.staged.beam_kernel import reduced_s, state_bytes, weights_bytes
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, C, F, H, PlainStages, W
from automap_models.planners.staged.scheduled_stages import BACKWARD, BYTES, CLOSES, HOLDER, USES, Buckets
from automap_models.simulate.play import KINDS, LATE, MESSAGE, put_gradients, put_stage


@jit
def filled(
    plain: PlainStages, own: Buckets, route: IntArray, low: int, high: int, limit_s: float, times: FloatArray
) -> bool:
    """Work out what stages low … high - 1 of a route take, and their messages to the next.

    Args:
        times: [1 + 8·S] of the route (simulate.play).

    Returns:
        Whether they all fit and none of them alone takes the limit.
    """
    boundary, device, rounds = route[0], route[1], plain.micro_batches
    for s in range(low, high):
        i, k, a, q = boundary[s], boundary[s + 1], device[s], device[s + 1]
        parts = plain.parts[q - a]
        nbytes, both = weights_bytes(plain, i, k), plain.sums[C, k] - plain.sums[C, i]
        forward = plain.sums[F, k] - plain.sums[F, i]
        if q - a > plain.most_replicas or not holds_work(plain, both, plain.sums[W, k] - plain.sums[W, i]):
            return False
        stash = plain.held[s] * (plain.sums[H, k] - plain.sums[H, i]) / parts
        message = message_s(plain, own, a, q, device[s + 2]) * plain.sums[A, k] if s + 2 < device.size else 0.0
        if state_bytes(plain, i, k) + stash > plain.memory or rounds * max(both / parts, message) >= limit_s:
            return False
        put_stage(times, s, forward / parts, (both - forward) / parts, message)
        ring = reduced_s(plain, a, q)
        reduce = ring * nbytes
        late = late_s(own, own.boundary[i], own.boundary[k], parts, ring) if reduce > 0.0 else 0.0
        node = (q - 1) // plain.per_node
        shares = s > 0 and (node > a // plain.per_node or node == device[s - 1] // plain.per_node)
        put_gradients(times, s, reduce, late, shares)
    return True


@jit
def holds_work(plain: PlainStages, both: float, own_bytes: float) -> bool:
    """Whether so many seconds and bytes of parameters are enough for a stage (core.constraints.least_work)."""
    if plain.least_C < 0.0:
        return True
    if own_bytes <= 0.0 and plain.least_W > 0.0:
        return False
    return both >= plain.least_C or own_bytes >= plain.least_W


@jit
def message_s(plain: PlainStages, own: Buckets, first: int, boundary: int, stop: int) -> float:
    """Seconds per byte from devices first … boundary - 1 to boundary … stop - 1, as large as the fullest replica's."""
    ratio, devices = plain.inter / plain.intra, (float(first), float(boundary), float(stop))
    return transfer(*devices, plain.per_node, ratio, own.samples) / plain.inter  # type: ignore[no-any-return]


@jit
def late_s(own: Buckets, begin: int, end: int, parts: float, ring: float) -> float:
    """How long after its last backward pass a stage's buckets are reduced if nothing else uses its links.

    Args:
        begin, end: its instructions, end not among them; some of them have parameters.
        parts: into which it splits a micro-batch; ring: seconds per byte of its all-reduces.
    """
    late, stop = -np.inf, end
    while True:
        left = own.sums[BYTES, stop] - own.sums[BYTES, begin]
        for p in range(own.tied_bytes.size):
            if own.following[USES + p, 0] < begin and own.following[USES + p, begin] < stop:
                left += own.tied_bytes[p]
        earliest = bucket_begin(own, begin, stop)
        if earliest >= stop:
            return late
        late = max(late, ring * left - (own.sums[BACKWARD, earliest] - own.sums[BACKWARD, begin]) / parts)
        stop = earliest


@jit
def bucket_begin(own: Buckets, begin: int, stop: int) -> int:
    """The earliest instruction of the bucket whose latest one is the last before `stop`; `stop` where there is none."""
    full = own.following[CLOSES, stop]
    for p in range(own.tied_bytes.size):
        if own.following[USES + p, 0] < begin and full <= own.following[USES + p, begin] < stop:
            return bucket_begin_with_copies(own, begin, stop)
    return full if full >= begin else min(own.following[HOLDER, begin], stop)  # type: ignore[no-any-return]


@jit
def bucket_begin_with_copies(own: Buckets, begin: int, stop: int) -> int:
    """The same where copies of tied weights are among its instructions, one instruction after another."""
    nbytes, earliest = 0.0, stop
    for j in range(stop - 1, begin - 1, -1):
        before = nbytes
        nbytes += own.sums[BYTES, j + 1] - own.sums[BYTES, j]
        for p in range(own.tied_bytes.size):
            if own.following[USES + p, 0] < begin and own.following[USES + p, begin] == j:
                nbytes += own.tied_bytes[p]
        if nbytes > before:
            earliest = j
        if nbytes >= BUCKET_BYTES:
            break
    return earliest


@jit
def least_step(plain: PlainStages, durations: FloatArray) -> float:
    """A lower bound on a plan's step.

    Stage s is busy for M·u from when its first micro-batch gets there; it has its first gradient when that has gone to
    the last stage and back; and for w more of them, w = 1 + what it holds more than stage e, w micro-batches pass
    through the stages s … e and back. After its last backward pass its gradients are late, and the stages before it
    have a message and a backward pass each to come.
    """
    count, rounds = plain.held.size, int(plain.micro_batches)
    through, ahead, behind, least = 0.0, 0.0, 0.0, 0.0
    for at in range(1 + KINDS, durations.size, KINDS):
        through += durations[at + FORWARD] + durations[at + WHOLE] + 2.0 * durations[at - KINDS + MESSAGE]
    for s in range(count):
        at = 1 + KINDS * s
        depth, f, b, x = plain.held[s], durations[at + FORWARD], durations[at + WHOLE], durations[at + MESSAGE]
        if s:
            behind += durations[at - KINDS + MESSAGE] + durations[at - KINDS + WHOLE]
        behind = max(behind, durations[at + LATE])
        first = ahead + f + through + b  # the end of its first backward pass
        last = max(ahead + rounds * (f + b), first + (rounds - 1) * b + (rounds - depth) * f)
        window = 0.0
        for e in range(s, count):
            other = 1 + KINDS * e
            window += durations[other + FORWARD] + durations[other + WHOLE]
            w = depth - plain.held[e] + 1
            turns = (rounds - 1 - depth) // w + 1 if rounds > depth else 0
            last = max(last, first + turns * window + (rounds - 1 - turns * w) * b)
            window += 2.0 * durations[other + MESSAGE]
        least = max(least, last + behind)
        ahead += f + x
        if s + 1 < count:
            through -= durations[at + KINDS + FORWARD] + durations[at + KINDS + WHOLE] + 2.0 * x
    return least


@jit
def summed_s(plain: PlainStages, own: Buckets, route: IntArray, p: int, ends: FloatArray) -> float:
    """When the copies of a parameter are summed, which becomes the end of the stages that hold them; 0 for one copy.

    Args:
        p: which of the parameters.
        ends: [S] when stages have reduced their own gradients.
    """
    boundary, device = route[0], route[1]
    copies, first, last, end = 0, 0, 0, 0.0
    for s in range(plain.held.size):
        if own.following[USES + p, own.boundary[boundary[s]]] < own.boundary[boundary[s + 1]]:
            first = s if copies == 0 else first
            copies, last, end = copies + 1, s, max(end, ends[s])
    if copies < 2:
        return 0.0
    across = (device[last + 1] - 1) // plain.per_node > device[first] // plain.per_node
    end += 2.0 * (copies - 1) / copies * own.tied_bytes[p] / (plain.inter if across else plain.intra)
    for s in range(first, last + 1):
        if own.following[USES + p, own.boundary[boundary[s]]] < own.boundary[boundary[s + 1]]:
            ends[s] = end
    return end  # type: ignore[no-any-return]
