"""Directed acyclic graphs: predecessors, topological orders, and the cycle where a graph is not acyclic."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

Edges = Sequence[Sequence[int]]
"""Successors of each node."""


def predecessors_of(successors: Edges) -> list[list[int]]:
    """Predecessors of each node, in ascending order."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for node, after in enumerate(successors):
        for consumer in after:
            predecessors[consumer].append(node)
    return predecessors


def topological_order(successors: Edges) -> list[int]:
    """The nodes with each after its predecessors, the smallest of the ready ones first.

    A node on a cycle, or behind one, is left out: the order is shorter than the graph exactly when there is one.
    """
    missing = [0] * len(successors)
    for after in successors:
        for consumer in after:
            missing[consumer] += 1
    ready = [node for node, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for consumer in successors[node]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heappush(ready, consumer)
    return order


def depth_first_order(successors: Edges) -> list[int]:
    """The nodes with each after its predecessors, going on from the node that was added last where that is possible.

    Args:
        successors: acyclic; the last of the successors that become ready is the one to go on with.
    """
    missing = [0] * len(successors)
    for after in successors:
        for consumer in after:
            missing[consumer] += 1
    ready = [node for node, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(ready.pop())
        for consumer in successors[order[-1]]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
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
