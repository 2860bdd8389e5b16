"""What the stages of a plan take under a schedule, and how long its step is at least; compiled by numba.

    boundary     0        i               k            m       stage s is between boundaries i and k, of m,
                 |   …    |    stage s    |     …      |       on devices a … q-1, of D, in sharding j;
    device       0        a               q            D       stage s+1 is on devices q … e-1

    stages       stage_arrays.StageArrays: prefix sums at boundaries, so that a stage is a difference of two columns
    route        [3, S+1] a plan: boundary and device where each stage begins, and the end; the sharding of each
    times        [1 + 7·S] of a route (simulate.play): 0, then of each stage f, b, message, what is left of the
                 all-reduce, update …; durations are the same of the first stages alone

    u = f + b    what a stage takes for a micro-batch                                                       stage_s
    late         AR - overlap · min(AR, b)                                                                  ending_s
    fits         σ·ΣW + Σfrozen + w·Σstash / parts ≤ memory, w the micro-batches that it holds              held_bytes
    step ≥ max over s of when its last backward pass ends, plus what comes after that                       least_step

Everything is as cost.staged has it, to rounding.
"""

from __future__ import annotations

from automap_models.core.compiled import inlined, jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import BACKWARD, FORWARD
from automap_models.planners.staged.stage_arrays import (
    FROZEN,
    GATHER,
    GRADIENT,
    MEMORY,
    PADDING,
    PARTS,
    RATE,
    RING,
    START,
    START_FORWARD,
    TRAINED,
    UNTRAINED,
    C,
    F,
    H,
    StageArrays,
    W,
)
from automap_models.simulate.play import KINDS, LATE, MESSAGE, UPDATE, put_stage

SLACK = 1e-9
"""Relative rounding of sums and of limits: shorter by less is not shorter."""
BOUNDARY, DEVICE, SHARDING = range(3)
"""Rows of routes."""


@inlined
def weights_bytes(stages: StageArrays, kind: int, i: int, k: int) -> float:
    """Parameters of a stage between two boundaries, on each device, with the copies of tied ones."""
    nbytes = stages.sums[kind, W, k] - stages.sums[kind, W, i]
    for p in range(stages.copies_end.shape[0]):
        if k >= stages.copies_end[p, i]:
            nbytes += stages.copies_nbytes[kind, TRAINED, p]
    return nbytes  # type: ignore[no-any-return]


@inlined
def held_bytes(stages: StageArrays, kind: int, i: int, k: int, in_flight: int, parts: float) -> float:
    """σ·ΣW + Σfrozen of a stage between two boundaries, with copies, and activations of parts of micro-batches."""
    nbytes = stages.state_factor * weights_bytes(stages, kind, i, k)
    nbytes += stages.sums[kind, FROZEN, k] - stages.sums[kind, FROZEN, i]
    for p in range(stages.copies_end.shape[0]):
        if k >= stages.copies_end[p, i]:
            nbytes += stages.copies_nbytes[kind, UNTRAINED, p]
    return nbytes + in_flight * (stages.sums[kind, H, k] - stages.sums[kind, H, i]) / parts  # type: ignore[no-any-return]


@inlined
def stage_s(stages: StageArrays, sharding: int, i: int, k: int, a: int, q: int) -> tuple[float, float]:
    """f and b of a stage in a sharding in which it may be."""
    kind, rate, sums = stages.kind[sharding, a, q], stages.speeds[sharding, a, q, RATE], stages.sums
    both = (sums[kind, C, k] - sums[kind, C, i] + sums[kind, GATHER, i] + sums[kind, GATHER, k]) / rate
    forward = (sums[kind, F, k] - sums[kind, F, i] + sums[kind, GATHER, i]) / rate
    both += sums[kind, START, k] - sums[kind, START, i]
    forward += sums[kind, START_FORWARD, k] - sums[kind, START_FORWARD, i]
    return forward, both - forward


