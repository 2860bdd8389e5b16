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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import topological_order
from automap_models.core.placement import FloatArray, IntArray, PlacementProblem


@dataclass(frozen=True, eq=False)
class StepTables:
    """A problem as the kernels read it: n operations, e edges, D devices, C channels.

    Attributes:
        readers_start, readers: [n + 1], [e] readers of each operation, one after the other.
        inputs_start, inputs: [n + 1], [e] what each reads.
        order: [n] a topological order.
        time_s: [D, n] seconds of each operation on each device.
        output_bytes: [n] what a transfer of its output moves.
        live_bytes: [n] what its output occupies.
        held_bytes: [n] what it occupies all the time on the device that it is placed on.
        channel: [D, D] see core.step_devices.
        s_per_byte, latency_s: [C] of each channel.
        memory_bytes: [D] of each device.
    """

    readers_start: IntArray
    readers: IntArray
    inputs_start: IntArray
    inputs: IntArray
    order: IntArray
    time_s: FloatArray
    output_bytes: FloatArray
    live_bytes: FloatArray
    held_bytes: FloatArray
    channel: IntArray
    s_per_byte: FloatArray
    latency_s: FloatArray
    memory_bytes: FloatArray

    @classmethod
    def of(cls, problem: PlacementProblem) -> StepTables:
        """The tables of a problem."""
        graph, devices = problem.graph, problem.step_devices
        n = len(graph)
        producers, consumers = graph.edges.T
        by_consumer = np.lexsort((producers, consumers))
        return cls(
            readers_start=_starts(producers, n),
            readers=np.ascontiguousarray(consumers),
            inputs_start=_starts(consumers, n),
            inputs=np.ascontiguousarray(producers[by_consumer]),
            order=np.array(topological_order(graph.successors()), dtype=np.int64),
            time_s=problem.device_times_s,
            output_bytes=np.ascontiguousarray(graph.output_bytes, dtype=np.float64),
            live_bytes=np.zeros(n) if graph.live_bytes is None else np.ascontiguousarray(graph.live_bytes),
            held_bytes=np.ascontiguousarray(graph.memory_bytes, dtype=np.float64),
            channel=devices.channel,
            s_per_byte=1.0 / devices.bytes_per_s,
            latency_s=devices.latency_s,
            memory_bytes=devices.memory_bytes,
        )

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What the kernels take, in their order."""
        return (
            *(self.readers_start, self.readers, self.inputs_start, self.inputs, self.order, self.time_s),
            *(self.output_bytes, self.live_bytes, self.held_bytes, self.channel, self.s_per_byte, self.latency_s),
        )


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
    arguments: tuple[Any, ...] = (*tables.arrays, np.ascontiguousarray(assignment, dtype=np.int64))
    start, finish, first, target, peak = simulate(*arguments)
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

    placed = np.ascontiguousarray(assignments, dtype=np.int64)
    arguments: tuple[Any, ...] = (*tables.arrays, tables.memory_bytes, placed)
    return values(*arguments)


def _starts(keys: IntArray, n: int) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=n))]).astype(np.int64)
