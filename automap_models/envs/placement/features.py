"""What the learned placer sees of a step: groups of operations, devices, and where baselines put each group.

All arrays have fixed sizes, so that one ONNX file serves every graph and 2 to 16 devices; what is not there is masked.
Times are in units of the mean group's, bytes in units of what a link moves in that time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.placement import FloatArray, IntArray, PlacementProblem
from automap_models.cost.kernels import MATRIX_OPCODES, REDUCTION_OPCODES
from automap_models.cost.step_tables import StepTables

GROUPS, DEVICES, NEIGHBOURS = 128, 16, 8
"""Most groups and devices, and neighbours of a group that are looked at on either side: those with the most bytes."""
KINDS = ("matrix", "reduction", "parameter", "other", "unknown")
"""Types of operations that are told apart."""
GROUP_FEATURES, DEVICE_FEATURES, HINTS = 12 + len(KINDS), 8, 4
HINT_NAMES = ("expert", "heft", "m-etf", "metis")
SingleArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PlacerInputs:
    """Arrays for the network; G = GROUPS, D = DEVICES, K = NEIGHBOURS.

    Attributes:
        groups: [G, GROUP_FEATURES]; group_mask: [G] 1 where there is a group.
        inputs, readers: [G, K] neighbours on either side; input_mask, reader_mask: [G, K] 1 where there is one.
        devices: [D, DEVICE_FEATURES]; device_mask: [D].
        hints: [G, D, HINTS] share of each group's time that a baseline has on a device.
        hint_scores: [HINTS] logarithm of each baseline's step over the best one's; 5 where it passes the memory.
    """

    groups: SingleArray
    group_mask: SingleArray
    inputs: IntArray
    input_mask: SingleArray
    readers: IntArray
    reader_mask: SingleArray
    devices: SingleArray
    device_mask: SingleArray
    hints: SingleArray
    hint_scores: SingleArray

    def feed(self) -> dict[str, NDArray[np.generic]]:
        """Name → array with a first dimension of one, as the ONNX file takes them."""
        return {name: value[None] for name, value in vars(self).items()}


def placer_inputs(
    problem: PlacementProblem, tables: StepTables, group_of: IntArray, hints: IntArray, hint_s: FloatArray
) -> PlacerInputs:
    """The inputs for a grouped step.

    Args:
        problem: n operations on at most DEVICES devices.
        tables: of the problem.
        group_of: [n] group of each operation, below GROUPS.
        hints: [HINTS, n] device of each operation in the placements of HINT_NAMES.
        hint_s: [HINTS] their steps; infinite for one that passes the memory.
    """
    count = int(group_of.max()) + 1
    time_s = np.where(np.isfinite(tables.time_s), tables.time_s, 0.0).mean(axis=0)
    unit_s = max(float(time_s.sum()) / count, 1e-12)
    per_byte = float(tables.s_per_byte.mean()) if tables.s_per_byte.size else 0.0
    groups, mask = np.zeros((GROUPS, GROUP_FEATURES)), np.zeros(GROUPS)
    mask[:count] = 1.0
    groups[:count] = _group_features(problem, tables, group_of, count, time_s / unit_s, per_byte / unit_s)
    (inputs, input_mask), (readers, reader_mask) = _neighbours(problem, group_of)
    placed = np.zeros((GROUPS, DEVICES, HINTS))
    weight = time_s / unit_s + 1e-6
    whole = np.bincount(group_of, weights=weight, minlength=GROUPS)
    for h, device in enumerate(hints):
        np.add.at(placed[:, :, h], (group_of, device), weight / whole[group_of])
    devices, device_mask = _device_features(problem, unit_s, per_byte)
    return PlacerInputs(
        *(groups.astype(np.float32), mask.astype(np.float32), inputs, input_mask, readers, reader_mask),
        *(devices, device_mask, placed.astype(np.float32), _scores(hint_s)),
    )


def _scores(hint_s: FloatArray) -> SingleArray:
    finite = hint_s[np.isfinite(hint_s) & (hint_s > 0)]
    least = float(finite.min()) if finite.size else 1.0
    ratio = np.where(hint_s > 0, hint_s / least, 1.0)
    return np.minimum(np.log(np.maximum(ratio, 1.0)), 5.0).astype(np.float32)


def _group_features(
    problem: PlacementProblem, tables: StepTables, group_of: IntArray, count: int, time: FloatArray, per_byte: float
) -> FloatArray:
    """[count, GROUP_FEATURES]."""
    graph = problem.graph

    def total(values: FloatArray) -> FloatArray:
        return np.bincount(group_of, weights=values, minlength=count).astype(np.float64)

    size, weight = total(np.ones(len(graph))), time + 1e-9
    place = np.empty(len(graph))
    place[tables.order] = np.arange(len(graph)) / len(graph)
    before, after = _levels(tables)
    producer, consumer = graph.edges.T
    crosses = group_of[producer] != group_of[consumer]
    moved = per_byte * graph.output_bytes[producer] * crosses
    sent = np.bincount(group_of[producer], weights=moved, minlength=count)
    received = np.bincount(group_of[consumer], weights=moved, minlength=count)
    mean = total(weight)
    kinds = _kinds(graph.opcodes, len(graph))
    columns = [
        np.log1p(total(time)),
        np.log1p(size) / 4,
        np.log1p(sent),
        np.log1p(received),
        np.log1p(total(per_byte * graph.memory_bytes)),
        total(weight * before) / mean,
        total(weight * after) / mean,
        total(weight * place) / mean,
        total(weight * graph.backward) / mean,
        np.log1p(np.bincount(group_of[producer], weights=crosses, minlength=count)) / 4,
        np.log1p(np.bincount(group_of[consumer], weights=crosses, minlength=count)) / 4,
        np.arange(count) / max(count - 1, 1),
        *(total(weight * (kinds == k)) / mean for k in range(len(KINDS))),
    ]
    return np.stack(columns, axis=1)


def _levels(tables: StepTables) -> tuple[FloatArray, FloatArray]:
    """[n] longest ways to and from each operation in mean times, as shares of the longest."""
    time = np.where(np.isfinite(tables.time_s), tables.time_s, 0.0).mean(axis=0).tolist()
    start, readers, order = tables.readers_start.tolist(), tables.readers.tolist(), tables.order.tolist()
    head, tail = [0.0] * len(time), [0.0] * len(time)
    for v in order:
        for s in readers[start[v] : start[v + 1]]:
            head[s] = max(head[s], head[v] + time[v])
    for v in reversed(order):
        tail[v] = time[v] + max((tail[s] for s in readers[start[v] : start[v + 1]]), default=0.0)
    longest = max(max(tail, default=0.0), 1e-12)
    return np.array(head) / longest, np.array(tail) / longest


def unknown_opcodes(opcodes: tuple[str, ...]) -> list[str]:
    """Types of operations that no tracer of ours writes, sorted: they are embedded as unknown."""
    from automap_models.cost.kernels import FUSIBLE_OPCODES, RANDOM_OPCODES, VIEW_OPCODES

    known = MATRIX_OPCODES | REDUCTION_OPCODES | FUSIBLE_OPCODES | RANDOM_OPCODES | VIEW_OPCODES | OTHER_OPCODES
    return sorted(set(opcodes) - known)


_OTHER = """
parameter part gather scatter while sort concatenate dynamic_slice dynamic_update_slice select_and_scatter constant
broadcast_in_dim custom_call case conditional fft cholesky triangular_solve
"""
OTHER_OPCODES = frozenset(_OTHER.split())
"""Further words of StableHLO."""


def _kinds(opcodes: tuple[str, ...], n: int) -> IntArray:
    """[n] number of each operation's type in KINDS."""
    if not opcodes:
        return np.full(n, KINDS.index("unknown"))
    unknown = set(unknown_opcodes(opcodes))
    number = {
        code: KINDS.index(
            "matrix"
            if code in MATRIX_OPCODES
            else "reduction"
            if code in REDUCTION_OPCODES
            else "parameter"
            if code == "parameter"
            else "unknown"
            if code in unknown
            else "other"
        )
        for code in set(opcodes)
    }
    return np.array([number[code] for code in opcodes])


