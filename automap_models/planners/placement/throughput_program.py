"""Throughput programs: units on devices so that the fullest device is as little loaded as can be.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4 and App. G.
A *unit* is what must share a device: a colour class, or for the ordered program a node of the contracted graph. A
*net* is an output with its readers, on the units; device i pays for it when the net has units on i and elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from automap_models.core.dag import topological_order
from automap_models.core.placement import BoolArray, FloatArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.placement.program import Program, Term, in_ticks, memory_steps


@dataclass(frozen=True)
class Net:
    """An output that other units read.

    Attributes:
        source: unit of the producer.
        readers: units of the consumers, without the source, ascending.
        backward: whether the producer belongs to the backward pass.
        time: of moving it, in the program's unit of time.
    """

    source: int
    readers: tuple[int, ...]
    backward: bool
    time: float


@dataclass(frozen=True, eq=False)
class UnitTimes:
    """A placement problem by units, times in whole ticks.

    Attributes:
        unit_of: [n] unit of each node.
        accelerator: [2, m] forward and backward time of each unit on an accelerator.
        cpu: [2, m] the same on a CPU.
        memory: [m] what each takes on an accelerator; capacity: of one accelerator.
        supported: [m] whether every node of the unit can be placed on an accelerator.
        nets: outputs that cross units.
    """

    unit_of: IntArray
    accelerator: FloatArray
    cpu: FloatArray
    memory: FloatArray
    capacity: float
    supported: BoolArray
    nets: tuple[Net, ...]

    @staticmethod
    def of(problem: PlacementProblem, unit_of: IntArray, tick_s: float) -> UnitTimes:
        """The problem with all times divided by `tick_s`, and rounded down to whole numbers.

        Rounding down keeps lower bounds lower bounds: loads are sums of these times with factors ≥ 0, so that in
        whole ticks no plan is longer than it is, and the shortest plan in ticks is not longer than the shortest plan.
        """
        graph, m = problem.graph, int(unit_of.max()) + 1
        ticks = partial(in_ticks, tick_s=tick_s)
        kind = graph.backward.astype(np.int64)
        accelerator, cpu, memory, banned = np.zeros((2, m)), np.zeros((2, m)), np.zeros(m), np.zeros(m, bool)
        np.add.at(accelerator, (kind, unit_of), ticks(graph.accelerator_s))
        np.add.at(cpu, (kind, unit_of), ticks(graph.cpu_s))
        steps, capacity = memory_steps(graph.memory_bytes, problem.memory_bytes)
        np.add.at(memory, unit_of, steps)
        np.logical_or.at(banned, unit_of, ~graph.supported)
        nets = tuple(_nets(problem, unit_of, ticks(graph.transfer_s)))
        return UnitTimes(unit_of, accelerator, cpu, memory, capacity, ~banned, nets)


def _nets(problem: PlacementProblem, unit_of: IntArray, times: FloatArray) -> Iterator[Net]:
    """Outputs read outside their unit; those of one unit with the same readers and pass are one net."""
    readers: dict[int, set[int]] = defaultdict(set)
    for producer, consumer in problem.graph.edges.tolist():
        if unit_of[producer] != unit_of[consumer]:
            readers[producer].add(int(unit_of[consumer]))
    total: dict[tuple[int, tuple[int, ...], bool], float] = defaultdict(float)
    for producer, units in readers.items():
        if times[producer] > 0:
            key = int(unit_of[producer]), tuple(sorted(units)), bool(problem.graph.backward[producer])
            total[key] += float(times[producer])
    for (source, others, backward), time in total.items():
        yield Net(source, others, backward, time)


def add_cuts(program: Program, net: Net, at: IntArray, own: IntArray) -> list[int]:
    """Columns that sum to 1 when the net has units on and off an accelerator, and may sum to 0 otherwise.

    Args:
        at: [m] columns that say whether a unit is on the device.
        own: [m] columns that say whether it is there and the device is an accelerator (`at`, unless that is open).

    In plus out (Tarnawski et al.) is stronger than their maximum once a net has two readers; with one it is the same.
    """
    source, readers = net.source, net.readers
    into = int(program.add())
    out = into if len(readers) == 1 else int(program.add())
    for reader in readers:
        program.at_most([(int(own[reader]), 1), (int(at[source]), -1), (into, -1)], 0)
        program.at_most([(int(own[source]), 1), (int(at[reader]), -1), (out, -1)], 0)
    return sorted({into, out})


@dataclass(frozen=True, eq=False)
class ThroughputProgram:
    """A program and what its columns mean.

    Attributes:
        problem: what it states.
        times: the same in ticks.
        program: minimises the value in ticks.
        place: [m, devices] columns that say whether a unit is on a device, or at a position in the order of devices.
        order: [e, 2] edges between units that no placement turns back; None where devices are in no order.
        is_cpu: [devices] columns that say whether a position is a CPU's; None where devices are in no order.
    """

    problem: PlacementProblem
    times: UnitTimes
    program: Program
    place: IntArray
    order: IntArray | None = None
    is_cpu: IntArray | None = None

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""
        device = columns[self.place].argmax(axis=1)
        if self.is_cpu is not None:
            device = _devices_of_positions(self.problem, columns[self.is_cpu] > 0.5)[device]
        return PlacementPlan("", device[self.times.unit_of])

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of the columns of `place` and `is_cpu` that mean the plan, or one that only swaps equal devices."""
        device = np.zeros(len(self.place), dtype=np.int64)
        device[self.times.unit_of] = plan.assignment
        if self.order is None or self.is_cpu is None:
            rank = _by_first_use(self.problem, device[_heaviest_first(self.times)])
            return _indicators(self.place, rank[device])
        sequence = _quotient_order(self.problem, device[self.order])
        cpus = {int(self.is_cpu[i]): int(d >= self.problem.accelerators) for i, d in enumerate(sequence)}
        return _indicators(self.place, np.argsort(sequence)[device]) | cpus


