"""The simulated step of plans of any numbers of stages and micro-batches: simulate.batch, one plan after another.

simulate.batch makes every step of a simulation for all plans at once, so that they must have the same passes. Here each
plan has its own, and the loops are compiled by numba: some microseconds a plan. A learner, whose batches hold problems
of every size, is paid by this. Passes and messages go in the order that simulate.batch draws, and every number is
computed as there, so that equal plans have equal steps. A stage's gradients are one bucket.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray

IntArray = NDArray[np.int64]
FlagArray = NDArray[np.bool_]


@jit
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


@jit
def send_forward(
    link: int, j: int, time: float, link_free: FloatArray, ready: FloatArray, arrival: FloatArray, done: FlagArray
) -> None:
    """Carry a forward message that is ready."""
    link_free[link] = max(ready[link, j], link_free[link]) + time
    arrival[link, j] = link_free[link]
    done[link, j] = True


@jit
def simulated_step(
    times: FloatArray,
    depth: IntArray,
    micro_batches: int,
    ready_s: FloatArray,
    all_reduce_s: FloatArray,
    shares_link: FlagArray,
    ready: FloatArray,
    arrival: FloatArray,
    done: FlagArray,
) -> float:
    """The step of one plan.

    Args:
        times: [3, S] of forward passes, backward passes and the messages after each stage.
        depth: [S] forward passes of a stage before its first backward pass.
        micro_batches: M.
        ready_s, all_reduce_s, shares_link: [S] of each stage's gradients; see simulate.batch.
        ready, arrival, done: [S-1 or more, M or more] to work in.
    """
    stages, step = depth.size, 0.0
    free, link_free = np.zeros(stages), np.zeros(stages)
    done[: stages - 1, :micro_batches] = False
    for s in range(stages):
        for j in range(depth[s]):
            forward_pass(s, j, times, depth, free, link_free, ready, arrival)
    for k in range(micro_batches):
        came = 0.0
        for s in range(stages - 1, -1, -1):
            start = max(free[s], came)
            free[s] = start + times[1, s]
            if k == micro_batches - 1:
                begun = max(start, free[s] + ready_s[s])
                if s and shares_link[s]:
                    begun = max(begun, link_free[s - 1])
                    link_free[s - 1] = begun + all_reduce_s[s]
                step = max(step, free[s], begun + all_reduce_s[s])
            if s:
                link, x = s - 1, times[2, s - 1]
                first, last = depth[s] + k, min(micro_batches, depth[s - 1] + k)
                for j in range(first, last):
                    if not done[link, j] and ready[link, j] <= free[s]:
                        send_forward(link, j, x, link_free, ready, arrival, done)
                link_free[link] = max(free[s], link_free[link]) + x
                came = link_free[link]
                if first < last and not done[link, first]:
                    send_forward(link, first, x, link_free, ready, arrival, done)
            if depth[s] + k < micro_batches:
                forward_pass(s, depth[s] + k, times, depth, free, link_free, ready, arrival)
    return step


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
        ready_s, all_reduce_s: [B, S] of each stage's gradients: when they are there, counted from the end of the
            stage's last backward pass (0 or less), and how long reducing them takes.
        shares_link: [B, S] whether they use the link to the stage before.
    """
    count, width = depth.shape
    most = micro_batches.max() if count else 0
    ready, arrival = np.zeros((width, most)), np.zeros((width, most))
    done = np.zeros((width, most), dtype=np.bool_)
    steps = np.zeros(count)
    for i in range(count):
        n = stages[i]
        steps[i] = simulated_step(
            times[i, :, :n],
            depth[i, :n],
            micro_batches[i],
            ready_s[i],
            all_reduce_s[i],
            shares_link[i],
            ready,
            arrival,
            done,
        )
    return steps
