"""Units of operators that a contiguous placement keeps on one device, and the order that it has to respect.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §5.1.1 and §5.3.

A placement is *contiguous* when the devices can be numbered so that no order edge goes from a device to one with a
smaller number. The order edges are those of the forward pass, between colour classes; a class without forward nodes has
its place in the order from the backward pass, whose edges at it count reversed, as if it had forward nodes that mirror
its backward ones. The other backward nodes go where their class goes. Two contractions lose no contiguous placement:

- a class is one unit, and so are the classes on a cycle of order edges;
- a unit that takes no time anywhere joins its only neighbour. On that neighbour's device it costs nothing and saves a
  transfer, so this loses nothing *unless its bytes could overfill that device*; see `Contraction.lossless`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import ROUNDING, BoolArray, FloatArray, IntArray, PlacementProblem


@dataclass(frozen=True, eq=False)
class Contraction:
    """A placement problem on m units. Pass 0 is forward, pass 1 backward.

    Attributes:
        unit_of: [n] unit of each node; units are numbered by their first node.
        order: [o, 2] order edges between units, acyclic, ascending, each once.
        accelerator_s: [2, m] time of each pass of each unit on an accelerator.
        cpu_s: [2, m] the same on a CPU.
        memory_bytes: [m] what each takes on an accelerator.
        supported: [m] whether all its nodes are supported on accelerators.
        net_s: [h] transfer time of each net, by which it loads every device that holds some but not all of its units.
            A net is an output: the unit of its producer and those of its consumers, two units at least; outputs of
            the same pass with the same units are one net.
        net_pass: [h] pass of each net's producer.
        net_start: [h + 1] where each net's units begin in net_units.
        net_units: units of the nets, one net after the other.
        lossless: whether every contiguous placement that fits the memory has a counterpart on the units that fits as
            well and loads no device more.
    """

    unit_of: IntArray
    order: IntArray
    accelerator_s: FloatArray
    cpu_s: FloatArray
    memory_bytes: FloatArray
    supported: BoolArray
    net_s: FloatArray
    net_pass: IntArray
    net_start: IntArray
    net_units: IntArray
    lossless: bool

    def __len__(self) -> int:
        return self.memory_bytes.size

    def successors(self) -> list[list[int]]:
        """[m] units behind each unit by an order edge, ascending."""
        after: list[list[int]] = [[] for _ in range(len(self))]
        for unit, consumer in self.order.tolist():
            after[unit].append(consumer)
        return after

    def expand(self, unit_devices: IntArray) -> IntArray:
        """[n] device of each node from the [m] devices of the units."""
        return unit_devices[self.unit_of]


def contract(problem: PlacementProblem, *, lossless: bool = False) -> Contraction:
    """The problem on units.

    Args:
        problem: n operators.
        lossless: leave units that take no time alone where their bytes might matter. Without CPUs and with little
            memory this can leave many more units.
    """
    graph = problem.graph
    unit_of = _fused(graph.classes, _order_edges(problem, graph.classes))
    unit_of, has_lost = _attached(problem, unit_of, keep_bytes=lossless)
    m = int(unit_of.max()) + 1
    kind = graph.backward.astype(np.int64)
    accelerator_s, cpu_s = np.zeros((2, m)), np.zeros((2, m))
    np.add.at(accelerator_s, (kind, unit_of), graph.accelerator_s)
    np.add.at(cpu_s, (kind, unit_of), graph.cpu_s)
    nets = _nets(problem, unit_of)
    units = [units for _, units in nets]
    return Contraction(
        unit_of=unit_of,
        order=_order_edges(problem, unit_of),
        accelerator_s=accelerator_s,
        cpu_s=cpu_s,
        memory_bytes=np.bincount(unit_of, weights=graph.memory_bytes, minlength=m).astype(np.float64),
        supported=np.bincount(unit_of, weights=~graph.supported, minlength=m) == 0,
        net_s=np.array(list(nets.values()), dtype=np.float64),
        net_pass=np.array([kind for kind, _ in nets], dtype=np.int64),
        net_start=np.cumsum([0, *map(len, units)], dtype=np.int64),
        net_units=np.array([unit for members in units for unit in members], dtype=np.int64),
        lossless=not has_lost,
    )


def _order_edges(problem: PlacementProblem, unit_of: IntArray) -> IntArray:
    """[o, 2] order edges between the units of a partition, ascending, each once."""
    graph = problem.graph
    has_forward = np.zeros(int(graph.classes.max()) + 1, dtype=np.bool_)
    has_forward[graph.classes[~graph.backward]] = True
    orphaned = ~has_forward[graph.classes]
    producer, consumer = graph.edges.T
    forward = ~graph.backward[producer] & ~graph.backward[consumer]
    mirrored = graph.backward[producer] & graph.backward[consumer] & (orphaned[producer] | orphaned[consumer])
    edges = unit_of[np.concatenate([graph.edges[forward], graph.edges[mirrored][:, ::-1]])]
    return np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)


def _fused(unit_of: IntArray, order: IntArray) -> IntArray:
    """The partition with the units on a cycle of order edges made one, numbered by their first nodes."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    m = int(unit_of.max()) + 1
    graph = coo_array((np.ones(len(order)), (order[:, 0], order[:, 1])), shape=(m, m))
    _, component = connected_components(graph, directed=True, connection="strong")
    return _numbered(np.asarray(component, dtype=np.int64)[unit_of])


