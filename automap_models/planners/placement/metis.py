"""Balanced partition with least communication, as compilers place (arXiv 1906.08168), made fit for a pipeline.

METIS (Karypis & Kumar, 1998) cuts the undirected graph of units, edges weighted by their transfer time and units by
their time on an accelerator, into one part an accelerator. It knows neither directions nor bytes. So the parts are
numbered by where their units lie in the topological order on average, and units move until no order edge goes from a
part to one with a smaller number (cf. Herrmann et al., "Multilevel Algorithms for Acyclic Partitioning of Directed
Acyclic Graphs", 2019): the quotient is acyclic. Local moves that keep it so then make room where the memory is passed,
and shorten the slowest device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.placement import BoolArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.cost.placement import latency_s
from automap_models.errors import BadInput
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.heuristics import supported_devices, topological_orders
from automap_models.planners.placement.local_search import Effort, Loads, LocalSearchConfig, descend
from automap_models.planners.placement.packing import no_placement
from automap_models.planners.placement.partition import RESOLUTION, SEEDS, numbered_along, several_parts, symmetric
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_search import metis_starts, score_of

PARTITIONS = 2 * SEEDS
"""Partitions by METIS."""


class MetisPlanner(PlacementPlanner[SeedConfig]):
    """METIS, repaired."""

    name: ClassVar[str] = "metis"
    config_type: ClassVar[type[SeedConfig]] = SeedConfig
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best of some partitions after repair and local moves; none where none could be made to fit the memory.

        Units that accelerators do not support are on CPUs and bind no order; the accelerators' quotient is acyclic.

        Raises:
            BadInput: pymetis is not installed, or there is no accelerator.
        """
        if not problem.accelerators:
            raise BadInput("there is no accelerator to balance work over", where="planner metis", do="use single")
        if problem.objective == "step":
            return self._step(problem, deadline, watch)
        effort, units = Effort(deadline, LocalSearchConfig().work), contract(problem)
        if not problem.cpus and not _bound(problem, units).all():
            return Outcome(reason=no_placement(problem, self.name))  # a cycle of classes too large for any accelerator
        starts = []
        for index, parts in enumerate(_partitions(problem, units, self.config.seed)):
            watch(Progress(f"partition {index + 1} of {PARTITIONS} by METIS", index, PARTITIONS))
            starts += [Loads(problem, units, device) for device in _acyclic(problem, units, parts)]
            if deadline.passed:
                break
        starts.sort(key=lambda start: astuple(start.score()))
        best, best_s = None, np.inf
        for index, loads in enumerate(starts):
            watch(Progress(f"local moves from partition {index + 1} of {len(starts)}", index, len(starts)))
            device, score = descend(loads, lambda at: acyclic_moves(problem, units, at), effort)
            value_s = np.inf if score.excess else _value_s(problem, units, device, score.value_s)
            if value_s < best_s:
                best, best_s = device, value_s
            if deadline.passed and best is not None:
                break
        if best is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, units.expand(best)))

    def _step(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best of the partitions, each simulated as it is."""
        units, best, best_score = StepUnits.of(problem), None, None
        for index, device in enumerate(metis_starts(units, problem.devices, self.config.seed, deadline)):
            watch(Progress(f"partition {index + 1} by METIS", index))
            score = score_of(units, device)
            if best_score is None or score < best_score:
                best, best_score = device, score
        if best is None or best_score is None or best_score.excess_bytes > 0:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, units.expand(best)))


def acyclic_moves(problem: PlacementProblem, units: Contraction, device: IntArray) -> BoolArray:
    """[m, D] moves of single units after which still no order edge goes to a device of a smaller number."""
    low, high = np.zeros(len(units), dtype=np.int64), np.full(len(units), problem.devices - 1)
    bound = _bound(problem, units)
    before, after = units.order[bound[units.order].all(axis=1)].T
    np.maximum.at(low, after, device[before])
    np.minimum.at(high, before, device[after])
    at = np.arange(problem.devices)[None, :]
    moves: BoolArray = supported_devices(problem, units) & (at >= low[:, None]) & (at <= high[:, None])
    return moves


def _bound(problem: PlacementProblem, units: Contraction) -> BoolArray:
    """[m] whether the order of devices binds a unit: those that can only be on CPUs are free."""
    on_first: BoolArray = supported_devices(problem, units)[:, 0]
    return on_first


def _value_s(problem: PlacementProblem, units: Contraction, device: IntArray, throughput: float) -> float:
    """What the problem minimises; local moves are for throughput in either case."""
    if problem.objective == "throughput":
        return throughput
    return latency_s(problem, PlacementPlan("", units.expand(device)))


def _partitions(problem: PlacementProblem, units: Contraction, seed: int) -> Iterator[IntArray]:
    """[m] parts of the units, several times; units for CPUs only are in part 0.

    Raises:
        BadInput: pymetis is not installed.
    """
    own = np.flatnonzero(_bound(problem, units))
    parts = min(problem.accelerators, own.size)
    edges = problem.graph.edges
    graph = symmetric(units.unit_of[edges.T], problem.graph.transfer_s[edges[:, 0]], len(units))[own][:, own]
    times = units.accelerator_s.sum(axis=0)[own]
    share = times / max(float(times.sum()) / max(parts, 1), np.finfo(float).tiny)
    for drawn in several_parts(graph, RESOLUTION * share, parts, seed):
        part = np.zeros(len(units), dtype=np.int64)
        part[own] = drawn
        yield part


def _acyclic(problem: PlacementProblem, units: Contraction, parts: IntArray) -> Iterator[IntArray]:
    """[m] devices from parts: numbered along the order, then units moved on, or back, until no edge goes backwards."""
    (order, *_) = topological_orders(units)
    place = np.empty(len(units))
    place[order] = np.arange(len(units))
    bound = _bound(problem, units)
    along = numbered_along(place, parts, problem.accelerators)
    numbered = np.where(bound, along, problem.accelerators)
    edges = units.order[bound[units.order].all(axis=1)]
    for forwards in (True, False):
        yield _monotone(numbered, edges, order, forwards=forwards)


def _monotone(device: IntArray, edges: IntArray, order: list[int], *, forwards: bool) -> IntArray:
    """[m] no edge goes backwards: each unit on the device of its latest predecessor or a later one, or mirrored."""
    near: list[list[int]] = [[] for _ in range(device.size)]
    for before, after in edges.tolist():
        near[after if forwards else before].append(before if forwards else after)
    settled = device.tolist()
    for unit in order if forwards else order[::-1]:
        ends = [settled[unit], *(settled[other] for other in near[unit])]
        settled[unit] = max(ends) if forwards else min(ends)
    return np.array(settled, dtype=np.int64)
