"""The throughput program: units on devices so that the fullest device is as little loaded as can be.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4.1 and App. G.
A *unit* is what must share a device: a colour class. A *net* is an output with its readers, on the units; device i pays
for it when the net has units on i and elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

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
    def from_problem(problem: PlacementProblem, tick_s: float) -> UnitTimes:
        """The problem with all times divided by `tick_s`, and rounded down to whole numbers.

        Rounding down keeps lower bounds lower bounds: loads are sums of these times with factors ≥ 0, so that in
        whole ticks no plan is longer than it is, and the shortest plan in ticks is not longer than the shortest plan.
        """
        graph = problem.graph
        unit_of = np.unique(graph.classes, return_inverse=True)[1].astype(np.int64)
        m = int(unit_of.max()) + 1
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


def add_cuts(program: Program, net: Net, on: IntArray) -> list[int]:
    """Columns that sum to 1 when the net has units on and off an accelerator, and may sum to 0 otherwise.

    Args:
        on: [m] columns that say whether a unit is on the accelerator.

    In plus out (Tarnawski et al.) is stronger than their maximum once a net has two readers; with one it is the same.
    """
    into = int(program.add())
    out = into if len(net.readers) == 1 else int(program.add())
    for reader in net.readers:
        program.at_most([(int(on[reader]), 1), (int(on[net.source]), -1), (into, -1)], 0)
        program.at_most([(int(on[net.source]), 1), (int(on[reader]), -1), (out, -1)], 0)
    return sorted({into, out})


@dataclass(frozen=True, eq=False)
class ThroughputProgram:
    """A program and what its columns mean.

    Attributes:
        times: the same in ticks.
        place: [m, devices] columns that say whether a unit is on a device.
    """

    problem: PlacementProblem
    times: UnitTimes
    program: Program
    place: IntArray

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""
        return PlacementPlan("", columns[self.place].argmax(axis=1)[self.times.unit_of])

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of the columns of `place` that mean the plan, or one that only swaps equal devices."""
        device = np.zeros(len(self.place), dtype=np.int64)
        device[self.times.unit_of] = plan.assignment
        rank = _by_first_use(self.problem, device[_heaviest_first(self.times)])
        chosen = np.arange(self.problem.devices) == rank[device][:, None]
        return dict(zip(self.place.ravel().tolist(), chosen.astype(int).ravel().tolist(), strict=True))


def _by_first_use(problem: PlacementProblem, used: IntArray) -> IntArray:
    """[devices] new number of each accelerator, in the order in which they are used; CPUs keep theirs."""
    mine = [d for d in dict.fromkeys([*used.tolist(), *range(problem.accelerators)]) if d < problem.accelerators]
    rank = np.arange(problem.devices)
    rank[mine] = np.arange(len(mine))
    return rank


def throughput_program(
    problem: PlacementProblem, tick_s: float, upper: float, deadline: Deadline = NEVER
) -> ThroughputProgram:
    """Any unit anywhere: the integer program of §4.1 with one column per unit and device.

    Args:
        upper: no plan with a larger value is wanted, in ticks.

    Raises:
        OutOfTime: the deadline has passed.
    """
    program, times = Program(deadline=deadline), UnitTimes.from_problem(problem, tick_s)
    place = program.add(len(times.supported), problem.devices)
    for row in place.tolist():
        program.equal([(column, 1) for column in row], 1)
    value = program.add(2 if problem.split_passes else 1, upper=upper)
    for device in range(problem.devices):
        if device < problem.accelerators:
            _accelerator(problem, program, times, value, place[:, device])
        else:
            _bound(program, value, [_weighted(place[:, device], ticks) for ticks in times.cpu])
    _tell_equal_devices_apart(problem, program, times, place)
    _minimise(program, value, upper)
    return ThroughputProgram(problem, times, program, place)


def _accelerator(problem: PlacementProblem, program: Program, times: UnitTimes, value: IntArray, on: IntArray) -> None:
    """What an accelerator can take, and that the value is at least its load."""
    program.fix(on[~times.supported], 0)
    program.at_most(_weighted(on, times.memory), times.capacity)
    compute = [_weighted(on, ticks) for ticks in times.accelerator]
    transfer: list[list[Term]] = [[], []]
    for net in times.nets:
        transfer[net.backward] += [(column, net.time) for column in add_cuts(program, net, on)]
    both = [compute[0] + transfer[0], compute[1] + transfer[1]]
    parts = [compute, transfer] if problem.communication == "max" else [both]
    for part in parts:
        _bound(program, value, part)


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
