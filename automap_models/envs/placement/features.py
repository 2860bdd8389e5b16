"""What the learned placer sees of a placement and its simulated step: pieces that can move, devices, and their pairs.

    pieces   P groups of neighbouring operations, each on one device: its time, when it runs, its slack, what it
             waited for, types of its operations
    devices  D: speed, links, memory, load
    pairs    P × D: what a move would do: time there, how much the piece reads from and writes to there, whether the
             device is idle when the piece runs

Times are in units of the step or of the mean piece, so that nothing has a unit. Every array has one row a piece, one a
device, or both; the number of pieces is a multiple of SEGMENT, and what is not there is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.placement import FloatArray, IntArray, PlacementProblem
from automap_models.cost.kernel_traffic import MATRIX_OPCODES, REDUCTION_OPCODES
from automap_models.cost.makespan import StepTimeline, heads_and_tails, simulate_step, step_slack
from automap_models.cost.step_tables import StepTables

DEVICES, SEGMENT = 16, 32
"""Most devices; pieces of a segment."""
KINDS = ("matrix", "reduction", "parameter", "other", "unknown")
"""Types of operations that are told apart."""
PIECE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES = 17 + len(KINDS), 8, 11
SingleArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PlacerInputs:
    """Arrays for the network; P pieces, D devices, K = 8.

    Attributes:
        pieces: [P, PIECE_FEATURES]; piece_mask: [P] 1 where there is a piece.
        inputs, readers: [P, K] neighbours on either side; input_mask, reader_mask: [P, K] 1 where there is one.
        devices: [D, DEVICE_FEATURES].
        home: [P, D] 1 for the device that a piece is on.
        pairs: [P, D, PAIR_FEATURES].
        move_mask: [P, D] 1 where the piece may move to the device.
    """

    pieces: SingleArray
    piece_mask: SingleArray
    inputs: IntArray
    input_mask: SingleArray
    readers: IntArray
    reader_mask: SingleArray
    devices: SingleArray
    home: SingleArray
    pairs: SingleArray
    move_mask: SingleArray

    def feed(self) -> dict[str, NDArray[np.generic]]:
        """Name → array with a first dimension of one, as the ONNX file takes them."""
        return {name: value[None] for name, value in vars(self).items()}


class PlacerView:
    """A problem as the network sees it, whatever the placement: what does not change from placement to placement.

    Attributes:
        problem: n operations, D devices.
    """

    def __init__(self, problem: PlacementProblem, tables: StepTables) -> None:
        self.problem, self.tables = problem, tables
        graph, n = problem.graph, len(problem.graph)
        self._finite_s = np.where(np.isfinite(tables.time_s), tables.time_s, 0.0)
        self._kinds = opcode_kinds(graph.opcodes, n)
        self._place = np.empty(n)
        self._place[tables.order] = np.arange(n) / n
        self._head, self._tail = _levels(tables, self._finite_s.mean(axis=0))
        self._producer, self._consumer = (np.ascontiguousarray(side) for side in graph.edges.T)
        per_byte = float(tables.s_per_byte[np.isfinite(tables.s_per_byte)].mean()) if tables.s_per_byte.size else 0.0
        self._per_byte = per_byte
        self._edge_s = per_byte * graph.output_bytes[self._producer]

    def inputs(self, assignment: IntArray, piece_of: IntArray, may: NDArray[np.bool_]) -> PlacerInputs:
        """What the network sees.

        Args:
            assignment: [n] device of each operation.
            piece_of: [n] piece of each operation, -1 for none; all operations of a piece are on one device.
            may: [pieces, D] whether a piece may move to a device.
        """
        timeline = simulate_step(self.tables, assignment)
        count = may.shape[0]
        padded = -(-count // SEGMENT) * SEGMENT
        piece = np.where(piece_of < 0, count, piece_of)  # one more for what is in no piece, cut off again
        home = np.zeros(count + 1, dtype=np.int64)
        home[piece] = assignment
        home = home[:count]
        (of_inputs, input_mask), (of_readers, reader_mask) = self._neighbours(piece, count, padded)
        features, pairs = self._features(assignment, piece, home, timeline)
        return PlacerInputs(
            pieces=_padded(features, padded),
            piece_mask=_padded(np.ones(count), padded),
            inputs=of_inputs,
            input_mask=input_mask,
            readers=of_readers,
            reader_mask=reader_mask,
            devices=self._devices(assignment, timeline),
            home=_padded(np.eye(self.problem.devices)[home], padded),
            pairs=_padded(pairs, padded),
            move_mask=_padded(may & (np.arange(self.problem.devices) != home[:, None]), padded),
        )

    def _features(
        self, assignment: IntArray, piece: IntArray, home: IntArray, timeline: StepTimeline
    ) -> tuple[FloatArray, FloatArray]:
        """[P, PIECE_FEATURES] and [P, D, PAIR_FEATURES]."""
        graph, count, devices = self.problem.graph, home.size, self.problem.devices
        span = max(timeline.makespan_s, 1e-12)
        slack = step_slack(self.tables, assignment, timeline)
        took = timeline.finish_s - timeline.start_s
        unit_s = max(float(took.sum()) / count, 1e-12)
        critical = slack.slack_s <= 1e-3 * span  # less is none
        weight = took / unit_s + 1e-6

        def total(values: FloatArray) -> FloatArray:
            return np.bincount(piece, weights=values, minlength=count + 1)[:count].astype(np.float64)

        mass = np.maximum(total(weight), 1e-12)
        begin, end = np.full(count + 1, span), np.zeros(count + 1)
        busy = took > 0
        np.minimum.at(begin, piece[busy], timeline.start_s[busy])
        np.maximum.at(end, piece[busy], timeline.finish_s[busy])
        begin, end = np.minimum(begin, end)[:count], end[:count]
        own_s = total(took)
        producer, consumer, edge_s = self._producer, self._consumer, self._edge_s
        a, b = piece[producer], piece[consumer]
        apart, crosses = a != b, assignment[producer] != assignment[consumer]
        blocked_s = slack.delays * slack.wait_s[consumer] * critical[consumer]

        def by_device(pieces: IntArray, device: IntArray, values: FloatArray) -> FloatArray:
            keys = pieces * devices + device
            sums = np.bincount(keys, weights=values, minlength=(count + 1) * devices).astype(np.float64)
            return sums.reshape(-1, devices)[:count]

        read = by_device(b, assignment[producer], edge_s * apart)
        written = by_device(a, assignment[consumer], edge_s * apart)
        blocked_in = by_device(b, assignment[producer], blocked_s * apart)
        blocked_out = by_device(a, assignment[consumer], blocked_s * apart)
        features = np.stack(
            [
                np.log1p(own_s / unit_s),
                own_s / span,
                begin / span,
                end / span,
                total(took * critical) / np.maximum(own_s, 1e-15),
                np.minimum(total(weight * slack.slack_s) / mass / span, 1.0),
                np.log1p(total(slack.wait_s * critical) / unit_s),
                np.log1p(blocked_in.sum(axis=1) / unit_s),
                np.log1p(blocked_out.sum(axis=1) / unit_s),
                np.log1p(np.bincount(b, weights=edge_s * crosses, minlength=count + 1)[:count] / unit_s),
                np.log1p(np.bincount(a, weights=edge_s * crosses, minlength=count + 1)[:count] / unit_s),
                np.log1p(total(np.ones(len(graph)))) / 8,
                np.log1p(self._per_byte * total(graph.memory_bytes) / unit_s),
                total(weight * self._head) / mass,
                total(weight * self._tail) / mass,
                total(weight * graph.backward) / mass,
                np.full(count, np.log2(max(count, 2)) / 10),
                *(total(weight * (self._kinds == kind)) / mass for kind in range(len(KINDS))),
            ],
            axis=1,
        )
        there_s = np.stack([total(times) for times in self._finite_s], axis=1)
        idle_s = self._idle(assignment, timeline, begin, end)
        home_places = np.arange(count), home
        used = np.bincount(assignment, weights=graph.memory_bytes, minlength=devices)
        room = (self.tables.memory_bytes - used - total(graph.memory_bytes)[:, None]) / np.maximum(
            np.where(np.isfinite(self.tables.memory_bytes), self.tables.memory_bytes, 1.0), 1.0
        )
        floor_s = own_s[:, None] + 0.01 * unit_s
        pairs = np.stack(
            [
                np.clip(np.log2((there_s + 1e-15) / (there_s[home_places][:, None] + 1e-15)), -3, 3),
                np.log1p(read / unit_s),
                np.log1p(written / unit_s),
                np.log1p(read / floor_s) - np.log1p(read[home_places][:, None] / floor_s),
                np.log1p(written / floor_s) - np.log1p(written[home_places][:, None] / floor_s),
                np.log1p(blocked_in / unit_s),
                np.log1p(blocked_out / unit_s),
                np.clip(idle_s / np.maximum(end - begin, 1e-15)[:, None], 0, 1),
                np.clip(idle_s / floor_s, 0, 4) / 4,
                np.broadcast_to(np.bincount(assignment, weights=took, minlength=devices) / span, read.shape),
                np.clip(room, -1, 1),
            ],
            axis=2,
        )
        return features, pairs

    def _idle(self, assignment: IntArray, timeline: StepTimeline, begin: FloatArray, end: FloatArray) -> FloatArray:
        """[P, D] seconds that each device idles between a piece's begin and end."""
        idle = np.empty((begin.size, self.problem.devices))
        for device in range(self.problem.devices):
            runs = np.flatnonzero((assignment == device) & (timeline.finish_s > timeline.start_s))
            runs = runs[np.argsort(timeline.start_s[runs])]
            starts, finishes = timeline.start_s[runs], timeline.finish_s[runs]
            events = np.concatenate([[0.0], np.stack([starts, finishes], axis=1).ravel()])
            done = np.cumsum(finishes - starts)
            worked = np.concatenate([[0.0], np.stack([done - (finishes - starts), done], axis=1).ravel()])
            idle[:, device] = (end - begin) - (np.interp(end, events, worked) - np.interp(begin, events, worked))
        return idle

    def _neighbours(
        self, piece: IntArray, count: int, padded: int
    ) -> tuple[tuple[IntArray, SingleArray], tuple[IntArray, SingleArray]]:
        """Pieces that each reads and that read it, the most bytes first."""
        a, b = piece[self._producer], piece[self._consumer]
        chosen = (a != b) & (a < count) & (b < count)
        keys, inverse = np.unique(a[chosen] * count + b[chosen], return_inverse=True)
        size = np.bincount(inverse, weights=self._edge_s[chosen], minlength=keys.size).astype(np.float64)
        source, sink = np.divmod(keys, max(count, 1))
        return _nearest(sink, source, size, padded), _nearest(source, sink, size, padded)

    def _devices(self, assignment: IntArray, timeline: StepTimeline) -> SingleArray:
        """[D, DEVICE_FEATURES]: speed, links, memory, number of devices, load, what it receives and sends."""
        network, count = self.problem.step_devices, self.problem.devices
        span = max(timeline.makespan_s, 1e-12)
        features = np.zeros((count, DEVICE_FEATURES), np.float32)
        total = max(float(self.problem.graph.memory_bytes.sum()), 1.0)
        rate = np.zeros(count)
        if count > 1:
            off = ~np.eye(count, dtype=bool)
            s_per_byte = self.tables.s_per_byte[network.channel]
            rate = np.where(off, s_per_byte, 0.0).sum(axis=1) / (count - 1) / max(self._per_byte, 1e-30)
        took = timeline.finish_s - timeline.start_s
        moved = timeline.received_s - timeline.sent_s
        features[:, 0] = np.log2(network.slowdown)
        features[:, 1] = rate - 1.0
        features[:, 2] = np.minimum(network.memory_bytes / total, 4.0) / 4
        features[:, 3] = 1.0 / count
        features[:, 4] = np.bincount(assignment, weights=took, minlength=count) / span
        features[:, 5] = np.log1p(np.bincount(timeline.target, weights=moved, minlength=count) / span)
        features[:, 6] = np.log1p(np.bincount(assignment[timeline.producer], weights=moved, minlength=count) / span)
        features[:, 7] = took.sum() / count / span
        return features


