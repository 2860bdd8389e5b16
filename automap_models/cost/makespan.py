"""The makespan of one step whose operations are spread over devices: a list schedule, simulated event by event.

    n operations v, D devices, C channels; a = device[v]; u → v an edge

    rank(v)      = time of v on its device + max over its readers s of (transfer to s's device, if another, + rank(s))
    device       one operation at a time; of those whose inputs are there the one of the largest rank, then number
    channel      one transfer at a time; of those waiting the one with the largest rank of its readers behind it
    transfer     an output goes once to each device that reads it, latency + bytes / bandwidth, when it is made

        device 0   ████ u ████ ░ v ░          an operation runs to its end; one that takes no time (a view, an operation
        channel         ──u→1──               fused into its readers) runs as soon as its inputs are there, and so does
        device 1               ███ w ███      a transfer that takes none

Memory of a device is that of the operations placed there, plus outputs: from the start of an operation until its last
reader on the device, and its last transfer, are done; a copy from the start of its transfer until its last reader is
done. Of things that happen at one time ends come before starts.

This is the step of Baechi (Jeon et al., SoCC 2020) and of GDP (arXiv 1910.01578) with links that take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import FloatArray, IntArray
from automap_models.cost.step_tables import StepTables


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """One simulated step.

    Attributes:
        makespan_s: when its last operation ends.
        start_s, finish_s: [n] of each operation.
        producer: [t] the operation whose output each transfer moves.
        target: [t] the device that it moves it to.
        sent_s, received_s: [t] when it starts and when it ends.
        peak_bytes: [D] most that each device holds at a time.
    """

    makespan_s: float
    start_s: FloatArray
    finish_s: FloatArray
    producer: IntArray
    target: IntArray
    sent_s: FloatArray
    received_s: FloatArray
    peak_bytes: FloatArray


def simulate_step(tables: StepTables, assignment: IntArray) -> StepTimeline:
    """The step of one placement.

    Args:
        tables: of a problem with n operations.
        assignment: [n] device of each.
    """
    from automap_models.cost.makespan_kernel import simulate

    n = assignment.size
    start, finish, first, target, peak = simulate(tables, np.ascontiguousarray(assignment, dtype=np.int64))
    producer = np.repeat(np.arange(n), np.diff(first))
    makespan = float(finish[:n].max(initial=0.0))
    return StepTimeline(makespan, start[:n], finish[:n], producer, target, start[n:], finish[n:], peak)


def step_values(tables: StepTables, assignments: IntArray) -> tuple[FloatArray, FloatArray]:
    """Makespan and excess memory of many placements.

    Args:
        assignments: [B, n] device of each operation.

    Returns:
        [B] seconds, and [B] bytes beyond the memory, over all devices.
    """
    from automap_models.cost.makespan_kernel import values

    return values(tables, np.ascontiguousarray(assignments, dtype=np.int64))
