"""The simulated step of plans of any numbers of stages and micro-batches: simulate.batch, one plan after another.

simulate.batch makes every step of a simulation for all plans at once, so that they must have the same passes. Here each
plan has its own, and the loops are compiled by numba: some microseconds a plan. A learner, whose batches hold problems
of every size, is paid by this, and so are moves from plan to plan. Passes and messages go in the order that
simulate.batch draws; steps are equal to rounding. A stage's buckets of gradients are two numbers, however many they are
(`tail_s`). Of plans that turn out too long the rest is not played.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import inlined, jit
from automap_models.core.profile import FloatArray

IntArray = NDArray[np.int64]
FlagArray = NDArray[np.bool_]


class Room(NamedTuple):
    """What simulations work in, one after another; of S stages and M micro-batches, or more.

    Attributes:
        free, link_free: [S] when a stage and the link behind it are free.
        ready, arrival, done: [S, M] when a forward message gets ready and arrives, and whether it went before its time.
        behind: [S] see `tail_s`.
    """

    free: FloatArray
    link_free: FloatArray
    ready: FloatArray
    arrival: FloatArray
    done: FlagArray
    behind: FloatArray


@jit
def room_of(stages: int, micro_batches: int) -> Room:
    """Room for plans of at most so many stages and micro-batches."""
    sums = np.zeros((3, stages))
    ready, arrival = np.zeros((stages, micro_batches)), np.zeros((stages, micro_batches))
    return Room(sums[0], sums[1], ready, arrival, np.zeros((stages, micro_batches), dtype=np.bool_), sums[2])


@inlined
def forward_pass(
    s: int,
    j: int,
    times: FloatArray,
    depth: IntArray,
    free: FloatArray,
    link_free: FloatArray,
    ready: FloatArray,
    arrival: FloatArray,
) -> None:
    """Forward pass j of stage s; its message goes at once where none goes back before it."""
    if s and arrival[s - 1, j] > free[s]:
        free[s] = arrival[s - 1, j]
    free[s] += times[0, s]
    if s + 1 < depth.size:
        if j < depth[s + 1]:
            link_free[s] = max(free[s], link_free[s]) + times[2, s]
            arrival[s, j] = link_free[s]
        else:
            ready[s, j] = free[s]


@inlined
def send_forward(
    link: int, j: int, time: float, link_free: FloatArray, ready: FloatArray, arrival: FloatArray, done: FlagArray
) -> None:
    """Carry a forward message that is ready."""
    link_free[link] = max(ready[link, j], link_free[link]) + time
    arrival[link, j] = link_free[link]
    done[link, j] = True


@inlined
def reduce_gradients(
    s: int,
    pass_s: float,
    late_s: float,
    all_reduce_s: float,
    shares_link: bool,
    free: FloatArray,
    link_free: FloatArray,
) -> None:
    """Go on from the end of a stage's last backward pass, which began at pass_s, until its gradients are reduced."""
    if s and shares_link:
        free[s] = max(free[s] + late_s, max(pass_s, link_free[s - 1]) + all_reduce_s, free[s])
        link_free[s - 1] = free[s]
    else:
        free[s] = max(free[s] + late_s, pass_s + all_reduce_s, free[s])


