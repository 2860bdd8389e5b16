"""Lower bounds on steps and on the length L: of all numbers of stages at once, by dynamic programming from the last.

    rest[a, i, number, lane]      the least of the last stages, from boundary i and device a on

           i            k                the model's end
           ├── u, f, b ─┼── x ──┤ the stages behind it: rest[q, k, ·, lane - 1]
              a … q-1      q …

A lane is a schedule and a number of last stages: as warm-ups are counted from the last stage, what follows a stage does
not depend on how many there are before it. A place has four numbers, each at its least by itself, which may belong to
different plans; x is the message to the devices that receive it fastest, w the micro-batches that the stage holds, v
those that the stage behind it holds, M of them in all.

    a, q      devices a … q-1 of the stage         messages  [D+1, D+1] seconds per byte of x (least_messages)
    i, k      boundaries where it begins and ends  windows   [D+1, 2] first and last boundary of places on a device
    j, lane   its sharding; of the stages left     alive     [D+1, m+1, 2] first lane that counts, one after the last
    counts    [8, lanes] by lane (COUNTS)          behind    [m+1, 4, lanes] `rest` behind k with the message x
    rows      [6, m+1] prefix sums for a, q, j     begins    [S, 2] where stages may begin, whatever their devices

    TRIP      u + 2·x + trip                     the round trip of a micro-batch
    HEAD      u                                  of the first of these stages
    SPAN      from the first pass of the stage to its last one, the largest of
                u + max((M+1)·x + trip, 2·x + span)     messages one after the other (2·M with GPipe), and what follows
                TRIP + (M-1)·u - (w-1)·min(f, b)        passes that no round trip hides (0 instead of w-1 with GPipe)
                TRIP + n·(u + 2·x + head) + (M-1 - n·t)·b    t = 1 + w - v micro-batches go round between both, n turns
                TRIP + n·TRIP + (M-1 - n·w)·b                w of them go round through all
    LENGTH    max(SPAN + what comes after the last pass, f + x + length)        until all parameters are updated

By the length L nothing waits for round trips: TRIP is 0 behind every stage, no turns are counted, and a place has T
and R of cost.staged, each with its terms at their least, the second in place of HEAD:

    SPAN      max(M·u, u + max(2·M·x, 2·x + span))                  from the first pass of the stage to its last one
    EXPOSED   max(AR, exposed - x - b)          what all-reduces take beyond the backward passes before them
    LENGTH    max(SPAN + EXPOSED, f + x + length)

A place through which no plan stays below the limit has BIG. What begins at boundary 0 and device 0 is a whole plan.

Why these are bounds. A stage runs w forward passes before its first backward pass (core.schedules), and from then on by
turns, so that B_m comes right after F_{m+w-1} and right before F_{m+w}:

    the stage    F0 F1 … F_{w-1}  B0 F_w  B1 F_{w+1}  …  B_{M-w-1} F_{M-1}  B_{M-w} … B_{M-1}
    behind it    F0 ──► last stage ──► B0                F_{M-1} ──► last stage ──► B_{M-1}
                 └─── TRIP ───┘                          └────── TRIP ──────┘

The first micro-batch makes its round trip, and the last one; between them a stage has M-1 passes of either kind to run,
of which w-1 forward passes may lie inside the first trip or w-1 backward passes inside the last one, the shorter of
them at least. Every w-th micro-batch waits for the round trip of the one that is w before it. The stage behind runs
B_{j-v+1} right after F_j, which this stage follows with F_{j+1+w-v}: so t = 1 + w - v micro-batches take a turn between
the two. The link carries the messages of all micro-batches one after the other, the last of which makes its round trip
behind it and comes back; with GPipe all M messages back follow that trip. No term falls when a number behind it rises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
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
    C,
    F,
    H,
    Places,
    StageArrays,
    W,
    arrays_of,
    stage_arrays,
)
from automap_models.planners.staged.stage_devices import MOST_DEVICES
from automap_models.planners.staged.stage_kernel import SLACK, enough, least_copies_s, moved_s, sent_s

TRIP, HEAD, SPAN, LENGTH = NUMBERS = range(4)
EXPOSED = HEAD
"""Rows of the numbers of a place."""
IN_FLIGHT, HIDDEN, TURNS, OTHERS, ROUNDS, MORE, BACK, TRIPS = COUNTS = range(8)
"""Rows of counts, by lane: w, what of the passes a round trip hides, the turns between two stages and the backward
passes that they leave, the same of the rounds through all; messages one after the other beside those of a round trip;
and 1 where passes wait for round trips, 0 by the length L."""
BIG = 1e300
"""Of what is not: finite, so that nothing times it is nothing."""
MOST_BYTES = 1 << 28
"""Of the numbers of a table; larger ones are left alone."""


class StepBounds:
    """Bounds of problems that differ in their stages and schedules alone.

    Args:
        problems: one or more of several stages, under schedules or by the length L.
        places: instructions after which they may be cut; None for those of their grid.
    """

    def __init__(self, problems: Sequence[StagedProblem], places: IntArray | None = None) -> None:
        self.problems = tuple(problems)
        self._deepest = max(self.problems, key=lambda problem: problem.stages)
        self._places = places

    @cached_property
    def _stages(self) -> StageArrays:
        return stage_arrays(self._deepest, self._places)[0]

    @cached_property
    def messages(self) -> FloatArray:
        """[D+1, D+1] see least_messages; nothing on more devices than all triples of which are soon gone through."""
        if self._stages.devices > MOST_DEVICES:
            return np.zeros((self._stages.devices + 1,) * 2)
        if self._deepest.constraints.equal_replicas:
            return least_messages(self._stages)
        return _messages(Places(self._deepest, None))

    @cached_property
    def _counts(self) -> FloatArray:
        """[8, L] by the number of last stages less one."""
        problem = self._deepest
        micro, all_forwards_first = float(problem.micro_batches), problem.schedule == "gpipe"
        in_flight = [float(problem.in_flight(s)) for s in range(problem.stages - 1, -1, -1)]
        counts = np.zeros((len(COUNTS), problem.stages))
        counts[IN_FLIGHT], counts[BACK] = in_flight, 2.0 * micro
        for last, w in enumerate(in_flight if problem.schedule else ()):
            between = 1.0 + w - in_flight[last - 1] if last else 1.0
            waits = micro - 1.0 - w
            turns = waits // between + 1.0 if last and waits >= 0.0 else 0.0
            rounds = waits // w + 1.0 if waits >= 0.0 else 0.0
            hidden, back = (0.0, micro) if all_forwards_first else (w - 1.0, 1.0)
            remaining = micro - 1.0 - turns * between, rounds, micro - 1.0 - rounds * w
            counts[:, last] = w, hidden, turns, *remaining, micro + back - 2.0, 1.0
        return counts

    def rest(self, limit_s: float, deadline: Deadline) -> FloatArray | None:
        """[D+1, m+1, 4, L] the least of what begins at each place (least_rests); None where time or room are too short.

        Args:
            limit_s: plans that take longer are of no interest.
            deadline: when to stop; loops are counted (planners.effort).
        """
        stages, limit_s = self._stages, min(limit_s, SLACK * BIG)
        shape = stages.devices + 1, stages.last + 1, len(NUMBERS), stages.stages
        if 8 * int(np.prod(shape)) > MOST_BYTES or deadline.passed:
            return None
        windows = self._begin_windows(limit_s)  # the loops narrow them
        most, limit = min(deadline.remaining_s / effort.RESTS.unit_s, 1e15), limit_s * (1.0 + SLACK)
        rest, steps = least_rests(stages, self.messages, windows, self._counts, limit, most)
        effort.count(effort.RESTS, steps)
        return rest if steps <= most else None

    def _begin_windows(self, limit_s: float) -> IntArray:
        """[D+1, 2] the first and the last boundary where a stage may begin on each device.

        The devices before it get done within the limit what lies before it, and those behind it the rest; where they
        may share operators, nothing is known.
        """
        stages = self._stages
        work, slowdowns = stages.sums[0, C], self._deepest.slowdowns
        speed = np.ones(stages.devices) if slowdowns is None else 1.0 / slowdowns
        done = limit_s * (1.0 + SLACK) / stages.micro_batches * np.concatenate(([0.0], np.cumsum(speed)))
        doubt = SLACK * work[-1] if len(stages.kind) == 1 else np.inf
        first = np.searchsorted(work, work[-1] - (done[-1] - done) - doubt)
        last = np.searchsorted(work, done + doubt, side="right") - 1
        windows = np.stack((first, last), axis=1)
        windows[0], windows[-1] = (0, 0), (stages.last, stages.last)
        return windows

    def least_s(self, limit_s: float, deadline: Deadline) -> dict[StagedProblem, float]:
        """A step that no plan of each problem on its places falls below, at most the limit; 0 where it is not known."""
        rest = self.rest(limit_s, deadline)
        if rest is None:
            return dict.fromkeys(self.problems, 0.0)
        return {problem: min(self.least_of(rest, problem.stages), limit_s) for problem in self.problems}

    def least_of(self, rest: FloatArray, stages: int) -> float:
        """What plans of so many stages take at least, less rounding."""
        return float(rest[0, 0, LENGTH, stages - 1]) * (1.0 - SLACK)


def evenly_s(problem: StagedProblem) -> float:
    """No plan is shorter: all micro-batches, each instruction in its best sharding, evenly on all devices."""
    work_s = np.min([sharding.degree * sharding.C for sharding in problem.all_shardings], axis=0).sum()
    return float(problem.micro_batches * work_s / problem.capacity)


def least_step_s(problem: StagedProblem, limit_s: float, deadline: Deadline) -> float:
    """No plan of the problem on its grid is shorter; at most the limit."""
    least_s = evenly_s(problem)
    if problem.stages > 1 and least_s < limit_s:
        least_s = max(least_s, StepBounds([problem]).least_s(limit_s, deadline)[problem])
    return min(least_s, limit_s)


def step_bounds(problems: Iterable[StagedProblem], places: IntArray | None) -> list[StepBounds]:
    """Bounds of problems of one profile that differ in stages, micro-batches and schedules."""
    groups: dict[tuple[int, str | None, int], list[StagedProblem]] = {}
    for problem in problems:
        constraints = problem.constraints
        alone = problem.stages if constraints.equal_replicas or constraints.pins or constraints.together else 0
        groups.setdefault((problem.micro_batches, problem.schedule, alone), []).append(problem)
    return [StepBounds(group, places) for group in groups.values()]


@lru_cache(maxsize=16)
def _messages(where: Places) -> FloatArray:
    """Of any places to cut: they depend on the devices alone."""
    return least_messages(arrays_of(where)[0])


@jit
def least_messages(stages: StageArrays) -> FloatArray:
    """[D+1, D+1] seconds per byte from devices a … q-1 to q and some after it, at least; 0 where no stage may be."""
    shardings, devices = stages.kind.shape[0], stages.kind.shape[1] - 1
    least, padding = np.zeros((devices + 1, devices + 1)), np.full((devices + 1, devices + 1), np.inf)
    for a in range(devices):
        for q in range(a + 1, devices + 1):
            for j in range(shardings):
                if stages.kind[j, a, q] >= 0:
                    padding[a, q] = min(padding[a, q], stages.speeds[j, a, q, PADDING])
    for a in range(devices):
        for q in range(a + 1, devices):
            fastest, sent = np.inf, sent_s(stages, padding[a, q], a, q)
            for e in range(devices, q, -1):  # many receivers are mostly the fastest
                most = max(padding[a, q], padding[q, e])
                if most < np.inf:
                    fastest = min(fastest, moved_s(stages, most, a, q, e))
                if fastest <= sent:
                    break  # and no receiver is faster
            least[a, q] = fastest if fastest < np.inf else 0.0
    return least


@jit
def least_rests(  # noqa: PLR0912 -- one loop over all places, ends and shardings
    stages: StageArrays,
    messages: FloatArray,
    windows: IntArray,
    counts: FloatArray,
    limit_s: float,
    most: float,
) -> tuple[FloatArray, float]:
    """[D+1, m+1, 4, lanes] the least of what begins at each place, and how many steps the loop over lanes took.

    Args:
        stages: which micro-batches they hold is in the counts.
        messages, windows: see least_messages and StepBounds.
        counts: [8, lanes] by lane.
        most: steps after which to stop; what is returned then says nothing.
    """
    devices, m, lanes, micro = messages.shape[0] - 1, stages.crossing.size - 1, counts.shape[1], stages.micro_batches
    rest, behind = np.full((devices + 1, m + 1, 4, lanes), BIG), np.empty((m + 1, 4, lanes))
    alive, rows, steps = np.zeros((devices + 1, m + 1, 2), np.int64), np.empty((6, m + 1)), 0.0
    tied, update, overlap = stages.tied_until.shape[0] > 0 and counts[TRIPS, 0] > 0.0, stages.update_s, stages.overlap
    both, nbytes, least_C, least_W = stages.sums[0, C], stages.sums[0, W], stages.least_C, stages.least_W
    alive[devices, m, 1] = 1
    # From the last device back: a stage is worked out when all that may follow it is.
    for a in range(devices - 1, -1, -1):
        for q in range(a + 1, devices + 1):
            if steps > most:
                break
            sharing, ready = False, False
            for j in range(stages.kind.shape[0]):
                kind = stages.kind[j, a, q]
                if kind < 0 or windows[q, 0] > windows[q, 1]:
                    continue
                if not ready:
                    for k in range(windows[q, 0], windows[q, 1] + 1):
                        put_behind(messages[a, q] * stages.crossing[k], counts, rest[q, k], alive[q, k], behind[k])
                    ready = True
                put_own(stages, j, a, q, rows)
                memory, parts = stages.speeds[j, a, q, MEMORY], stages.speeds[j, a, q, PARTS]
                rate, sharing = stages.speeds[j, a, q, RATE], j > 0
                for i in range(windows[a, 0], windows[a, 1] + 1):
                    least, gather = rest[a, i], stages.sums[kind, GATHER, i] / rate
                    for k in range(max(windows[q, 0], i + 1), windows[q, 1] + 1):
                        low, high = alive[q, k, 0], min(alive[q, k, 1], lanes - (a > 0))  # the first is on device 0
                        u, f = rows[0, k] - rows[0, i], rows[1, k] - rows[1, i]
                        # u only grows with k.
                        if micro * u >= limit_s:
                            break
                        if low < high and enough(least_C, least_W, both[k] - both[i], nbytes[k] - nbytes[i]):
                            if sharing:
                                u, f = u + gather + stages.sums[kind, GATHER, k] / rate, f + gather
                            reduce = rows[2, k] - rows[2, i]
                            late = reduce - overlap * min(reduce, u - f) + update * (rows[5, k] - rows[5, i])
                            if tied:
                                late += least_copies_s(stages, kind, i, k, a, q)
                            free = memory * (1.0 + SLACK) - (rows[4, k] - rows[4, i])
                            stage = (u, f, late, (rows[3, k] - rows[3, i]) / parts, free, limit_s, micro)
                            begin(counts, behind, k, stage, low, high, least)
                            steps += 4.0 + high - low
        narrow(rest[a], limit_s, stages.windows, windows[a], alive[a])
    return rest, steps


@jit
def narrow(rest: FloatArray, limit_s: float, begins: IntArray, window: IntArray, alive: IntArray) -> None:
    """Leave to a window the places where anything below the limit begins, and [m+1, 2] the lanes that may be before it.

    Args:
        rest: [m+1, 4, L] of the places on one device.
        begins: [S, 2] where each stage may begin, of the most there are.
    """
    first, last, lanes = window[1] + 1, window[0] - 1, rest.shape[2]
    for i in range(window[0], window[1] + 1):
        low, high = lanes, 0
        for lane in range(lanes - 1):
            if i > begins[lanes - 1 - lane, 1]:  # too few boundaries are left, or it is pinned
                for number in range(4):
                    rest[i, number, lane] = BIG
            if rest[i, LENGTH, lane] < limit_s:
                low, high = min(low, lane + 1), lane + 2
        alive[i, 0], alive[i, 1] = low, high
        if low < high:
            first, last = min(first, i), i
    window[0], window[1] = first, last


@jit
def put_own(stages: StageArrays, sharding: int, a: int, q: int, rows: FloatArray) -> None:
    """[6, m+1] sums of u, f but for what is gathered, of the all-reduce, of the stash, what stays, and parameters."""
    kind, sums = stages.kind[sharding, a, q], stages.sums
    rate, ring = stages.speeds[sharding, a, q, RATE], stages.speeds[sharding, a, q, RING]
    for k in range(rows.shape[1]):
        rows[0, k] = sums[kind, C, k] / rate + sums[kind, START, k]
        rows[1, k] = sums[kind, F, k] / rate + sums[kind, START_FORWARD, k]
        rows[2, k] = ring * sums[kind, W, k] + sums[kind, GRADIENT, k]
        rows[3, k] = sums[kind, H, k]
        rows[4, k] = stages.state_factor * sums[kind, W, k] + sums[kind, FROZEN, k]
        rows[5, k] = sums[kind, W, k]


@jit
def put_behind(x: float, counts: FloatArray, rest: FloatArray, alive: IntArray, behind: FloatArray) -> None:
    """[4, L] what is behind a stage, with the message of x seconds; nothing is behind the last one.

    Args:
        rest: [4, L] of the place where the next stage begins.
        alive: the first lane that counts, and the one after the last.
    """
    if alive[0] == 0:
        for number in range(4):
            behind[number, 0] = 0.0
        return
    for lane in range(alive[0], alive[1]):
        trip, head = rest[TRIP, lane - 1] + 2.0 * x, rest[HEAD, lane - 1] + 2.0 * x
        if counts[TRIPS, lane] == 0.0:
            trip, head = 0.0, rest[EXPOSED, lane - 1] - x
        behind[TRIP, lane], behind[HEAD, lane] = trip, head
        behind[SPAN, lane] = max(counts[BACK, lane] * x + trip, rest[SPAN, lane - 1] + 2.0 * x)
        behind[LENGTH, lane] = rest[LENGTH, lane - 1] + x


@jit
def begin(
    counts: FloatArray,
    behind: FloatArray,
    k: int,
    stage: tuple[float, float, float, float, float, float, float],
    low: int,
    high: int,
    rest: FloatArray,
) -> None:
    """Lower the numbers of a place, [4, L], to those of a stage that ends at boundary k and what is behind it.

    Args:
        stage: u, f, what comes after its last pass, the stash of a micro-batch, the bytes that are free for those, the
            limit and M.
        low, high: the first lane that counts, and the one after the last.
    """
    u, f, late, saved, free, limit_s, micro = stage
    b, passes = u - f, (micro - 1.0) * u
    for lane in range(low, high):
        trip = behind[k, TRIP, lane] + u
        remaining = max(
            passes - counts[HIDDEN, lane] * min(f, b),
            counts[TURNS, lane] * (u + behind[k, HEAD, lane]) + counts[OTHERS, lane] * b,
            counts[ROUNDS, lane] * trip + counts[MORE, lane] * b,
        )
        span = max(behind[k, SPAN, lane] + u, trip + remaining)
        head, ending = u, late
        if counts[TRIPS, lane] == 0.0:
            head = ending = max(late, behind[k, EXPOSED, lane] - b)
        length = max(span + ending, behind[k, LENGTH, lane] + f)
        if length < limit_s and counts[IN_FLIGHT, lane] * saved <= free:
            rest[TRIP, lane], rest[HEAD, lane] = min(rest[TRIP, lane], trip), min(rest[HEAD, lane], head)
            rest[SPAN, lane], rest[LENGTH, lane] = min(rest[SPAN, lane], span), min(rest[LENGTH, lane], length)
