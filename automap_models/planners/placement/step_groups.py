"""What moves together when a step is placed: co-location classes, and larger groups of neighbouring classes.

    operations ── classes (a parameter with its updates) ── METIS, weighted by bytes ──→ at most so many groups

Only decisions are made on groups: whoever uses them simulates all operations. So nothing has to be acyclic, and a
forward operation may be in one group with the backward one that reads what it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType

import numpy as np
from scipy.sparse import coo_array, csr_array

from automap_models.core.placement import ROUNDING, BoolArray, FloatArray, IntArray, PlacementProblem
from automap_models.cost.step_tables import StepTables
from automap_models.errors import BadInput

RESOLUTION = 10_000
"""METIS counts in whole numbers: the largest weight of an edge."""


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
        producer, consumer = self.problem.graph.edges.T
        a, b = self.unit_of[producer], self.unit_of[consumer]
        apart = a != b
        sizes = self.problem.graph.output_bytes[producer][apart] + 1.0
        one_way = coo_array((sizes, (a[apart], b[apart])), shape=(len(self), len(self)))
        both = csr_array((one_way + one_way.T).tocsr())
        both.sum_duplicates()
        return both

    def expand(self, device: IntArray) -> IntArray:
        """[n] devices of the operations from the [u] ones of their units."""
        return device[self.unit_of]

    def repaired(self, device: IntArray) -> IntArray:
        """[u] the devices, where a unit may not be on one replaced by the first on which it may be."""
        fine = self.allowed[np.arange(len(self)), device]
        return np.where(fine, device, self.allowed.argmax(axis=1))


def pymetis_module(where: str) -> ModuleType:
    """METIS; `where` says who needs it.

    Raises:
        BadInput: pymetis is not installed.
    """
    try:
        return import_module("pymetis")
    except ImportError:
        raise BadInput("pymetis is not installed", where=where, do="pip install 'automap-models[place]'") from None


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
    return numbered_along(units, partition(units, most, seed), most)


def partition(units: StepUnits, parts: int, seed: int, *, recursive: bool = False, even: float = 0.5) -> IntArray:
    """[u] parts by METIS (Karypis & Kumar, 1998).

    Args:
        units: to be divided.
        parts: how many parts.
        seed: of its draws.
        recursive: bisect again and again instead of refining all parts at once.
        even: how much of a unit's weight is its count rather than its time, so that no part has too many.

    Raises:
        BadInput: pymetis is not installed.
    """
    pymetis = pymetis_module("planner of steps")
    if parts < 2 or len(units) <= parts:
        return np.arange(len(units)) % parts
    matrix = units.adjacency
    share = units.time_s / max(float(units.time_s.mean()), np.finfo(float).tiny)
    wanted = (1 - even) * share + even
    wanted = np.minimum(wanted, 0.5 * float(wanted.sum()) / parts)  # a heavier one would leave METIS empty parts
    weight = np.maximum(100 * wanted, 1).astype(np.int64)
    heaviest = max(float(matrix.data.max(initial=0.0)), np.finfo(float).tiny)
    edges = np.maximum(RESOLUTION * matrix.data / heaviest, 1).astype(np.int64)
    _, parts_of = pymetis.part_graph(
        parts,
        xadj=matrix.indptr.tolist(),
        adjncy=matrix.indices.tolist(),
        vweights=weight.tolist(),
        eweights=edges.tolist(),
        recursive=recursive,
        options=pymetis.Options(seed=seed),
    )
    return np.array(parts_of, dtype=np.int64)


def numbered_along(units: StepUnits, parts: IntArray, count: int) -> IntArray:
    """[u] the parts renumbered by the mean position of their units, so that devices follow the graph's order."""
    total = np.bincount(parts, weights=np.arange(len(units)), minlength=count)
    held = np.bincount(parts, minlength=count)
    mean = np.where(held > 0, total / np.maximum(held, 1), np.inf)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(count)
    return rank[parts]