@inlined
def ending_s(
    stages: StageArrays, sharding: int, i: int, k: int, a: int, q: int, backward: float
) -> tuple[float, float]:
    """What of its all-reduce comes after a stage's last backward pass, and the update of its parameters."""
    kind = stages.kind[sharding, a, q]
    nbytes = weights_bytes(stages, kind, i, k)
    reduce = stages.speeds[sharding, a, q, RING] * nbytes
    reduce += stages.sums[kind, GRADIENT, k] - stages.sums[kind, GRADIENT, i]
    return reduce - stages.overlap * min(reduce, backward), stages.update_s * nbytes


@inlined
def fits(stages: StageArrays, route: IntArray, s: int, sharding: int) -> bool:
    """Whether stage s of a route may begin where it does, on its devices, and these hold it."""
    i, k, a, q = route[BOUNDARY, s], route[BOUNDARY, s + 1], route[DEVICE, s], route[DEVICE, s + 1]
    kind = stages.kind[sharding, a, q]
    if kind < 0 or i < stages.windows[s, 0] or i > stages.windows[s, 1]:
        return False
    nbytes = held_bytes(stages, kind, i, k, stages.in_flight[s], stages.speeds[sharding, a, q, PARTS])
    return bool(nbytes <= stages.speeds[sharding, a, q, MEMORY])


@jit
def filled(
    stages: StageArrays, route: IntArray, low: int, high: int, choose: bool, limit_s: float, times: FloatArray
) -> bool:
    """Work out what stages low … high - 1 of a route take, and their messages to the next.

    Args:
        choose: whether each stage gets the sharding that takes least of those that fit; else those of the route stay.
        times: [1 + 7·S] of the route (simulate.play).

    Returns:
        Whether they all fit and none of them alone takes the limit.
    """
    boundary, device, rounds = route[BOUNDARY], route[DEVICE], stages.micro_batches
    for s in range(low, high):
        i, k, a, q = boundary[s], boundary[s + 1], device[s], device[s + 1]
        if not holds_work(stages, i, k):
            return False
        least, chosen = limit_s, -1
        for j in range(stages.kind.shape[0]):
            if not (choose or j == route[SHARDING, s]) or not fits(stages, route, s, j):
                continue
            forward, backward = stage_s(stages, j, i, k, a, q)
            load = rounds * (forward + backward)
            if load >= limit_s:
                continue
            late, update = ending_s(stages, j, i, k, a, q, backward)
            if load + late < least or chosen < 0:
                least, chosen = load + late, j
                put_stage(times, s, forward, backward, late, update)
        if chosen < 0:
            return False
        route[SHARDING, s] = chosen
    for s in range(low, min(high, stages.in_flight.size - 1)):
        message = message_s(stages, route, s) * stages.crossing[boundary[s + 1]]
        if rounds * message >= limit_s:
            return False
        times[1 + KINDS * s + MESSAGE] = message
    return True


@inlined
def holds_work(stages: StageArrays, i: int, k: int) -> bool:
    """Whether what is between two boundaries is enough for a stage."""
    both, nbytes = stages.sums[0, C, k] - stages.sums[0, C, i], stages.sums[0, W, k] - stages.sums[0, W, i]
    return enough(stages.least_C, stages.least_W, both, nbytes)


@jit
def enough(least_C: float, least_W: float, both: float, nbytes: float) -> bool:
    """Whether so many seconds and bytes of parameters are (core.constraints.least_work)."""
    if least_C < 0.0:
        return True
    if nbytes <= 0.0 and least_W > 0.0:
        return False
    return both >= least_C or nbytes >= least_W


@jit
def message_s(stages: StageArrays, route: IntArray, s: int) -> float:
    """Seconds per byte from stage s of a route to the one behind it, as large as the fullest replica's."""
    a, q, e = route[DEVICE, s], route[DEVICE, s + 1], route[DEVICE, s + 2]
    sender, receiver = route[SHARDING, s], route[SHARDING, s + 1]
    return moved_s(stages, max(stages.speeds[sender, a, q, PADDING], stages.speeds[receiver, q, e, PADDING]), a, q, e)


