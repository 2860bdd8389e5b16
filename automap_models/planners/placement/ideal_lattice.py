"""The ideals of a DAG (sets of nodes closed under predecessors), and which of them differ by one node.

    a → b → d      ideals: {} {a} {ab} {ac} {abc} {abcd}        the difference of two of them, one inside the other,
     ↘ c ↗         steps:  {a} -b-> {ab}, {a} -c-> {ac}, …      is contiguous: {abcd} - {a} = {b, c, d}

Ideals are bit sets, numbered by size and, within a size, in the order in which the search meets them:
an ideal's number is larger than those of its subsets. A set of nodes is contiguous exactly when it is the difference
of two ideals, one inside the other (Tarnawski et al., NeurIPS 2020, §5.1.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from automap_models.core.placement import FloatArray, IntArray

SmallArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Lattice:
    """N ideals of m nodes; ideal 0 is empty, ideal N - 1 holds all nodes.

    Attributes:
        first: [N + 1] where the steps out of each ideal begin.
        node: [steps] node that a step adds.
        larger: [steps] ideal that it leads to.
    """

    first: IntArray
    node: SmallArray
    larger: SmallArray

    def __len__(self) -> int:
        return self.first.size - 1

    def nodes_of(self, ideal: int) -> IntArray:
        """Nodes of an ideal, in an order in which they can be added."""
        smaller, added = self._removable
        nodes = []
        while ideal:
            nodes.append(int(added[ideal]))
            ideal = int(smaller[ideal])
        return np.array(nodes[::-1], dtype=np.int64)

    @cached_property
    def _removable(self) -> tuple[IntArray, IntArray]:
        """[N] one of the ideals with one node less, and that node."""
        smaller, added = np.zeros((2, len(self)), dtype=np.int64)
        smaller[self.larger] = np.repeat(np.arange(len(self)), np.diff(self.first))
        added[self.larger] = self.node
        return smaller, added

    def sums(self, amounts: FloatArray) -> FloatArray:
        """[N] sum over the nodes of each ideal of [m] amounts."""
        smaller, added = self._removable
        more = amounts[added].tolist()
        total = [0.0] * len(self)
        for ideal, subset in enumerate(smaller[1:].tolist(), 1):
            total[ideal] = total[subset] + more[ideal]
        return np.array(total)


class TooManyIdeals(Exception):
    """The DAG has more ideals than the limit."""


def line_lattice(order: IntArray) -> Lattice:
    """The ideals of the path through all nodes in a given order: its prefixes."""
    m = order.size
    steps = np.arange(m + 2, dtype=np.int64)
    return Lattice(np.minimum(steps, m), order.astype(np.int32), steps[1 : m + 1].astype(np.int32))


def ideal_lattice(m: int, edges: IntArray, limit: int) -> Lattice:
    """All ideals of a DAG, by breadth-first search from the empty one.

    Args:
        m: number of nodes.
        edges: [e, 2] producer and consumer of each edge, each once; acyclic.
        limit: how many ideals there may be.

    Raises:
        TooManyIdeals: there are more ideals than the limit; they are counted no further.
    """
    producers, consumers = [0] * m, [[] for _ in range(m)]  # type: tuple[list[int], list[list[int]]]
    for producer, consumer in edges.tolist():
        producers[consumer] |= 1 << producer
        consumers[producer].append(consumer)
    ideals, number = [0], {0: 0}
    addable = [sum(1 << v for v in range(m) if not producers[v])]  # of each ideal: outside, all producers inside
    first, node, larger = [0], [], []  # type: tuple[list[int], list[int], list[int]]
    for ideal, inside in enumerate(ideals):  # which grows on the way
        left = addable[ideal]
        while left:
            bit = left & -left
            left ^= bit
            grown, v = inside | bit, bit.bit_length() - 1
            if grown not in number:
                if len(ideals) == limit:
                    raise TooManyIdeals
                number[grown] = len(ideals)
                ideals.append(grown)
                opened = (1 << c for c in consumers[v] if not producers[c] & ~grown)
                addable.append((addable[ideal] ^ bit) | sum(opened))
            node.append(v)
            larger.append(number[grown])
        first.append(len(node))
    return Lattice(np.array(first), np.array(node, dtype=np.int32), np.array(larger, dtype=np.int32))