def _numbered(labels: IntArray) -> IntArray:
    """The same partition, numbered in the order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse].astype(np.int64)


def _attached(problem: PlacementProblem, unit_of: IntArray, *, keep_bytes: bool) -> tuple[IntArray, bool]:
    """The partition with units that take no time joined to their only neighbours; whether bytes moved that matter.

    A unit that only runs on CPUs does not join one that runs on accelerators too.
    """
    graph, m = problem.graph, int(unit_of.max()) + 1
    idle = np.bincount(unit_of, weights=graph.accelerator_s + graph.cpu_s, minlength=m) == 0
    memory = np.bincount(unit_of, weights=graph.memory_bytes, minlength=m)
    supported = np.bincount(unit_of, weights=~graph.supported, minlength=m) == 0
    limit = problem.memory_bytes * (1.0 + ROUNDING)
    binding = problem.accelerators > 0 and bool(memory[supported].sum() > limit)
    neighbours = _neighbours(problem, unit_of, m)
    joined = np.arange(m)
    has_lost = False
    waiting = np.flatnonzero(idle).tolist()
    for unit in waiting:  # grows while it is walked: a neighbour may be left with one neighbour in its turn
        if len(neighbours[unit]) != 1:
            continue
        (home,) = neighbours[unit]
        weighs = binding and memory[unit] > 0
        if (supported[home] and not supported[unit]) or (weighs and keep_bytes):
            continue
        has_lost |= bool(weighs)
        joined[unit] = home
        memory[home] += memory[unit]
        neighbours[unit].clear()
        neighbours[home].discard(unit)
        if idle[home]:
            waiting.append(home)
    while (joined != joined[joined]).any():
        joined = joined[joined]
    return _numbered(joined[unit_of]), has_lost


def _neighbours(problem: PlacementProblem, unit_of: IntArray, m: int) -> list[set[int]]:
    """[m] units that an edge connects with each unit, whatever its pass and direction."""
    neighbours: list[set[int]] = [set() for _ in range(m)]
    for a, b in unit_of[problem.graph.edges].tolist():
        if a != b:
            neighbours[a].add(b)
            neighbours[b].add(a)
    return neighbours


def _nets(problem: PlacementProblem, unit_of: IntArray) -> dict[tuple[int, tuple[int, ...]], float]:
    """Pass and units, ascending, of each output that has readers outside its unit → its transfer time."""
    graph = problem.graph
    units: dict[int, set[int]] = defaultdict(set)
    for producer, consumer in graph.edges.tolist():
        units[producer].update((int(unit_of[producer]), int(unit_of[consumer])))
    nets: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
    for producer, members in units.items():
        if len(members) > 1 and graph.transfer_s[producer] > 0:
            nets[int(graph.backward[producer]), tuple(sorted(members))] += float(graph.transfer_s[producer])
    return nets
