"""Which forward values a framework saves for the backward pass.

The backward pass of a traced step reads more than a framework saves: several intermediates of an activation function,
a softmax in float32 beside its copy in half precision. Fused kernels save little and compute the rest again from it.

    saved:                  x ── norm ──→ n ──┐ product    x: the norm is computed again from it
    x, n, y, z                                └──→ y ── gelu ──→ z ──┐ product    y: so is the derivative of gelu
                            n, z: products of the backward pass      └──→ …
                            read them, to make gradients of weights

- What a product of the backward pass reads is saved as it is.
- Everything else that the backward pass reads is saved or computed again, by elementwise instructions, slices and
  reductions, from what is saved, from arguments and from constants. Products, gathers and everything else that a kernel
  does not take in are never run again, nor are generators of random bits: dropout saves its mask, a byte a number.
- Of all sets of values that make everything computable the one with the fewest bytes is saved: a minimum cut, as in the
  partitioner of torch.compile. Of several such sets it is the one whose values are nearest to their readers.
- A value and its conversions between floating-point types of 16 bits and more are one value, as large as the smallest.
- So are exponentials and a softmax, which is them divided by their sums: the backward pass of a softmax needs no more
  than its result, though JAX's default reads exponentials and sums.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from automap_models.core.instruction_graph import InstructionGraph, IntArray, Phase
from automap_models.cost.kernel_traffic import (
    DTYPE_NAMES,
    FUSIBLE_OPCODES,
    MATRIX_OPCODES,
    RANDOM_OPCODES,
    REDUCTION_OPCODES,
)
from automap_models.hlo.liveness import NEVER, VIEWS, Liveness

BoolArray = NDArray[np.bool_]

_COMPUTED_AGAIN = (FUSIBLE_OPCODES | REDUCTION_OPCODES) - RANDOM_OPCODES
_MOVES = frozenset({"convert", "transpose"})
"""A product reads its operand through these, as through views, without another kernel's result in between."""


def saved_values(graph: InstructionGraph) -> BoolArray:
    """[v] whether a forward value is saved for the backward pass; its bytes are the graph's `value_bytes`.

    The bytes are the fewest that make everything computable, exactly where no value has more than 2^30 bytes. Beyond,
    sizes are rounded up to whole multiples of the largest one divided by 2^30.

    Args:
        graph: of a step with a forward and a backward pass.
    """
    return _Saving(graph).saved()