def _indicators(place: IntArray, position: IntArray) -> dict[int, int]:
    chosen = np.arange(place.shape[1]) == position[:, None]
    return dict(zip(place.ravel().tolist(), chosen.astype(int).ravel().tolist(), strict=True))


def _devices_of_positions(problem: PlacementProblem, is_cpu: BoolArray) -> IntArray:
    """[devices] which device is at each position, accelerators and CPUs each in ascending order."""
    return np.where(is_cpu, problem.accelerators + np.cumsum(is_cpu) - 1, np.cumsum(~is_cpu) - 1)


def _by_first_use(problem: PlacementProblem, used: IntArray) -> IntArray:
    """[devices] new number of each accelerator, in the order in which they are used; CPUs keep theirs."""
    mine = [d for d in dict.fromkeys([*used.tolist(), *range(problem.accelerators)]) if d < problem.accelerators]
    rank = np.arange(problem.devices)
    rank[mine] = np.arange(len(mine))
    return rank


def _quotient_order(problem: PlacementProblem, ends: IntArray) -> list[int]:
    """Devices so that no order edge leads back; any order where there is none such."""
    successors: list[list[int]] = [[] for _ in range(problem.devices)]
    for a, b in np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0).tolist():
        successors[a].append(b)
    order = topological_order(successors)
    return order if len(order) == problem.devices else list(range(problem.devices))


def free_program(
    problem: PlacementProblem, times: UnitTimes, upper: float, deadline: Deadline = NEVER
) -> ThroughputProgram:
    """Any unit anywhere: the integer program of §4.1 with one column per unit and device.

    Args:
        problem: for throughput.
        times: in ticks.
        upper: no plan with a larger value is wanted, in ticks.
        deadline: when to stop.

    Raises:
        OutOfTime: the deadline has passed.
    """
    program, m = Program(deadline=deadline), len(times.supported)
    place = program.add(m, problem.devices)
    _require_one_device(program, place)
    value = program.add(2 if problem.split_passes else 1, upper=upper)
    for device in range(problem.devices):
        if device < problem.accelerators:
            _accelerator(problem, program, times, value, place[:, device], place[:, device])
        else:
            _cpu(program, times, value, place[:, device])
    _tell_equal_devices_apart(problem, program, times, place)
    _minimise(program, value, upper)
    return ThroughputProgram(problem, times, program, place)


