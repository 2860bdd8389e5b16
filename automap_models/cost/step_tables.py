"""The tables that a step is simulated and scheduled from: one tuple of arrays, as compiled code takes it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.dag import topological_order
from automap_models.core.placement import FloatArray, IntArray, PlacementProblem


class StepTables(NamedTuple):
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
        by_arrival, turns: the order of core.step_devices, and its channels.
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
    by_arrival: bool
    turns: bool

    @classmethod
    @lru_cache(maxsize=2)
    def from_problem(cls, problem: PlacementProblem) -> StepTables:
        """The tables of a problem, made once for the same one."""
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
            by_arrival=devices.order == "arrival",
            turns=devices.turns,
        )


def _starts(keys: IntArray, n: int) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=n))]).astype(np.int64)
