"""A placement as a person makes it: a split in a file or, for a step, whole layers in order, in runs of equal time.

    layers      embed  lstm_0  lstm_1  lstm_2  softmax
    devices     └── 0 ──┘      └─ 1 ─┘ └──── 2 ────┘

This is the human expert of GDP (arXiv 1910.01578, §4.1), who puts the layers of a recurrent network on devices in their
order, with one thing better: the runs are the best that there are in that order, by their compute time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import contract
from automap_models.core.dag import topological_order
from automap_models.core.placement import FloatArray, IntArray, Objective, PlacementPlan, PlacementProblem
from automap_models.errors import BadInput
from automap_models.formats.placement_plan import read_split
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, least_enough
from automap_models.planners.placement.step_groups import StepUnits


@dataclass(frozen=True)
class ExpertConfig:
    """The configuration of `expert`.

    Attributes:
        split: an expert's placement in a file (formats.placement_plan); None, for a step, places layers in their order.
    """

    split: str | os.PathLike[str] | None = None


class ExpertPlanner(PlacementPlanner[ExpertConfig]):
    """A human expert's split from a file or, for a step, runs of layers of about equal time."""

    name: ClassVar[str] = "expert"
    config_type: ClassVar[type[ExpertConfig]] = ExpertConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("throughput", "latency", "step")

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The expert's placement; none where it does not fit the memory.

        Raises:
            BadInput: there is no split file, or it is none, or one of another graph.
        """
        split = self.config.split
        if split is None:
            if problem.objective != "step":
                do = "give the expert's placement, or another planner"
                raise BadInput("planner expert reads a split from a file", where="`split`", do=do)
            watch(Progress("putting layers on devices in their order", 0, 1))
            units = StepUnits.from_problem(problem)
            return Outcome(PlacementPlan(self.name, units.expand(units.repaired(layers_in_order(units)))))
        watch(Progress(f"reading {split}", 0, 1))
        plan = PlacementPlan(self.name, read_split(split, problem))
        total = float(problem.graph.memory_bytes.sum())
        roomy = replace(problem, memory_bytes=max(problem.memory_bytes, total))
        valid, objection = plan.check_valid(roomy)
        if not valid:
            raise BadInput(objection, where=str(split), do="give a split made for this graph and these devices")
        return Outcome(plan)


def layers_in_order(units: StepUnits) -> IntArray:
    """[u] devices of the units, whole layers by name; where a graph has no names, in the order of the forward pass."""
    problem = units.problem
    layer = unit_layers(units)
    count = int(layer.max()) + 1
    time_s = np.bincount(layer, weights=units.time_s, minlength=count).astype(np.float64)
    memory = np.bincount(layer, weights=units.memory_bytes, minlength=count).astype(np.float64)
    devices = problem.step_devices
    usable = np.flatnonzero(~devices.is_cpu) if problem.accelerators else np.arange(problem.devices)
    run = _runs(time_s, memory, 1.0 / devices.slowdown[usable], devices.memory_bytes[usable])
    return usable[run[layer]]


def unit_layers(units: StepUnits) -> IntArray:
    """[u] layer of each unit, numbered in the order in which the step first comes to them.

    A layer is what the names of the operations say up to a depth: the smallest with twice as many layers as devices,
    or the deepest. Units without a name belong to the layer of a unit next to them.
    """
    graph = units.problem.graph
    paths = [name.split("/") if name else [] for name in graph.names]
    named = [path for path in paths if path]
    if not named:
        return _forward_order(units)
    wanted = 2 * units.problem.devices
    deepest = max(map(len, named))
    depth = next((d for d in range(1, deepest) if len({tuple(path[:d]) for path in named}) >= wanted), deepest)
    of_unit: list[tuple[str, ...] | None] = [None] * len(units)
    for v in units.tables.order.tolist():
        unit = int(units.unit_of[v])
        if of_unit[unit] is None and paths[v]:
            of_unit[unit] = tuple(paths[v][:depth])
    _from_neighbours(units, of_unit)
    layer_numbers: dict[tuple[str, ...] | None, int] = {}
    return np.array([layer_numbers.setdefault(path, len(layer_numbers)) for path in of_unit])


def _forward_order(units: StepUnits) -> IntArray:
    """[u] place of each unit in the forward pass, where its backward operations have that of their class."""
    pieces = contract(units.problem)
    place = np.empty(len(pieces), dtype=np.int64)
    place[topological_order(pieces.successors())] = np.arange(len(pieces))
    of_unit = np.full(len(units), len(pieces))
    np.minimum.at(of_unit, units.unit_of, place[pieces.unit_of])
    return np.unique(of_unit, return_inverse=True)[1].astype(np.int64)


def _from_neighbours(units: StepUnits, of_unit: list[tuple[str, ...] | None]) -> None:
    """Names for units without one, from those next to them, ring by ring."""
    matrix = units.adjacency
    ring = [unit for unit, path in enumerate(of_unit) if path is not None]
    while ring:
        reached = []
        for unit in ring:
            for near in matrix.indices[matrix.indptr[unit] : matrix.indptr[unit + 1]].tolist():
                if of_unit[near] is None:
                    of_unit[near] = of_unit[unit]
                    reached.append(near)
        ring = reached


def _runs(time_s: FloatArray, memory: FloatArray, speed: FloatArray, room: FloatArray) -> IntArray:
    """[layers] the run of each, one run a device, so that the longest takes the least time; memory is kept to."""

    def fits(limit_s: float) -> bool:
        return int(_filled(time_s, memory, speed, room, limit_s).max()) < speed.size

    limit_s = least_enough(float(time_s.sum() / speed.min()), fits)
    run = _filled(time_s, memory, speed, room, limit_s if fits(limit_s) else np.inf)
    return np.minimum(run, speed.size - 1)


def _filled(time_s: FloatArray, memory: FloatArray, speed: FloatArray, room: FloatArray, limit_s: float) -> IntArray:
    """[layers] run after run filled up to a time; one past the last device for what is left over."""
    run, device, used_s, used = np.zeros(time_s.size, dtype=np.int64), 0, 0.0, 0.0
    for layer in range(time_s.size):
        while device < speed.size and (
            used_s + time_s[layer] / speed[device] > limit_s or used + memory[layer] > room[device]
        ):
            device, used_s, used = device + 1, 0.0, 0.0
        run[layer] = device
        if device < speed.size:
            used_s, used = used_s + time_s[layer] / speed[device], used + memory[layer]
    return run
