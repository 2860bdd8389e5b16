"""The ideals of a DAG (sets of nodes closed under predecessors), and which of them differ by one node.

    a → b → d      ideals: {} {a} {ab} {ac} {abc} {abcd}        the difference of two of them, one inside the other,
     ↘ c ↗         steps:  {a} -b-> {ab}, {a} -c-> {ac}, …      is contiguous: {abcd} - {a} = {b, c, d}

Ideals are bit sets of 64-bit words, numbered by size and, within a size, in the order in which the search meets them:
an ideal's number is larger than those of its subsets. A set of nodes is contiguous exactly when it is the difference
of two ideals, one inside the other (Tarnawski et al., NeurIPS 2020, §5.1.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.placement import FloatArray, IntArray
from automap_models.planners.base import NEVER, Deadline, OutOfTime

WordArray = NDArray[np.uint64]
SmallArray = NDArray[np.int32]
ArrayT = TypeVar("ArrayT", bound=NDArray[Any])

FIRST_CAPACITY = 1024
"""Ideals for which the first arrays have room; a power of 2, as the hash table wants it."""
FIRST_LIMIT = 4096
"""Ideals after which the search for them looks at the clock for the first time."""
WIDENING = 4
"""Factor by which that number grows from look to look; each time the search begins anew, which costs a third more."""


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
        return np.asarray(_sums(self.first, self.node, self.larger, amounts))


class TooManyIdeals(Exception):
    """The DAG has more ideals than the limit."""


def line_lattice(order: IntArray) -> Lattice:
    """The ideals of the path through all nodes in a given order: its prefixes."""
    m = order.size
    steps = np.arange(m + 2, dtype=np.int64)
    return Lattice(np.minimum(steps, m), order.astype(np.int32), steps[1 : m + 1].astype(np.int32))


def ideal_lattice(m: int, edges: IntArray, limit: int, deadline: Deadline = NEVER) -> Lattice:
    """All ideals of a DAG.

    Args:
        m: number of nodes.
        edges: [e, 2] producer and consumer of each edge, each once; acyclic.
        limit: how many ideals there may be.
        deadline: when to stop.

    Raises:
        TooManyIdeals: there are more ideals than the limit; they are counted no further.
        OutOfTime: the deadline has passed, or will have passed before the next look at the clock.
    """
    words = m // 64 + 1
    masks = np.zeros((m, words), dtype=np.uint64)
    np.bitwise_or.at(masks, (edges[:, 1], edges[:, 0] // 64), np.uint64(1) << (edges[:, 0] % 64).astype(np.uint64))
    by_producer = np.argsort(edges[:, 0], kind="stable")
    start = np.searchsorted(edges[by_producer, 0], np.arange(m + 1)).astype(np.int64)
    keys = np.random.default_rng(0).integers(0, 2**63, m, dtype=np.uint64)
    allowed = 0  # the first look may take long on a new machine, which has to compile first
    while allowed < limit:
        allowed = min(limit, WIDENING * allowed or FIRST_LIMIT)
        deadline.check()
        left_s = deadline.left_s
        first, node, larger = _grow(masks, start, edges[by_producer, 1], keys, allowed, FIRST_CAPACITY)
        if first.size:
            return Lattice(first, node, larger)
        if allowed > FIRST_LIMIT and WIDENING * (left_s - deadline.left_s) > deadline.left_s:
            raise OutOfTime
    raise TooManyIdeals


@jit
def _grow(
    masks: WordArray, start: IntArray, consumers: IntArray, keys: WordArray, limit: int, capacity: int
) -> tuple[IntArray, SmallArray, SmallArray]:
    """The lattice by breadth-first search from the empty ideal; empty arrays when it passes the limit.

    `ready` holds for each ideal the nodes that can be added: those outside whose predecessors are all inside. A hash,
    the xor of its nodes' keys, tells whether an ideal was met before.
    """
    m, words = masks.shape
    inside, ready = np.zeros((capacity, words), dtype=np.uint64), np.zeros((capacity, words), dtype=np.uint64)
    hashes, first = np.zeros(capacity, dtype=np.uint64), np.zeros(capacity + 1, dtype=np.int64)
    room = max(4 * capacity, m)
    node, larger = np.zeros(room, dtype=np.int32), np.zeros(room, dtype=np.int32)
    table = _hash_table(hashes, 0)
    grown = np.zeros(words, dtype=np.uint64)
    table[_slot(table, inside, hashes[0], grown)] = 0
    for v in range(m):
        if not masks[v].any():
            ready[0, v // 64] |= _bit(v)
    count, steps, at = 1, 0, 0
    while at < count:
        if steps + m > node.size:
            node, larger = _twice(node), _twice(larger)
        for v in range(m):
            if not ready[at, v // 64] & _bit(v):
                continue
            grown[:] = inside[at]
            grown[v // 64] |= _bit(v)
            key = hashes[at] ^ keys[v]
            slot = _slot(table, inside, key, grown)
            if table[slot] < 0:
                if count == limit:
                    return first[:0], node[:0], larger[:0]
                if count == hashes.size:
                    inside, ready = _twice(inside), _twice(ready)
                    hashes, first = _twice(hashes), _twice(first)
                    table = _hash_table(hashes, count)
                    slot = _slot(table, inside, key, grown)
                table[slot], hashes[count], inside[count], ready[count] = count, key, grown, ready[at]
                ready[count, v // 64] &= ~_bit(v)
                for e in range(start[v], start[v + 1]):
                    if not (masks[consumers[e]] & ~grown).any():
                        ready[count, consumers[e] // 64] |= _bit(consumers[e])
                count += 1
            node[steps], larger[steps] = v, table[slot]
            steps += 1
        at += 1
        first[at] = steps
    return first[: count + 1].copy(), node[:steps].copy(), larger[:steps].copy()


@jit
def _bit(v: int) -> np.uint64:
    return np.uint64(1) << np.uint64(v % 64)


@jit
def _slot(table: SmallArray, inside: WordArray, key: np.uint64, members: WordArray) -> int:
    """Where in the table the ideal with these members is, or belongs."""
    slot = np.int64(key & np.uint64(table.size - 1))
    while table[slot] >= 0 and not (inside[table[slot]] == members).all():
        slot = (slot + 1) & (table.size - 1)
    return int(slot)


@jit
def _hash_table(hashes: WordArray, count: int) -> SmallArray:
    """A table with open addressing of `count` ideals, at most a quarter full; -1 is empty."""
    table = np.full(4 * hashes.size, -1, dtype=np.int32)
    for ideal in range(count):
        slot = np.int64(hashes[ideal] & np.uint64(table.size - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (table.size - 1)
        table[slot] = ideal
    return table


@jit
def _twice(array: ArrayT) -> ArrayT:
    """The array with as many zeros, or rows of zeros, again."""
    return np.concatenate((array, np.zeros_like(array)))  # type: ignore[return-value]


@jit
def _sums(first: IntArray, node: SmallArray, larger: SmallArray, amounts: FloatArray) -> FloatArray:
    total = np.zeros(first.size - 1)
    for ideal in range(total.size):
        for step in range(first[ideal], first[ideal + 1]):
            total[larger[step]] = total[ideal] + amounts[node[step]]
    return total
