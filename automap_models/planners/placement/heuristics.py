"""Placements as people and compilers make them: one device, list scheduling, an expert's split.

There is no data-parallel planner here: a placement puts every operator on one device, and a replica of the model on
each of them is none. For profiles in execution order `automap-infer --planner data-parallel` plans that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.dag import depth_first_order, topological_order
from automap_models.core.placement import ROUNDING, BoolArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.cost.placement import latency_s, throughput_s
from automap_models.errors import BadInput
from automap_models.formats.placement_plan import read_split
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Progress, Watch
from automap_models.planners.placement.packing import no_placement
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, least_enough
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_layers import layers_in_order

ORDERS = 3
"""Topological orders that `topological_orders` yields."""


@dataclass(frozen=True)
class ExpertConfig:
    """The configuration of `expert`.

    Attributes:
        split: an expert's placement in a file (formats.placement_plan); None places layers in their order.
    """

    split: str | os.PathLike[str] | None = None


class SinglePlanner(PlacementPlanner[NoConfig]):
    """Everything on one accelerator, or on one CPU where that is impossible: what all others are compared with."""

    name: ClassVar[str] = "single"
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where an accelerator's memory is too small and there is no CPU."""
        watch(Progress("putting everything on one device", 0, 1))
        total = float(problem.graph.memory_bytes.sum())
        fits = total <= problem.memory_bytes * (1.0 + ROUNDING) and bool(problem.graph.supported.all())
        if not (problem.accelerators and fits) and not problem.cpus:
            return Outcome(reason=no_placement(problem, self.name))
        device = 0 if problem.accelerators and fits else problem.accelerators
        return Outcome(PlacementPlan(self.name, np.full(len(problem.graph), device)))


class GreedyPlanner(PlacementPlanner[NoConfig]):
    """List scheduling: device after device filled in topological order.

    For latency as published (latency-greedy of dnn-partitioning): as much as its memory holds on every accelerator, the
    rest on the CPUs. For throughput as much as a load that all devices have to keep to, the smallest that works. Of
    several topological orders the one with the best result counts.
    """

    name: ClassVar[str] = "greedy"

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where the accelerators, filled like this, do not hold everything and there is no CPU."""
        units = contract(problem)
        device = unit_greedy(problem, units, deadline, watch)
        if device is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, units.expand(device)))


class ExpertPlanner(PlacementPlanner[ExpertConfig]):
    """A human expert's split from a file, or else equally many layers on every accelerator; for a step, runs of layers
    of about equal time.
    """

    name: ClassVar[str] = "expert"
    config_type: ClassVar[type[ExpertConfig]] = ExpertConfig
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The expert's placement; none where it does not fit the memory.

        Raises:
            BadInput: the split file is none, or one of another graph.
        """
        split = self.config.split
        if split is None:
            watch(Progress("putting equally many layers on every accelerator", 0, 1))
            if problem.objective == "step":
                step_units = StepUnits.of(problem)
                device = step_units.repaired(layers_in_order(step_units))
                return Outcome(PlacementPlan(self.name, step_units.expand(device)))
            return Outcome(PlacementPlan(self.name, _equal_layers(problem)))
        watch(Progress(f"reading {split}", 0, 1))
        plan = PlacementPlan(self.name, read_split(split, problem))
        total = float(problem.graph.memory_bytes.sum())
        roomy = replace(problem, memory_bytes=max(problem.memory_bytes, total))
        valid, objection = plan.check_valid(roomy)
        if not valid:
            raise BadInput(objection, where=str(split), do="give a split made for this graph and these devices")
        return Outcome(plan)


def supported_devices(problem: PlacementProblem, units: Contraction) -> BoolArray:
    """[m, D] whether a unit may be placed on a device, on its own."""
    on_accelerator = units.supported & (units.memory_bytes <= problem.memory_bytes * (1.0 + ROUNDING))
    is_cpu = np.arange(problem.devices) >= problem.accelerators
    allowed: BoolArray = is_cpu[None, :] | on_accelerator[:, None]
    return allowed


def unit_greedy(
    problem: PlacementProblem, units: Contraction, deadline: Deadline = NEVER, watch: Watch = SILENT
) -> IntArray | None:
    """[m] devices of the units in the best greedy placement; None where none fits.

    Args:
        problem: what to place.
        units: of the problem.
        deadline: when to stop with the best so far; the first placement is made whatever the time.
        watch: is told which order is being tried.
    """
    best, best_value = None, np.inf
    for index, order in enumerate(topological_orders(units)):
        watch(Progress(f"filling devices along topological order {index + 1} of {ORDERS}", index, ORDERS))
        for device in _fillings(problem, units, order, deadline):
            assignment = units.expand(device)
            if problem.objective == "throughput":
                value = throughput_s(problem, assignment)
            else:
                value = latency_s(problem, PlacementPlan("", assignment))
            if value < best_value:
                best, best_value = device, value
        if deadline.passed:
            break
    return best


def topological_orders(units: Contraction) -> Iterator[list[int]]:
    """Orders of the units: the first in the file first; depth first, by either end of each unit's readers.

    The published greedy is the depth-first one; which of a unit's readers comes first is up to its hash tables.
    """
    successors = units.successors()
    yield topological_order(successors)
    yield depth_first_order(successors)
    yield depth_first_order([after[::-1] for after in successors])


