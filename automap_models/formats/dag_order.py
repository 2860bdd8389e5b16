"""A line for a DAG: an execution order that keeps little alive at each cut.

The bytes that cross a cut are the outputs of the nodes before it with a consumer after it, each once. The order
with the smallest sum of them over all cuts is a shortest path over the ideals of the DAG (sets of nodes closed under
predecessors; Jeong et al., arXiv 2006.16423, plan on the same lattice). Layer graphs have few ideals, so the search
below is exact on them; on wider graphs it becomes a beam search, and the result never has more than depth-first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from automap_models.core.dag import Edges, predecessors_of

WORK = 400_000
"""Steps between ideals that the search may look at before it turns into a beam search."""


class _Prefix(NamedTuple):
    """The best known way to have executed one ideal."""

    total: float
    live: float
    ready: tuple[int, ...]
    last: int
    before: _Prefix | None


def order_with_little_crossing(sizes: Sequence[float], successors: Edges) -> list[int]:
    """A topological order with a small sum of crossing bytes; equal ones are decided by the nodes' numbers.

    Args:
        sizes: output bytes of each node.
        successors: consumers of each node; acyclic, without duplicates.
    """
    candidates = _Lattice(sizes, successors).walk(), _depth_first(successors)
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

    def __init__(self, sizes: Sequence[float], successors: Edges) -> None:
        self.sizes = sizes
        self.successors = successors
        self.predecessors = predecessors_of(successors)
        self.before = [sum(1 << p for p in nodes) for nodes in self.predecessors]
        self.after = [sum(1 << s for s in nodes) for nodes in successors]
        self.steps = max(1, WORK // len(sizes))

    def walk(self) -> list[int]:
        """The order along the shortest path; a layer that is too wide for its share of WORK keeps its best ideals."""
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
        """The cheapest ideals whose ready nodes fit into the layer's share of WORK, at least one."""
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


def _depth_first(successors: Edges) -> list[int]:
    """Post-order over predecessors from each sink: a node's inputs come right before it."""
    predecessors = predecessors_of(successors)
    order: list[int] = []
    seen: set[int] = set()
    stack = [(node, False) for node in range(len(successors) - 1, -1, -1) if not successors[node]]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(before, False) for before in reversed(predecessors[node]) if before not in seen]
    return order