class _Saving:
    """What there is to be saved, in groups of values that are conversions of each other.

    Legend: a group is known by its smallest value; `of[v]` is the group of value v.
    """

    def __init__(self, graph: InstructionGraph) -> None:
        self.graph, self.liveness = graph, Liveness(graph)
        self.storage = self.liveness.storage
        self.groups = self._groups()

    def saved(self) -> BoolArray:
        """[v], see `saved_values`."""
        saved = self.is_read_by_product.copy()
        saved[self._cut()] = True
        return saved

    @cached_property
    def is_forward(self) -> BoolArray:
        """[v] whether a value is an activation of the forward pass and no view."""
        forward: BoolArray = self.liveness.is_activation & (self.liveness.born != NEVER)
        return forward

    def _groups(self) -> IntArray:
        graph, n = self.graph, len(self.graph.shapes)
        copies = [i for i in self.liveness.forward.tolist() if self._is_conversion(i) or self._is_softmax(i)]
        read = self.storage[graph.operands[graph.operand_offsets[copies]]]
        ties = coo_array((np.ones(len(copies), np.int8), (read, graph.result_offsets[copies])), (n, n))
        component = connected_components(ties, directed=False)[1]
        smallest = np.lexsort((np.arange(n), graph.value_bytes, ~self.is_forward))[::-1]
        of_component = np.empty(n, dtype=np.int64)
        of_component[component[smallest]] = smallest
        groups: IntArray = of_component[component[self.storage]]
        return groups

    def _is_conversion(self, i: int) -> bool:
        """Whether an instruction converts between types of floating-point numbers of 16 bits and more."""
        graph = self.graph
        if graph.opcodes[i] != "convert":
            return False
        read, result = graph.operands[graph.operand_offsets[i]], graph.result_offsets[i]
        return all(graph.dtypes[v] in DTYPE_NAMES for v in (read, result))

    def _is_softmax(self, i: int) -> bool:
        """Whether an instruction divides a value by a reduction of itself."""
        graph = self.graph
        if graph.opcodes[i] != "divide":
            return False
        dividend, *divisors = self.storage[self.liveness.reads[i]]
        if len(divisors) != 1:  # PyTorch divides by numbers that are no values
            return False
        maker = graph.producers[divisors[0]]
        if maker < 0 or graph.opcodes[maker] not in REDUCTION_OPCODES:
            return False
        return bool(self.storage[self.liveness.reads[maker][0]] == dividend)

    @cached_property
    def is_free(self) -> BoolArray:
        """[v] whether a group need not be saved: it holds an argument or a constant, or is saved in any case."""
        members = np.flatnonzero(self.storage == np.arange(self.storage.size))
        return self.is_read_by_product | self._groups_with(members[~self.is_forward[members]])

    def _groups_with(self, values: IntArray) -> BoolArray:
        """[v] whether a group has any of these values, such as that of a parameter in half precision an argument."""
        chosen = np.zeros(self.storage.size, dtype=bool)
        chosen[self.groups[values]] = True
        return chosen

    @cached_property
    def is_read_by_product(self) -> BoolArray:
        """[v] whether a group of activations is read by a product of the backward pass."""
        graph = self.graph
        reads = np.zeros(len(graph.shapes), dtype=bool)
        for i in np.flatnonzero(graph.phases == Phase.BACKWARD)[::-1].tolist():
            moved = graph.opcodes[i] in _MOVES | VIEWS and reads[self.liveness.results[i]].any()
            if moved or graph.opcodes[i] in MATRIX_OPCODES:
                reads[self.liveness.reads[i]] = True
        of_arguments = self._groups_with(np.flatnonzero(self.liveness.argument != NEVER))
        return self._groups_with(np.flatnonzero(reads)) & self.is_forward & ~of_arguments

    def _cut(self) -> IntArray:
        """The groups that are saved beside those that products read: a minimum cut.

        Each group is an edge from its entry to its exit, as wide as its bytes. The source leads to the entry of what
        cannot be computed again, exits of operands lead to entries of results, and exits of what the backward pass
        reads lead to the target. No other edge may be cut: each is wider than the group that it begins or ends at.
        """
        n = len(self.graph.shapes)
        source, target = 2 * n, 2 * n + 1
        largest = float(self.graph.value_bytes.max(initial=0))
        unit = max(1.0, largest / (1 << 30))  # the maximum flow has capacities of 32 bits
        size = np.ceil(self.graph.value_bytes / unit).astype(np.int64)
        start, end, read = self._edges()
        ends, needed = end[start == NEVER], np.unique(read)
        start, end = start[start != NEVER], end[start != NEVER]
        groups = np.unique(np.concatenate([start, end, ends, needed]))
        edges = np.concatenate(
            [
                np.stack([groups, n + groups, size[groups]]),
                np.stack([np.full(ends.size, source), ends, size[ends] + 1]),
                np.stack([n + start, end, size[start] + 1]),
                np.stack([n + needed, np.full(needed.size, target), size[needed] + 1]),
            ],
            axis=1,
        )
        edges = np.unique(edges, axis=1)
        capacity = csr_array((edges[2].astype(np.int32), (edges[0], edges[1])), (2 * n + 2,) * 2)
        residual = (capacity - maximum_flow(capacity, source, target).flow).tocsr()
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        behind = np.zeros(2 * n + 2, dtype=bool)
        behind[breadth_first_order(residual.T.tocsr(), target, return_predecessors=False)] = True
        cut: IntArray = groups[~behind[groups] & behind[n + groups]]
        return cut

    def _edges(self) -> tuple[IntArray, IntArray, IntArray]:
        """Groups of operands and of what is computed from them, NEVER for what is not; groups that backward reads."""
        graph = self.graph
        bits = (any(graph.dtypes[v].startswith("ui") for v in results) for results in self.liveness.results)
        again = [opcode in _COMPUTED_AGAIN and not has for opcode, has in zip(graph.opcodes, bits, strict=True)]
        start, end = list[int](), list[int]()
        for i in self.liveness.forward.tolist():
            if graph.opcodes[i] in VIEWS:
                continue
            operands = self.groups[self.liveness.reads[i]]
            sources = operands[~self.is_free[operands]].tolist() if again[i] else [NEVER]
            for group in self.groups[self.liveness.results[i]].tolist():
                if not self.is_free[group]:
                    pairs = [other for other in sources if other != group]
                    start += pairs
                    end += [group] * len(pairs)
        read = self.groups[graph.operands[graph.phases[graph.consumers] == Phase.BACKWARD]]
        read = read[self.is_forward[read] & ~self.is_free[read]]
        return np.array(start, dtype=np.int64), np.array(end, dtype=np.int64), read