def _neighbours(
    problem: PlacementProblem, group_of: IntArray
) -> tuple[tuple[IntArray, SingleArray], tuple[IntArray, SingleArray]]:
    """Groups that each reads and that read it, the most bytes first."""
    producer, consumer = problem.graph.edges.T
    a, b = group_of[producer], group_of[consumer]
    apart = a != b
    keys, inverse = np.unique(np.stack([a[apart], b[apart]], axis=1), axis=0, return_inverse=True)
    size = np.bincount(inverse.ravel(), weights=problem.graph.output_bytes[producer][apart], minlength=len(keys))
    neighbours = []
    for own, other in ((1, 0), (0, 1)):
        near, mask = np.zeros((GROUPS, NEIGHBOURS), dtype=np.int64), np.zeros((GROUPS, NEIGHBOURS), dtype=np.float32)
        used = np.zeros(GROUPS, dtype=np.int64)
        for k in np.argsort(-size, kind="stable").tolist():
            group = keys[k, own]
            if used[group] < NEIGHBOURS:
                near[group, used[group]], mask[group, used[group]] = keys[k, other], 1.0
                used[group] += 1
        neighbours.append((near, mask))
    return neighbours[0], neighbours[1]


def _device_features(problem: PlacementProblem, unit_s: float, per_byte: float) -> tuple[SingleArray, SingleArray]:
    """[DEVICES, DEVICE_FEATURES]: speed, links, memory, number of devices, and a place among them."""
    network, count = problem.step_devices, problem.devices
    features, mask = np.zeros((DEVICES, DEVICE_FEATURES), np.float32), np.zeros(DEVICES, np.float32)
    mask[:count] = 1.0
    at = np.arange(count)
    total = max(float(problem.graph.memory_bytes.sum()), 1.0)
    rate = np.zeros(count)
    if count > 1:
        off = ~np.eye(count, dtype=bool)
        s_per_byte = 1.0 / network.bytes_per_s[network.channel]
        rate = np.where(off, s_per_byte, 0.0).sum(axis=1) / (count - 1) / max(per_byte, 1e-30)
    features[:count, 0] = np.log2(network.slowdown)
    features[:count, 1] = rate - 1.0
    features[:count, 2] = np.minimum(network.memory_bytes / total, 4.0) / 4
    features[:count, 3] = 1.0 / count
    features[:count, 4] = at / max(count - 1, 1)
    for j in range(3):
        features[:count, 5 + j] = np.cos(np.pi * (j + 1) * (at + 0.5) / count)
    return features, mask