@jit
def moved_s(stages: StageArrays, padding: float, first: int, boundary: int, stop: int) -> float:
    """cost.collectives.transfer_s_per_byte."""
    nodes, slowest, stays = stages.nodes, 0.0, 0.0
    here = nodes.number[boundary]
    if boundary != nodes.begin[here]:
        # The sides meet inside a node: what both have there stays there, as slices go in the order of devices.
        sent = (boundary - max(first, nodes.begin[here])) / (boundary - first)
        stays = max(0.0, sent + (min(stop, nodes.begin[here + 1]) - boundary) / (stop - boundary) - 1.0)
    for node in range(nodes.number[first], nodes.number[stop - 1] + 1):
        begin, end = nodes.begin[node], nodes.begin[node + 1]
        share = max(
            max(min(boundary, end) - max(first, begin), 0) / (boundary - first),
            max(min(stop, end) - max(boundary, begin), 0) / (stop - boundary),
        )
        share -= stays if node == here else 0.0
        slowest = max(slowest, min(padding * share, 1.0) / nodes.inter[node])
    return max(slowest, min(padding * stays, 1.0) / nodes.intra[here])  # type: ignore[no-any-return]


@jit
def sent_s(stages: StageArrays, padding: float, first: int, boundary: int) -> float:
    """Of `moved_s` what the senders take outside the receivers' first node, whoever receives."""
    nodes, slowest = stages.nodes, 0.0
    for node in range(nodes.number[first], nodes.number[boundary]):
        share = (min(boundary, nodes.begin[node + 1]) - max(first, nodes.begin[node])) / (boundary - first)
        slowest = max(slowest, min(padding * share, 1.0) / nodes.inter[node])
    return slowest


@jit
def least_step(stages: StageArrays, durations: FloatArray, count: int, trip: float) -> float:
    """A lower bound on the step of plans that begin with so many stages.

    Stage s is busy for M·u from when its first micro-batch gets there; it has its first gradient when that has gone to
    the last stage and back; and for w more of them, w = 1 + what it holds more than stage e, w micro-batches pass
    through the stages s … e and back. After its last backward pass come what is left of its all-reduce and its update,
    and of the stages before it a message and a backward pass each.

    Args:
        durations: [1 + 7·S] of which those of the first stages count.
        trip: from the end of their last one's first forward pass to its first backward pass at least, where others
            follow; 0 where none does.
    """
    rounds = int(stages.micro_batches)
    # through: what the first micro-batch goes through behind stage s and back; ahead: before it, on its way there
    through, ahead, behind, least = trip, 0.0, 0.0, 0.0
    for k in range(1 + KINDS, 1 + KINDS * count, KINDS):
        through += durations[k + FORWARD] + durations[k + BACKWARD] + 2.0 * durations[k - KINDS + MESSAGE]
    for s in range(count):
        k = 1 + KINDS * s
        depth, f, b, x = stages.in_flight[s], durations[k + FORWARD], durations[k + BACKWARD], durations[k + MESSAGE]
        if s:
            behind += durations[k - KINDS + MESSAGE] + durations[k - KINDS + BACKWARD]
        behind = max(behind, durations[k + LATE] + durations[k + UPDATE])
        first = ahead + f + through + b  # the end of its first backward pass
        if stages.in_flight[stages.in_flight.size - 1] == rounds:  # all forward passes come first, in every stage
            others, messages = (rounds - 1) * (f + b), 2 * rounds - 2
        else:
            # so many passes of one kind may lie inside the round trip of the first or the last micro-batch
            others, messages = (rounds - 1) * (f + b) - (depth - 1) * min(f, b), rounds - 1
        last = max(ahead + rounds * (f + b), first + max(others, messages * x))
        window = 0.0
        for e in range(s, count):
            other = 1 + KINDS * e
            window += durations[other + FORWARD] + durations[other + BACKWARD]
            # Between s and e only w micro-batches may be under way: the next one starts when the first is back.
            w = depth - stages.in_flight[e] + 1
            turns = (rounds - 1 - depth) // w + 1 if rounds > depth else 0
            last = max(last, first + turns * window + (rounds - 1 - turns * w) * b)
            window += 2.0 * durations[other + MESSAGE]
        least = max(least, last + behind)
        ahead += f + x
        if s + 1 < count:
            through -= durations[k + KINDS + FORWARD] + durations[k + KINDS + BACKWARD] + 2.0 * x
    return least