@jit
def simulated_step(
    times: FloatArray,
    depth: IntArray,
    micro_batches: int,
    late_s: FloatArray,
    all_reduce_s: FloatArray,
    shares_link: FlagArray,
    limit_s: float,
    room: Room,
) -> float:
    """The step of one plan; inf where it is not shorter than the limit, mostly after a few rounds.

    Args:
        times: [3, S] of forward passes, backward passes and the messages after each stage.
        depth: [S] forward passes of a stage before its first backward pass.
        micro_batches: M.
        late_s, all_reduce_s, shares_link: [S] of each stage's gradients (`tail_s`).
        limit_s: inf plays every plan to its end.
        room: to work in. Its `free` become the ends of the stages.
    """
    stages, step = depth.size, 0.0
    free, link_free, ready, arrival, done, behind = room
    free[:stages], link_free[:stages] = 0.0, 0.0
    done[: stages - 1, :micro_batches] = False
    tail_s(times, late_s, behind)
    for s in range(stages):
        for j in range(depth[s]):
            forward_pass(s, j, times, depth, free, link_free, ready, arrival)
    for k in range(micro_batches):
        came, left = 0.0, micro_batches - 1 - k
        for s in range(stages - 1, -1, -1):
            start = max(free[s], came)
            free[s] = start + times[1, s]
            forward_left = max(micro_batches - depth[s] - k, 0)
            if free[s] + left * times[1, s] + forward_left * times[0, s] + behind[s] >= limit_s:
                return np.inf
            back = free[s]
            if left == 0 and all_reduce_s[s] > 0.0:
                reduce_gradients(s, start, late_s[s], all_reduce_s[s], shares_link[s], free, link_free)
            step = max(step, free[s])
            if s:
                link, x = s - 1, times[2, s - 1]
                first, last = depth[s] + k, min(micro_batches, depth[s - 1] + k)
                for j in range(first, last):
                    if not done[link, j] and ready[link, j] <= back:
                        send_forward(link, j, x, link_free, ready, arrival, done)
                link_free[link] = max(back, link_free[link]) + x
                came = link_free[link]
                if first < last and not done[link, first]:
                    send_forward(link, first, x, link_free, ready, arrival, done)
            if depth[s] + k < micro_batches:
                forward_pass(s, depth[s] + k, times, depth, free, link_free, ready, arrival)
    return step if step < limit_s else np.inf


@jit
def tail_s(times: FloatArray, late_s: FloatArray, behind: FloatArray) -> None:
    """How long after the end of a stage's last backward pass the step goes on at least.

    Gradients are reduced from late_s - all_reduce_s after that end on at the earliest, the first of them from the
    beginning of that pass on:

        | last backward pass |                 they end late_s after it, or where their link
             |=====|    |=====|=====|          is not free all_reduce_s after it is
                              └─────┘ late_s

    Args:
        times: [3, S] as of `simulated_step`.
        late_s: [S] how long after a stage's last backward pass its gradients are reduced if nothing else uses its
            links.
        behind: [S] to be filled.
    """
    for s in range(late_s.size):
        behind[s] = max(late_s[s], 0.0)
        if s:
            behind[s] = max(behind[s], times[2, s - 1] + times[1, s - 1] + behind[s - 1])


@jit
def simulated_steps(
    times: FloatArray,
    depth: IntArray,
    stages: IntArray,
    micro_batches: IntArray,
    ready_s: FloatArray,
    all_reduce_s: FloatArray,
    shares_link: FlagArray,
) -> FloatArray:
    """[B] seconds of the simulated step of each plan; what lies beyond a plan's own stages does not count.

    Args:
        times: [B, 3, S] of forward passes, backward passes and the messages after each stage.
        depth: [B, S] forward passes of a stage before its first backward pass (core.schedules.warm_up).
        stages, micro_batches: [B].
        ready_s, all_reduce_s: [B, S] of each stage's gradients, one bucket: when they are there, counted from the end
            of the stage's last backward pass (0 or less), and how long reducing them takes.
        shares_link: [B, S] whether they use the link to the stage before.
    """
    count, width = depth.shape
    room = room_of(width, micro_batches.max() if count else 0)
    steps = np.zeros(count)
    for i in range(count):
        n = stages[i]
        steps[i] = simulated_step(
            times[i, :, :n],
            depth[i, :n],
            micro_batches[i],
            ready_s[i, :n] + all_reduce_s[i, :n],
            all_reduce_s[i, :n],
            shares_link[i, :n],
            np.inf,
            room,
        )
    return steps
