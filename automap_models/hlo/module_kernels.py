"""Fewer and larger kernels: what is not a product runs module by module, as the kernels of training frameworks do.

    kernels of cost/kernel_traffic.py                               here
    x ─→ sum ──────────┐                                            x ─→ norm ─→ n      x is read once
    x ─→ sum of squares┼─→ normalised ─→ n                          scores ─→ softmax ─→ weights
    normalised ─→ backward pass                                     x ─→ backward pass  what is not saved is made again

Kernels that are no products, of one pass and one module (a norm, a softmax, an activation) without a product between
them, are one kernel if one reads what the other makes. It reads every value once, and writes only what others need. Of
the forward pass that is what is read there or saved, since the backward pass computes the rest again. Sums over all
tokens, which gradients of biases and norms are, stay kernels of their own, and compute what they sum. A product adds
the bias of its own module before it writes its result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import post_order
from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.cost.kernel_traffic import FUSIBLE_OPCODES, MATRIX_OPCODES, REDUCTION_OPCODES, Traffic


def module_traffic(
    graph: InstructionGraph, traffic: Traffic, groups: NDArray[np.int64], is_saved: NDArray[np.bool_]
) -> Traffic:
    """What the kernels of modules read and write; each has the number of its last instruction.

    Args:
        traffic: of the kernels that are merged.
        groups: [n] kernels of different groups are not merged, nor are those of negative ones.
        is_saved: [v] whether the forward pass saves a value.
    """
    return _Modules(graph, traffic, groups, is_saved).traffic()


class _Modules:
    """Legend: a cluster is known by the last of its kernels; a kernel by the instruction that writes its result."""

    def __init__(
        self, graph: InstructionGraph, traffic: Traffic, groups: NDArray[np.int64], is_saved: NDArray[np.bool_]
    ) -> None:
        self.graph, self.flop, self.groups, self.is_saved = graph, traffic.flop, groups.tolist(), is_saved
        self.producers = graph.producers.tolist()
        self.reads: dict[int, dict[int, float]] = defaultdict(dict)
        self.writes: dict[int, dict[int, float]] = defaultdict(dict)
        columns = traffic.kernels.tolist(), traffic.values.tolist(), traffic.nbytes.tolist()
        for i, v, nbytes in zip(*columns, strict=True):
            (self.writes if self.producers[v] == i else self.reads)[i][v] = nbytes
        self.kernels = sorted({*self.reads, *self.writes})
        self.cluster = self._clusters()
        self.members = Counter(self.cluster.values())
        self.readers: dict[int, set[int]] = defaultdict(set)
        for i in self.kernels:
            for v in self.reads[i]:
                self.readers[v].add(i)

    def _merges(self, i: int) -> bool:
        return self.groups[i] >= 0 and self.graph.opcodes[i] in FUSIBLE_OPCODES | REDUCTION_OPCODES

    def _clusters(self) -> dict[int, int]:
        """Kernel → its cluster."""
        level: dict[int, int] = {}
        parent = {i: i for i in self.kernels}

        def root(i: int) -> int:
            while parent[i] != i:
                i = parent[i]
            return i

        for i in self.kernels:
            makers = [self.producers[v] for v in self.reads[i] if self.producers[v] in parent]
            level[i] = max((level[maker] + (not self._merges(maker)) for maker in makers), default=0)
            for maker in makers:
                key = self.groups[maker], level[maker]
                if self._merges(i) and self._merges(maker) and key == (self.groups[i], level[i]):
                    parent[root(maker)] = root(i)
        return {i: root(i) for i in self.kernels}

    def _is_written(self, v: int) -> bool:
        """Whether another kernel finds a value in memory."""
        maker = self.producers[v]
        if maker not in self.cluster or not self._merges(maker):
            return True
        others = [i for i in self.readers[v] if self.cluster[i] != self.cluster[maker]]
        if self.graph.phases[maker] == Phase.FORWARD:
            return bool(self.is_saved[v]) or any(self.graph.phases[i] == Phase.FORWARD for i in others)
        return not self.readers[v] or not all(self._sums_in_module(i, maker) for i in others)

    def _sums_in_module(self, i: int, maker: int) -> bool:
        """Whether a kernel is a sum over all tokens of what its own module makes: it makes that again."""
        alone = self.groups[i] < 0 and self.graph.opcodes[i] in REDUCTION_OPCODES
        return alone and self.graph.layers[i] == self.graph.layers[maker]

    def _sources(self, v: int) -> Iterable[int]:
        """The values in memory that a value is made of: itself, if it is there."""
        made_of = post_order(lambda u: () if self._is_written(u) else [*self.reads[self.producers[u]]], [v])
        return filter(self._is_written, made_of)

    def _ends_product(self, i: int) -> bool:
        """Whether a kernel only adds parameters to the result of a product of its module, which nothing else reads."""
        inside = [v for v in self.reads[i] if self.producers[v] in self.cluster]
        if len(inside) != 1 or self.members[self.cluster[i]] != 1 or not self._merges(i):
            return False
        product = self.producers[inside[0]]
        return (
            self.graph.opcodes[product] in MATRIX_OPCODES
            and self.groups[product] == self.groups[i]
            and self.graph.opcodes[i] == "add"
            and self.readers[inside[0]] == {i}
        )

    def traffic(self) -> Traffic:
        """What clusters read and write."""
        moved: dict[tuple[int, int], float] = {}
        for i in self.kernels:
            kernel = self.cluster[i]
            if self._ends_product(i):
                continue
            for v, nbytes in self.writes[i].items():
                if self._is_written(v):
                    moved[kernel, v] = nbytes
            for v, nbytes in self.reads[i].items():
                if self.cluster.get(self.producers[v]) == kernel:
                    continue
                for u in self._sources(v):
                    read = nbytes if u == v else float(self.graph.value_bytes[u])
                    moved[kernel, u] = max(moved.get((kernel, u), 0.0), read)
        keys = np.array(list(moved), dtype=np.int64).reshape(-1, 2)
        return Traffic(self.flop, keys[:, 0], keys[:, 1], np.array(list(moved.values())))