@jit
def pipeline_length(
    stages: StageArrays, durations: FloatArray, last: int, x: float, span: float, exposed: float, length: float
) -> float:
    """Auto-MAP's length L (cost.staged) of a plan that begins with some stages, from the last of these to the first.

    Args:
        durations: [1 + 7·S] of these stages.
        x: of the message to what comes behind it, at least.
        span, exposed, length: of that (step_bounds); 0, as little as can be and 0 where nothing does.
    """
    rounds = stages.micro_batches
    for s in range(last, -1, -1):
        k = 1 + KINDS * s
        x = x if s == last else durations[k + MESSAGE]
        f, b, late = durations[k + FORWARD], durations[k + BACKWARD], durations[k + LATE] + durations[k + UPDATE]
        span = max(rounds * (f + b), f + b + max(2.0 * rounds * x, 2.0 * x + span))
        exposed = max(late, exposed - x - b)
        length = max(span + exposed, f + x + length)
    return length


@jit
def sum_copies(stages: StageArrays, route: IntArray, p: int, ends: FloatArray) -> None:
    """Let the stages that hold copies of a parameter end when these are summed (cost.staged.tied_sums).

    Args:
        ends: [S] when stages have reduced their own gradients.
    """
    nodes, boundary, device = stages.nodes, route[BOUNDARY], route[DEVICE]
    copies, first, last, end, inside, leaving, slowest = 0, 0, 0, 0.0, 0.0, 0.0, 1e300
    for s in range(stages.in_flight.size):
        if boundary[s + 1] >= stages.tied_until[p, boundary[s]]:
            first = s if copies == 0 else first
            copies, last, end = copies + 1, s, max(end, ends[s])
            a, q = device[s], device[s + 1]
            nbytes = stages.tied_nbytes[stages.kind[route[SHARDING, s], a, q], p]
            fullest, link = most_and_slowest(stages, a, q)
            inside, leaving, slowest = max(inside, nbytes), max(leaving, nbytes * fullest), min(slowest, link)
    if copies < 2:
        return
    here = nodes.number[device[first]]
    across = nodes.number[device[last + 1] - 1] > here
    one_way_s = leaving / slowest if across else inside / nodes.intra[here]
    end += 2.0 * (copies - 1) / copies * stages.gradient_share * one_way_s
    for s in range(first, last + 1):
        if boundary[s + 1] >= stages.tied_until[p, boundary[s]]:
            ends[s] = end


@jit
def least_copies_s(stages: StageArrays, kind: int, i: int, k: int, a: int, q: int) -> float:
    """What summing copies adds at least to the end of a stage that holds some, where other stages do, too.

    Stage 0 is on device 0 and the last stage on the last one: where the first and the last instructions use a
    parameter, these hold copies.
    """
    least, until, m, number = 0.0, stages.tied_until, stages.crossing.size - 1, stages.nodes.number
    for p in range(until.shape[0]):
        if k >= until[p, i] and (i >= until[p, 0] or until[p, k] <= m):
            first = 0 if until[p, 0] == 1 else a
            last = number.size - 1 if until[p, m - 1] <= m else q - 1
            fullest, slowest = most_and_slowest(stages, a, q)
            one_way_s = fullest / slowest if number[last] > number[first] else 1.0 / stages.nodes.fastest
            least = max(least, stages.gradient_share * stages.tied_nbytes[kind, p] * one_way_s)
    return least


@jit
def most_and_slowest(stages: StageArrays, first: int, stop: int) -> tuple[float, float]:
    """How many of the devices first … stop - 1 are in the node that has most of them, and their nodes' slowest link."""
    nodes, most, slowest = stages.nodes, 0, 1e300
    for node in range(nodes.number[first], nodes.number[stop - 1] + 1):
        most = max(most, min(stop, nodes.begin[node + 1]) - max(first, nodes.begin[node]))
        slowest = min(slowest, nodes.inter[node])
    return float(most), slowest
