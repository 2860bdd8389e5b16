"""What moves together when a step is placed: co-location classes, and larger groups of neighbouring classes.

    operations ── classes (a parameter with its updates) ── METIS, weighted by bytes ──→ at most so many groups

Only decisions are made on groups: whoever uses them simulates all operations. So nothing has to be acyclic, and a
forward operation may be in one group with the backward one that reads what it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from automap_models.core.placement import ROUNDING, BoolArray, FloatArray, IntArray, PlacementProblem
from automap_models.cost.step_tables import StepTables
from automap_models.planners.placement.partition import metis_parts, numbered_along, symmetric


@dataclass(frozen=True, eq=False)
class StepUnits:
    """The u classes of a problem of n operations, and the graph between them.

    Attributes:
        problem: what to place.
        tables: of the problem, for simulations.
        unit_of: [n] unit of each operation, numbered in topological order of their first.
        time_s: [u] mean time over the devices.
        memory_bytes: [u] what each occupies all the time.
        allowed: [u, D] devices that support a unit and have room for it alone.
    """

    problem: PlacementProblem
    tables: StepTables
    unit_of: IntArray
    time_s: FloatArray
    memory_bytes: FloatArray
    allowed: BoolArray

    @classmethod
    def of(cls, problem: PlacementProblem) -> StepUnits:
        """The units of a problem."""
        tables, graph = StepTables.of(problem), problem.graph
        place = np.empty(len(graph), dtype=np.int64)
        place[tables.order] = np.arange(len(graph))
        labels = np.unique(graph.classes, return_inverse=True)[1]
        first = np.full(labels.max() + 1, len(graph))
        np.minimum.at(first, labels, place)
        rank = np.empty(first.size, dtype=np.int64)
        rank[np.argsort(first)] = np.arange(first.size)
        unit_of = rank[labels]
        memory = np.bincount(unit_of, weights=graph.memory_bytes).astype(np.float64)
        supported = np.bincount(unit_of, weights=~graph.supported) == 0
        devices = problem.step_devices
        room = memory[:, None] <= devices.memory_bytes * (1.0 + ROUNDING)
        finite = np.where(np.isfinite(tables.time_s), tables.time_s, 0.0).mean(axis=0)
        return cls(
            problem,
            tables,
            unit_of,
            np.bincount(unit_of, weights=finite).astype(np.float64),
            memory,
            room & (supported[:, None] | devices.is_cpu),
        )

    def __len__(self) -> int:
        return self.memory_bytes.size

    @cached_property
    def adjacency(self) -> csr_array:
        """[u, u] bytes between two units, either way, as a symmetric matrix without a diagonal."""
        edges = self.problem.graph.edges
        sizes = self.problem.graph.output_bytes[edges[:, 0]] + 1.0
        return symmetric(self.unit_of[edges.T], sizes, len(self))

    def expand(self, device: IntArray) -> IntArray:
        """[n] devices of the operations from the [u] ones of their units."""
        return device[self.unit_of]

    def repaired(self, device: IntArray) -> IntArray:
        """[u] the devices, where a unit may not be on one replaced by the first on which it may be."""
        fine = self.allowed[np.arange(len(self)), device]
        return np.where(fine, device, self.allowed.argmax(axis=1))


def grouped(units: StepUnits, most: int, seed: int) -> IntArray:
    """[u] group of each unit: balanced in time, with few bytes between groups, in order of their mean position.

    Args:
        units: to be grouped.
        most: how many groups to make at most.
        seed: of METIS.

    Raises:
        BadInput: pymetis is not installed.
    """
    if len(units) <= most:
        return np.arange(len(units))
    if len(units) < 2 * most:  # METIS leaves parts empty then
        return np.arange(len(units)) * most // len(units)
    parts = metis_parts(units.adjacency, weights(units, most, 0.5), most, seed)
    return numbered_along(np.arange(float(len(units))), parts, most)


def weights(units: StepUnits, parts: int, even: float) -> FloatArray:
    """[u] what a unit weighs in a balance of so many parts.

    Args:
        units: to be weighed.
        parts: how many parts.
        even: how much of the weight is a unit's count rather than its time, so that no part has too many.
    """
    share = units.time_s / max(float(units.time_s.mean()), np.finfo(float).tiny)
    wanted = (1 - even) * share + even
    # A heavier one would leave METIS empty parts.
    return 100 * np.minimum(wanted, 0.5 * float(wanted.sum()) / parts)