def _padded(values: NDArray[np.generic] | FloatArray, rows: int) -> SingleArray:
    out = np.zeros((rows, *values.shape[1:]), dtype=np.float32)
    out[: values.shape[0]] = values
    return out


def _nearest(
    owner: IntArray, other: IntArray, size: FloatArray, rows: int, most: int = 8
) -> tuple[IntArray, SingleArray]:
    """[rows, most] the others of each owner with the largest sizes, and where there is one."""
    order = np.lexsort((-size, owner))
    owner, other = owner[order], other[order]
    start = np.searchsorted(owner, np.arange(rows))
    slot = np.arange(owner.size) - start[owner]
    chosen = slot < most
    near, mask = np.zeros((rows, most), dtype=np.int64), np.zeros((rows, most), dtype=np.float32)
    near[owner[chosen], slot[chosen]], mask[owner[chosen], slot[chosen]] = other[chosen], 1.0
    return near, mask


def _levels(tables: StepTables, time_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[n] longest paths to and from each operation in mean times, as shares of the longest."""
    head, tail = heads_and_tails(tables, time_s)
    longest = max(float(tail.max(initial=0.0)), 1e-12)
    return head / longest, tail / longest


def unknown_opcodes(opcodes: tuple[str, ...]) -> list[str]:
    """Types of operations that no tracer of ours writes, sorted: they are embedded as unknown."""
    from automap_models.cost.kernel_traffic import FUSIBLE_OPCODES, RANDOM_OPCODES, VIEW_OPCODES

    listed = MATRIX_OPCODES | REDUCTION_OPCODES | FUSIBLE_OPCODES | RANDOM_OPCODES | VIEW_OPCODES | OTHER_OPCODES
    return sorted(set(opcodes) - listed)


_OTHER = """
parameter part gather scatter while sort concatenate dynamic_slice dynamic_update_slice select_and_scatter constant
broadcast_in_dim custom_call case conditional fft cholesky triangular_solve
"""
OTHER_OPCODES = frozenset(_OTHER.split())
"""Further words of StableHLO."""


def opcode_kinds(opcodes: tuple[str, ...], n: int) -> IntArray:
    """[n] number of each operation's type in KINDS."""
    if not opcodes:
        return np.full(n, KINDS.index("unknown"))
    unknown = set(unknown_opcodes(opcodes))

    def kind(code: str) -> str:
        if code in MATRIX_OPCODES:
            return "matrix"
        if code in REDUCTION_OPCODES:
            return "reduction"
        return "parameter" if code == "parameter" else "unknown" if code in unknown else "other"

    number = {code: KINDS.index(kind(code)) for code in set(opcodes)}
    return np.array([number[code] for code in opcodes])