def _fillings(
    problem: PlacementProblem, units: Contraction, order: list[int], deadline: Deadline
) -> Iterator[IntArray]:
    """[m] placements that fill device after device in this order; the last is not always the best."""
    if problem.objective == "latency":
        device = _filled_for_latency(problem, units, order)
        if device is not None:
            yield device
        return
    fillings: list[IntArray] = []

    def fits(load_s: float) -> bool:
        device = None if fillings and deadline.passed else _filled_up_to(problem, units, order, load_s)
        fillings.extend([] if device is None else [device])
        return device is not None

    everything_s = float(np.maximum(units.accelerator_s, units.cpu_s).sum() + units.net_s.sum())
    if fits(everything_s):
        least_enough(everything_s, fits)
    yield from fillings


def _filled_for_latency(problem: PlacementProblem, units: Contraction, order: list[int]) -> IntArray | None:
    """As much as its memory holds on every accelerator, the rest on the CPUs; None where that needs CPUs there are not.

    A unit that depends on the accelerator at hand by way of a CPU begins the next one: subgraphs are contiguous.
    """
    allowed = supported_devices(problem, units)
    before: list[list[int]] = [[] for _ in range(len(units))]
    for producer, consumer in units.order.tolist():
        before[consumer].append(producer)
    device = np.full(len(units), problem.accelerators)
    now, used, limit = 0, 0.0, problem.memory_bytes * (1.0 + ROUNDING)
    through_cpu: set[int] = set()  # units on CPUs that depend on the accelerator at hand
    for unit in order:
        held = float(units.memory_bytes[unit])
        if now < problem.accelerators and allowed[unit, 0]:
            if used + held > limit or through_cpu.intersection(before[unit]):
                now, used = now + 1, 0.0
                through_cpu.clear()
            if now < problem.accelerators:
                device[unit], used = now, used + held
                continue
        if not problem.cpus:
            return None
        if any(device[b] == now or b in through_cpu for b in before[unit]):
            through_cpu.add(unit)
    return device


def _filled_up_to(problem: PlacementProblem, units: Contraction, order: list[int], load_s: float) -> IntArray | None:
    """Every device filled as far as its load stays within the limit and its bytes fit; None where units are left."""
    allowed = supported_devices(problem, units)
    device = np.full(len(units), -1)
    accelerated = [unit for unit in order if problem.accelerators and allowed[unit, 0]]
    nets = _nets_of(units)
    start = 0
    for accelerator in range(problem.accelerators):
        stop = _furthest(problem, units, nets, accelerated, start, load_s)
        device[accelerated[start:stop]] = accelerator
        start = stop
    cpu, busy = problem.accelerators, 0.0
    cpu_s = units.cpu_s.sum(axis=0)
    for unit in order:
        if device[unit] >= 0:
            continue
        if busy and busy + cpu_s[unit] > load_s:
            cpu, busy = cpu + 1, 0.0
        if cpu >= problem.devices or busy + cpu_s[unit] > load_s:
            return None
        device[unit], busy = cpu, busy + float(cpu_s[unit])
    return device


def _nets_of(units: Contraction) -> list[list[int]]:
    """[m] nets of every unit."""
    nets: list[list[int]] = [[] for _ in range(len(units))]
    for net in range(units.net_s.size):
        for unit in units.net_units[units.net_start[net] : units.net_start[net + 1]].tolist():
            nets[unit].append(net)
    return nets


def _furthest(
    problem: PlacementProblem,
    units: Contraction,
    nets: list[list[int]],
    order: list[int],
    start: int,
    load_s: float,
) -> int:
    """One past the last unit that an accelerator beginning with unit `start` of the order can end with.

    Its load can fall again with one unit more, where that saves a transfer: all ends within its time are looked at.
    """
    times, sizes = units.accelerator_s.sum(axis=0), np.diff(units.net_start).tolist()
    held: dict[int, int] = {}
    compute = transfer = memory = 0.0
    furthest = start
    for at in range(start, len(order)):
        unit = order[at]
        compute, memory = compute + float(times[unit]), memory + float(units.memory_bytes[unit])
        if compute > load_s or memory > problem.memory_bytes * (1.0 + ROUNDING):
            break
        for net in nets[unit]:
            held[net] = held.get(net, 0) + 1
            transfer += float(units.net_s[net]) * ((held[net] == 1) - (held[net] == sizes[net]))
        load = max(compute, transfer) if problem.communication == "max" else compute + transfer
        if load <= load_s:
            furthest = at + 1
    return furthest


def _equal_layers(problem: PlacementProblem) -> IntArray:
    """[n] as many layers, in topological order, on every accelerator; what accelerators do not support on the CPUs."""
    units = contract(problem)
    (order, *_) = topological_orders(units)
    allowed = supported_devices(problem, units)
    layers = np.array([unit for unit in order if allowed[unit, 0]], dtype=np.int64)
    device = np.full(len(units), problem.accelerators)
    if problem.accelerators:
        device[layers] = np.arange(layers.size) * problem.accelerators // max(layers.size, 1)
    return units.expand(device)
