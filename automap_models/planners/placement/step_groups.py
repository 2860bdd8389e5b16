"""What moves together when a step is placed: co-location classes, and larger groups of neighbouring classes.

    operations ── classes (a parameter with its updates) ── METIS, weighted by bytes ──→ at most so many groups

Only decisions are made on groups: whoever uses them simulates all operations. So nothing has to be acyclic, and a
forward operation may be in one group with the backward one that reads what it keeps. METIS (Karypis & Kumar, 1998)
makes balanced parts of an undirected graph with little weight between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import numpy as np
from scipy.sparse import coo_array, csr_array

from automap_models.core.placement import ROUNDING, BoolArray, FloatArray, IntArray, PlacementProblem
from automap_models.cost.step_tables import StepTables
from automap_models.errors import BadInput


@dataclass(frozen=True, eq=False)
class StepUnits:
    """The u classes of a problem of n operations, and the graph between them.

    Attributes:
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
    def from_problem(cls, problem: PlacementProblem) -> StepUnits:
        """The units of a problem."""
        tables, graph = StepTables.from_problem(problem), problem.graph
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
        even: how much of the weight is a unit's count rather than its time, so that no part has too many.
    """
    share = units.time_s / max(float(units.time_s.mean()), np.finfo(float).tiny)
    wanted = (1 - even) * share + even
    # A heavier one would leave METIS empty parts.
    return 100 * np.minimum(wanted, 0.5 * float(wanted.sum()) / parts)


def symmetric(ends: IntArray, weight: FloatArray, size: int) -> csr_array:
    """[size, size] weights between two nodes, either way, without a diagonal.

    Args:
        ends: [2, e] nodes that the edges join; an edge from a node to itself does not count.
        weight: [e] of each edge.
    """
    apart = ends[0] != ends[1]
    one_way = coo_array((weight[apart], (ends[0][apart], ends[1][apart])), shape=(size, size))
    both = csr_array((one_way + one_way.T).tocsr())
    both.sum_duplicates()
    return both


def metis_parts(graph: csr_array, weight: FloatArray, parts: int, seed: int, *, recursive: bool = False) -> IntArray:
    """[m] part of each node.

    Args:
        graph: [m, m] symmetric weights of the edges.
        weight: [m] of each node, of which every part is to have about as much; whole numbers from 1 on are told apart,
            as are ten thousandths of the largest weight of an edge.
        recursive: bisect again and again instead of refining all parts at once.

    Raises:
        BadInput: pymetis is not installed.
    """
    try:
        pymetis = import_module("pymetis")
    except ImportError:
        do = "pip install 'automap-models[place]'"
        raise BadInput("pymetis is not installed", where="planner of placements", do=do) from None
    if parts < 2 or len(weight) <= parts:
        return np.arange(len(weight)) % max(parts, 1)
    heaviest = max(float(graph.data.max(initial=0.0)), np.finfo(float).tiny)
    _, part = pymetis.part_graph(
        parts,
        xadj=graph.indptr.tolist(),
        adjncy=graph.indices.tolist(),
        vweights=np.maximum(weight, 1).astype(np.int64).tolist(),
        eweights=np.maximum(10_000 * graph.data / heaviest, 1).astype(np.int64).tolist(),
        recursive=recursive,
        options=pymetis.Options(seed=seed),
    )
    return np.array(part, dtype=np.int64)


def several_parts(graph: csr_array, weight: FloatArray, parts: int, seed: int) -> Iterator[IntArray]:
    """[m] `metis_parts` of four seeds, each refined at once and bisected."""
    for turn in range(8 if parts > 1 else 1):
        yield metis_parts(graph, weight, parts, seed + turn // 2, recursive=bool(turn % 2))


def numbered_along(place: FloatArray, parts: IntArray, count: int) -> IntArray:
    """[m] the parts renumbered by the mean place of their nodes, so that they follow an order.

    Args:
        place: [m] of each node in that order.
        parts: [m] part of each node.
    """
    total, nodes = np.bincount(parts, weights=place, minlength=count), np.bincount(parts, minlength=count)
    mean = np.where(nodes > 0, total / np.maximum(nodes, 1), np.inf)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(count)
    return rank[parts]
