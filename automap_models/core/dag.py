"""Directed acyclic graphs: predecessors, orders, the cycle where there is one, and a line that is cheap to cut.

The bytes that cross a cut of a line are the outputs of the nodes before it with a consumer after it, each once. The
order with the smallest sum of them over all cuts is a shortest path over the ideals of the DAG (sets of nodes closed
under predecessors; Jeong et al., arXiv 2006.16423, plan on the same lattice). Layer graphs have few ideals, so the
search below is exact on them; on wider graphs it becomes a beam search, and the result never has more than
depth-first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

Edges = Sequence[Sequence[int]]
"""Successors of each node."""


def predecessors_of(successors: Edges) -> list[list[int]]:
    """Predecessors of each node, in ascending order."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for node, after in enumerate(successors):
        for consumer in after:
            predecessors[consumer].append(node)
    return predecessors


def topological_order(successors: Edges, keys: Sequence[Any] | None = None) -> list[int]:
    """The nodes with each after its predecessors; of the ready ones that with the smallest key first, then number.

    A node on a cycle, or behind one, is left out: the order is shorter than the graph exactly when there is one.

    Args:
        keys: of the nodes, of one type that has an order; None: only numbers count.
    """
    keys = [0] * len(successors) if keys is None else keys
    missing = _predecessor_counts(successors)
    ready = [(keys[node], node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[1])
        for consumer in successors[order[-1]]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heappush(ready, (keys[consumer], consumer))
    return order


def _predecessor_counts(successors: Edges) -> list[int]:
    counts = [0] * len(successors)
    for after in successors:
        for consumer in after:
            counts[consumer] += 1
    return counts


def depth_first_order(successors: Edges) -> list[int]:
    """The nodes with each after its predecessors, going on from the node that was added last where that is possible.

    Args:
        successors: acyclic; the last of the successors that become ready is the one to go on with.
    """
    missing = _predecessor_counts(successors)
    ready = [node for node, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(ready.pop())
        for consumer in successors[order[-1]]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return order


def post_order(inputs_of: Callable[[int], Sequence[int]], ends: Sequence[int]) -> list[int]:
    """The nodes that the ends depend on, and these, each after its inputs, depth first.

    Args:
        inputs_of: the inputs of a node in the order in which they are looked into; acyclic.
        ends: where the search begins, in this order.
    """
    order: list[int] = []
    visited: set[int] = set()
    stack = [(node, False) for node in reversed(ends)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in visited:
            visited.add(node)
            stack.append((node, True))
            stack += [(before, False) for before in reversed(inputs_of(node)) if before not in visited]
    return order


def find_cycle(successors: Edges) -> list[int] | None:
    """Nodes of one cycle in order, from the smallest on, or None when there is none."""
    stuck = set(range(len(successors))).difference(topological_order(successors))
    if not stuck:
        return None
    predecessors = predecessors_of(successors)
    node = min(stuck)
    path: dict[int, int] = {}
    while node not in path:  # every stuck node waits for another stuck one: walking back must close a circle
        path[node] = len(path)
        node = min(before for before in predecessors[node] if before in stuck)
    cycle = list(path)[path[node] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


class _Prefix(NamedTuple):
    """The best known way to have executed one ideal."""

    total: float
    live: float
    ready: tuple[int, ...]
    last: int
    before: _Prefix | None


def order_with_little_crossing(sizes: Sequence[float], successors: Edges, work: int = 400_000) -> list[int]:
    """A topological order with a small sum of crossing bytes; equal ones are decided by the nodes' numbers.

    Args:
        sizes: output bytes of each node.
        successors: consumers of each node; acyclic, without duplicates.
        work: steps between ideals that the search may look at before it turns into a beam search.
    """
    sinks = [node for node, after in enumerate(successors) if not after]
    depth_first = post_order(predecessors_of(successors).__getitem__, sinks)  # a node's inputs come right before it
    candidates = _Lattice(sizes, successors, work).walk(), depth_first
    return min(candidates, key=lambda order: math.fsum(crossing_bytes(order, sizes, successors)))


def crossing_bytes(order: Sequence[int], sizes: Sequence[float], successors: Edges) -> list[float]:
    """The bytes that cross the cut right after each position of a topological order."""
    position = {node: i for i, node in enumerate(order)}
    dies: list[list[int]] = [[] for _ in order]
    live: dict[int, float] = {}
    crossing = []
    for i, node in enumerate(order):
        if successors[node]:
            dies[max(position[after] for after in successors[node])].append(node)
            live[node] = sizes[node]
        for dead in dies[i]:
            del live[dead]
        crossing.append(math.fsum(live.values()))  # no running sum: its rounding errors would outlive the bytes
    return crossing


class _Lattice:
    """The ideals of a DAG as bit sets, walked in layers of one more node each."""

    def __init__(self, sizes: Sequence[float], successors: Edges, work: int) -> None:
        self.sizes = sizes
        self.successors = successors
        self.predecessors = predecessors_of(successors)
        self.before = [sum(1 << p for p in nodes) for nodes in self.predecessors]
        self.after = [sum(1 << s for s in nodes) for nodes in successors]
        self.steps = max(1, work // len(sizes))

    def walk(self) -> list[int]:
        """The order along the shortest path; a layer too wide for its share of the work keeps its best ideals."""
        roots = tuple(node for node, inputs in enumerate(self.before) if not inputs)
        layer = {0: _Prefix(0.0, 0.0, roots, -1, None)}
        for _ in self.sizes:
            layer = self._keep(self._grow(layer))
        return _unwound(next(iter(layer.values())))

    def _grow(self, layer: dict[int, _Prefix]) -> dict[int, _Prefix]:
        """The best way into each ideal of the next layer; what is ready in it is left for later."""
        grown: dict[int, _Prefix] = {}
        for ideal, prefix in layer.items():
            for node in prefix.ready[: self.steps]:
                larger = ideal | 1 << node
                freed = math.fsum(self.sizes[p] for p in self.predecessors[node] if not self.after[p] & ~larger)
                live = prefix.live + (self.sizes[node] if self.after[node] else 0.0) - freed
                total = prefix.total + live
                if larger not in grown or total < grown[larger].total:
                    grown[larger] = _Prefix(total, live, (), node, prefix)
        return grown

    def _keep(self, grown: dict[int, _Prefix]) -> dict[int, _Prefix]:
        """The cheapest ideals whose ready nodes fit into the layer's share of the work, at least one."""
        layer: dict[int, _Prefix] = {}
        steps = self.steps
        for ideal, prefix in sorted(grown.items(), key=lambda item: item[1].total):
            ready = {s for s in self.successors[prefix.last] if not self.before[s] & ~ideal}
            ready.update(prefix.before.ready if prefix.before else ())
            ready.discard(prefix.last)
            steps -= len(ready)
            if layer and steps < 0:
                break
            layer[ideal] = prefix._replace(ready=tuple(sorted(ready)))
        return layer


def _unwound(prefix: _Prefix) -> list[int]:
    order = []
    while prefix.before is not None:
        order.append(prefix.last)
        prefix = prefix.before
    return order[::-1]
