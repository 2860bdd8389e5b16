"""What the stages of a plan take under a schedule, and how long its step is at least; compiled by numba.

Stages are PlainStages under a schedule (ScheduledStages). Everything is as cost.staged has it, to rounding.
"""

from __future__ import annotations

from automap_models.core.compiled import jit
from automap_models.core.pass_orders import FORWARD, WHOLE
from automap_models.core.profile import FloatArray
from automap_models.envs.pipeline.table_kernel import transfer
from automap_models.planners.staged.beam_kernel import reduced_s, state_bytes, weights_bytes
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, C, F, H, PlainStages, W
from automap_models.planners.staged.scheduled_stages import TiedUses
from automap_models.simulate.play import KINDS, LATE, MESSAGE, UPDATE, put_ending, put_stage


@jit
def filled(
    plain: PlainStages, tied: TiedUses, route: IntArray, low: int, high: int, limit_s: float, times: FloatArray
) -> bool:
    """Work out what stages low … high - 1 of a route take, and their messages to the next.

    Args:
        times: [1 + 7·S] of the route (simulate.play).

    Returns:
        Whether they all fit and none of them alone takes the limit.
    """
    boundary, device, rounds = route[0], route[1], plain.micro_batches
    for s in range(low, high):
        i, k, a, q = boundary[s], boundary[s + 1], device[s], device[s + 1]
        speed = plain.speeds[q - a]
        nbytes, both = weights_bytes(plain, i, k), plain.sums[C, k] - plain.sums[C, i]
        forward = plain.sums[F, k] - plain.sums[F, i]
        if q - a > plain.most_replicas or not holds_work(plain, both, plain.sums[W, k] - plain.sums[W, i]):
            return False
        stash = plain.held[s] * (plain.sums[H, k] - plain.sums[H, i]) / plain.parts[q - a]
        message = message_s(plain, tied.samples, a, q, device[s + 2]) * plain.sums[A, k] if s + 2 < device.size else 0.0
        if state_bytes(plain, i, k) + stash > plain.memory or rounds * max(both / speed, message) >= limit_s:
            return False
        backward, reduce = (both - forward) / speed, reduced_s(plain, a, q) * nbytes
        put_stage(times, s, forward / speed, backward, message)
        put_ending(times, s, reduce - plain.overlap * min(reduce, backward), plain.update_s * nbytes)
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
def message_s(plain: PlainStages, samples: float, first: int, boundary: int, stop: int) -> float:
    """Seconds per byte from devices first … boundary - 1 to boundary … stop - 1, as large as the fullest replica's."""
    ratio, devices = plain.inter / plain.intra, (float(first), float(boundary), float(stop))
    return transfer(*devices, plain.per_node, ratio, samples) / plain.inter  # type: ignore[no-any-return]


@jit
def least_step(plain: PlainStages, durations: FloatArray, count: int, trip: float) -> float:
    """A lower bound on the step of plans that begin with so many stages.

    Stage s is busy for M·u from when its first micro-batch gets there; it has its first gradient when that has gone to
    the last stage and back; and for w more of them, w = 1 + what it holds more than stage e, w micro-batches pass
    through the stages s … e and back. After its last backward pass come what is left of its all-reduce and its update,
    and of the stages before it a message and a backward pass each.

    Args:
        durations: [1 + 7·S] of which those of the first stages count.
        count: of these.
        trip: from the end of their last one's first forward pass to its first backward pass at least, where others
            follow; 0 where none does.
    """
    rounds = int(plain.micro_batches)
    through, ahead, behind, least = trip, 0.0, 0.0, 0.0
    for at in range(1 + KINDS, 1 + KINDS * count, KINDS):
        through += durations[at + FORWARD] + durations[at + WHOLE] + 2.0 * durations[at - KINDS + MESSAGE]
    for s in range(count):
        at = 1 + KINDS * s
        depth, f, b, x = plain.held[s], durations[at + FORWARD], durations[at + WHOLE], durations[at + MESSAGE]
        if s:
            behind += durations[at - KINDS + MESSAGE] + durations[at - KINDS + WHOLE]
        behind = max(behind, durations[at + LATE] + durations[at + UPDATE])
        first = ahead + f + through + b  # the end of its first backward pass
        if plain.held[plain.held.size - 1] == rounds:  # all forward passes come first, in every stage
            others, messages = (rounds - 1) * (f + b), 2 * rounds - 2
        else:
            others, messages = (rounds - 1) * (f + b) - (depth - 1) * min(f, b), rounds - 1
        last = max(ahead + rounds * (f + b), first + max(others, messages * x))
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
def sum_copies(plain: PlainStages, tied: TiedUses, route: IntArray, p: int, ends: FloatArray) -> None:
    """Let the stages that hold copies of a parameter end when these are summed.

    Args:
        p: which of the parameters.
        ends: [S] when stages have reduced their own gradients.
    """
    boundary, device = route[0], route[1]
    copies, first, last, most, end = 0, 0, 0, 0.0, 0.0
    for s in range(plain.held.size):
        if boundary[s + 1] >= tied.until[p, boundary[s]]:
            first = s if copies == 0 else first
            copies, last, end = copies + 1, s, max(end, ends[s])
            most = max(most, in_fullest_node(plain, device[s], device[s + 1]))
    if copies < 2:
        return
    across = (device[last + 1] - 1) // plain.per_node > device[first] // plain.per_node
    one_way_s = most / plain.inter if across else 1.0 / plain.intra
    end += 2.0 * (copies - 1) / copies * plain.gradient_share * tied.nbytes[p] * one_way_s
    for s in range(first, last + 1):
        if boundary[s + 1] >= tied.until[p, boundary[s]]:
            ends[s] = end


@jit
def least_copies_s(plain: PlainStages, tied: TiedUses, i: int, k: int, a: int, q: int) -> float:
    """What summing copies adds at least to the end of a stage that holds some, where other stages do, too.

    Stage 0 is on device 0 and the last stage on the last one: where the first and the last instructions use a
    parameter, these hold copies.
    """
    least, m, devices = 0.0, plain.sums.shape[1] - 1, plain.parts.size - 1
    for p in range(tied.nbytes.size):
        if k >= tied.until[p, i] and (i >= tied.until[p, 0] or tied.until[p, k] <= m):
            first, last = 0 if tied.until[p, 0] == 1 else a, devices - 1 if tied.until[p, m - 1] <= m else q - 1
            across = last // plain.per_node > first // plain.per_node
            one_way_s = in_fullest_node(plain, a, q) / plain.inter if across else 1.0 / plain.intra
            least = max(least, plain.gradient_share * tied.nbytes[p] * one_way_s)
    return least


@jit
def in_fullest_node(plain: PlainStages, first: int, stop: int) -> float:
    """How many of the devices first … stop - 1 are in the node that has most of them."""
    begin = (first // plain.per_node + 1.0) * plain.per_node  # of the node after that of the first
    end = (stop - 1) // plain.per_node * plain.per_node  # of the node of the last
    if end < begin:
        return stop - first
    return plain.per_node if end > begin else max(begin - first, stop - end)