def ordered_program(
    problem: PlacementProblem, times: UnitTimes, unit_edges: IntArray, upper: float, deadline: Deadline = NEVER
) -> ThroughputProgram:
    """Devices in an order, no edge leads back: what the dynamic program over ideals optimises, without ideals.

    `before[c, i]` says that unit c is at one of positions 0 … i; the units of which it holds are an ideal.

    Args:
        problem: for throughput.
        times: in ticks.
        unit_edges: [e, 2] acyclic; of the forward pass.
        upper: no plan with a larger value is wanted, in ticks.
        deadline: when to stop.

    Raises:
        OutOfTime: the deadline has passed.
    """
    program, m, positions = Program(deadline=deadline), len(times.supported), problem.devices
    place = program.add(m, positions)
    _require_one_device(program, place)
    before = program.add(m, positions)
    for unit in range(m):
        for i in range(positions):
            earlier = [(int(before[unit, i - 1]), -1.0)] if i else []
            program.equal([(int(before[unit, i]), 1), (int(place[unit, i]), -1), *earlier], 0)
    for u, v in unit_edges.tolist():
        for i in range(positions - 1):
            program.at_most([(int(before[v, i]), 1), (int(before[u, i]), -1)], 0)
    value = program.add(2 if problem.split_passes else 1, upper=upper)
    is_cpu = program.add(positions)
    program.equal([(int(column), 1) for column in is_cpu], problem.cpus)
    for i in range(positions):
        own = place[:, i]
        if 0 < problem.cpus < positions:
            own = _share(program, place[:, i], int(is_cpu[i]), times, value, upper)
        if problem.cpus < positions:
            _accelerator(problem, program, times, value, place[:, i], own)
        else:
            _cpu(program, times, value, place[:, i])
    _minimise(program, value, upper)
    return ThroughputProgram(problem, times, program, place, unit_edges, is_cpu)


def _share(program: Program, at: IntArray, is_cpu: int, times: UnitTimes, value: IntArray, upper: float) -> IntArray:
    """Columns of the units that are at a position if it is an accelerator; if it is a CPU, its load is bounded."""
    own, on_cpu = program.add(len(at)), program.add(len(at))
    for unit, column in enumerate(at.tolist()):
        program.equal([(column, 1), (int(own[unit]), -1), (int(on_cpu[unit]), -1)], 0)
        program.at_most([(int(own[unit]), 1), (is_cpu, 1)], 1)
        program.at_most([(int(on_cpu[unit]), 1), (is_cpu, -1)], 0)
    _cpu(program, times, value, on_cpu)
    return own


def _require_one_device(program: Program, place: IntArray) -> None:
    for row in place.tolist():
        program.equal([(column, 1) for column in row], 1)


def _accelerator(
    problem: PlacementProblem, program: Program, times: UnitTimes, value: IntArray, at: IntArray, own: IntArray
) -> None:
    """What an accelerator can take, and that the value is at least its load."""
    program.fix(own[~times.supported], 0)
    program.at_most(_weighted(own, times.memory), times.capacity)
    compute = [_weighted(own, times.accelerator[kind]) for kind in (0, 1)]
    transfer: list[list[Term]] = [[], []]
    for net in times.nets:
        transfer[net.backward] += [(column, net.time) for column in add_cuts(program, net, at, own)]
    both = [compute[0] + transfer[0], compute[1] + transfer[1]]
    parts = [compute, transfer] if problem.communication == "max" else [both]
    for part in parts:
        _bound(program, value, part)


def _cpu(program: Program, times: UnitTimes, value: IntArray, at: IntArray) -> None:
    """That the value is at least a CPU's load."""
    _bound(program, value, [_weighted(at, times.cpu[kind]) for kind in (0, 1)])


def _bound(program: Program, value: IntArray, load: list[list[Term]]) -> None:
    """The value of each pass, or the one value of both, is at least the load."""
    loads = load if len(value) == 2 else [load[0] + load[1]]
    for column, terms in zip(value.tolist(), loads, strict=True):
        program.at_most([*terms, (column, -1)], 0)


def _weighted(columns: IntArray, weights: FloatArray) -> list[Term]:
    return list(zip(columns.tolist(), weights.tolist(), strict=True))


def _tell_equal_devices_apart(problem: PlacementProblem, program: Program, times: UnitTimes, place: IntArray) -> None:
    """Of accelerators that can be swapped one order is kept: the j-th heaviest unit uses one of the first j."""
    for j, unit in enumerate(_heaviest_first(times)[: problem.accelerators].tolist()):
        program.fix(place[unit, j + 1 : problem.accelerators].tolist(), 0)


def _heaviest_first(times: UnitTimes) -> IntArray:
    return np.argsort(-times.accelerator.sum(axis=0), kind="stable")


def _minimise(program: Program, value: IntArray, upper: float) -> None:
    total = value if len(value) == 1 else program.add(1, upper=upper)
    if len(value) == 2:
        program.at_most([(int(value[0]), 1), (int(value[1]), 1), (int(total[0]), -1)], 0)
    program.objective = int(total[0])
