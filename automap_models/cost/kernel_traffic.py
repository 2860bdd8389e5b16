"""The kernels of an instruction graph: what they compute and move once a compiler has fused it.

    instructions ── fusion ──→ kernels: FLOP, bytes ── clock of a device (hlo.clock) ──→ seconds of each instruction

An elementwise instruction that ran alone would write its result to memory and the next one would read it again.
Compilers run chains of them as one kernel and keep what is in between in registers. The model is XLA's in short:

- Views (reshapes) and parts of arguments (a layer's slice of stacked parameters) cost nothing. Matrix products,
  convolutions and everything else that is not listed below run alone, with the FLOP and bytes that the graph has for
  them.
- An elementwise instruction, or a broadcast, slice, transpose or the like, can be fused into the elementwise
  instructions and reductions that read it, and a reduction can take in those that it reads.
- A value whose readers end up in k kernels is computed in each of them, and never written, if reading what it is made
  from k times moves less than reading that once, writing the value and reading it k times:
  (k - 1)·sources < (k + 1)·size. A value that something else reads or the step returns is written in any case.

- Random bits are made in registers by the kernel that needs them, as XLA does with `rng_bit_generator` and with the
  rounds of threefry: their arithmetic on unsigned integers counts no FLOP, and the bits are never written. What is made
  of them is not made twice, though: dropout's mask, which the backward pass reads again, is written once, a byte each.

A kernel reads each value once, and its costs are those of the instruction that writes its result. XLA also lets a
kernel write several results, and merges kernels that read the same. That is left out, so elementwise time is over-
rather than underestimated; benchmarks/roofline_accuracy.py holds the sums against measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.collection import uncollected
from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray

VOCABULARY = 8192
"""Elements of a side of a product from which on it is taken for a vocabulary's, which frameworks pad."""
WINOGRAD_SAVING = 2.25
"""How many times fewer multiplications F(2×2, 3×3) needs (Lavin and Gray, arXiv 1509.09308)."""

DTYPE_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Names that devices and profiles use for StableHLO's floating-point types."""

MATRIX_OPCODES = frozenset({"convolution", "dot", "dot_general", "scaled_dot_product_attention"})
VIEW_OPCODES = frozenset({"reshape", "optimization_barrier"})
PART_OPCODE = "part"
"""What an instruction graph calls a slice of an argument that lies in one piece of memory: it is read in place."""
RANDOM_OPCODES = frozenset({"random_bits", "rng", "rng_bit_generator"})
"""`random_bits` is what an instruction graph calls a loop over the rounds of a generator such as threefry."""
REDUCTION_OPCODES = frozenset({"reduce", "reduce_window"})
SLICE_OPCODES = frozenset({"slice", "dynamic_slice"})
_ROW_OPCODES = frozenset({"gather", "scatter"})
"""They read or write a few rows of their first operand, not all of it."""
ANYWHERE = -1
"""In place of a group: an instruction that can be fused into those of every group."""
_ELEMENTWISE = """
abs add and atan2 bitcast_convert broadcast broadcast_in_dim cbrt ceil clamp compare complex concatenate convert cosine
count_leading_zeros divide exponential exponential_minus_one floor imag iota is_finite log log_plus_one logistic map
maximum minimum multiply negate not or pad popcnt power real reduce_precision remainder reverse round_nearest_afz
round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh
transpose xor
"""
FUSIBLE_OPCODES = SLICE_OPCODES | RANDOM_OPCODES | frozenset(_ELEMENTWISE.split())
"""StableHLO's words; their results can stay in registers."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """What kernels read and write, in m entries; n instructions.

    Attributes:
        flop: [n] of each instruction's kernel, zero for one that is fused into others.
        kernels: [m] the instruction that writes a kernel's result.
        values: [m] what it reads or writes.
        nbytes: [m] how much of that.
    """

    flop: FloatArray
    kernels: IntArray
    values: IntArray
    nbytes: FloatArray

    @property
    def moved(self) -> FloatArray:
        """[n] bytes of each instruction's kernel."""
        return np.bincount(self.kernels, self.nbytes, minlength=self.flop.size).astype(np.float64)


@uncollected()
def kernel_traffic(
    graph: InstructionGraph, groups: Sequence[int] | None = None, written: Iterable[int] = ()
) -> Traffic:
    """What the kernels of a graph compute, read and write.

    Args:
        groups: [n] of each instruction; those of different groups are not fused; None: all are of one.
        written: values that are written in any case, as those that the step returns are.
    """
    return _Fusion(graph, [ANYWHERE] * len(graph) if groups is None else groups, written).traffic()


def product_sizes(
    a: ArrayLike, b: ArrayLike, c: ArrayLike, flop: ArrayLike, convolution: ArrayLike = False
) -> FloatArray:
    """[k, 4] count, rows, columns and depth of products, from the numbers of elements of operands and result.

        m = FLOP / 2     count a·b·c / m²     rows m / b     columns m / a     depth m / c

    A convolution is the product that libraries make of it: one, of b·c / m columns, whose rows are the larger of the
    rows and the depth above. For the gradient of its kernels, which is small, these sum over positions in many parts.
    Sizes are whole numbers, but rows are such that all four together are the multiplications.

    Args:
        a, b, c: [k] elements of the operands and of the result.
        flop: [k] of each.
        convolution: [k] whether each is one.
    """
    a, b, c = (np.asarray(elements, np.float64) for elements in (a, b, c))
    m = np.maximum(np.asarray(flop, np.float64) / 2.0, 1.0)
    count, columns = np.where(convolution, 1.0, a * b * c / m**2), np.where(convolution, b * c / m, m / a)
    rows = np.where(convolution, np.maximum(m / b, m / c), m / b)
    depth = np.where(convolution, np.minimum(m / b, m / c), m / c)
    sizes = np.maximum(np.rint(np.stack([count, rows, columns, depth], axis=-1)), 1.0)
    sizes[..., 1] *= m / sizes.prod(axis=-1)
    return np.asarray(sizes)


def product_type(graph: InstructionGraph, i: int) -> str:
    """Element type of a matrix product, as devices name it; integers and booleans are taken for float32."""
    first_type = graph.dtypes[_operands(graph, i)[0]]
    return DTYPE_NAMES.get(first_type, first_type if first_type.startswith("f") else "float32")


def _operands(graph: InstructionGraph, i: int) -> NDArray[np.int64]:
    return graph.operands[graph.operand_offsets[i] : graph.operand_offsets[i + 1]]


def is_winograd(graph: InstructionGraph, i: int) -> bool:
    """Whether a convolution, or a gradient of one, has a 3×3 kernel and stride 1 in float32.

    Told from the three shapes, of which the gradients are permutations: one is a kernel, HWIO or OIHW, and the images
    of the others differ by no more than the padding in size. (A dilated kernel passes for an ordinary one.)
    """
    values = [*_operands(graph, i), graph.result_offsets[i]]
    shapes = [graph.shapes[v] for v in values]
    if graph.opcodes[i] != "convolution" or graph.dtypes[values[0]] != "f32" or {len(s) for s in shapes} != {4}:
        return False
    for k, kernel in enumerate(shapes):
        for taps, image in ((kernel[:2], slice(1, 3)), (kernel[2:], slice(2, 4))):
            if taps == (3, 3):
                one, other = (shape[image] for shape in shapes[:k] + shapes[k + 1 :])
                return all(abs(a - b) <= 2 < min(a, b) for a, b in zip(one, other, strict=True))
    return False


class _Fusion:
    """Which values are written to memory, and in which kernels each instruction takes part."""

    def __init__(self, graph: InstructionGraph, groups: Sequence[int], written: Iterable[int]) -> None:
        self.graph, self.groups = graph, groups
        self.first_results: list[int] = graph.result_offsets.tolist()
        self.producers: list[int] = graph.producers.tolist()
        self.takes_in = [opcode in FUSIBLE_OPCODES or opcode in REDUCTION_OPCODES for opcode in graph.opcodes]
        self.inputs = self._inputs_behind_views()
        self.readers: list[list[int]] = [[] for _ in graph.shapes]
        for i, values in enumerate(self.inputs):
            for v in values:
                self.readers[v].append(i)
        self.outputs = {self.storage[v] for v in (*graph.outputs.tolist(), *written)}
        self.kernels: list[frozenset[int]] = [frozenset({i}) for i in range(len(graph))]
        self._fuse()

    def _inputs_behind_views(self) -> list[list[int]]:
        """The distinct values that each instruction reads, every view replaced by what it shows; none for views."""
        operands, ends = self.graph.operands.tolist(), self.graph.operand_offsets.tolist()
        self.storage = list(range(len(self.graph.shapes)))
        inputs = []
        for i, opcode in enumerate(self.graph.opcodes):
            read = [self.storage[v] for v in operands[ends[i] : ends[i + 1]]]
            if opcode in VIEW_OPCODES:
                first = self.first_results[i]
                self.storage[first : first + len(read)] = read
            inputs.append([] if opcode in VIEW_OPCODES else list(dict.fromkeys(read)))
        return inputs

    def _fuse(self) -> None:
        """Decide from the last instruction to the first, when the kernels of all readers are known."""
        sizes, sources, random = self.graph.value_bytes.tolist(), self._source_bytes(), self._random()
        for i in reversed(range(len(self.graph))):
            v = self.first_results[i]
            results = self._read_results(i)
            if self.graph.opcodes[i] in FUSIBLE_OPCODES and not any(map(self._must_be_written, results)):
                kernels = frozenset[int]().union(*(self.kernels[r] for u in results for r in self.readers[u]))
                worth_it = (len(kernels) - 1) * sources[v] < (len(kernels) + 1) * sizes[v]
                if worth_it and (len(kernels) == 1 or not random[i]):
                    self.kernels[i] = kernels

    def _read_results(self, i: int) -> list[int]:
        """The results of an instruction, of several only those that something reads; at least one."""
        results = list(range(*self.first_results[i : i + 2]))
        return [v for v in results if self.readers[v]] or results[:1]

    def _random(self) -> list[bool]:
        """[n] whether an instruction makes random bits, or its results elementwise of such."""
        random = [False] * len(self.graph)
        if RANDOM_OPCODES.isdisjoint(self.graph.opcodes):
            return random
        for i, opcode in enumerate(self.graph.opcodes):
            makers = (self.producers[v] for v in self.inputs[i])
            from_random = any(maker >= 0 and random[maker] for maker in makers)
            random[i] = opcode in RANDOM_OPCODES or (opcode in FUSIBLE_OPCODES and from_random)
        return random

    def _must_be_written(self, v: int) -> bool:
        readers = self.readers[v]
        taken_in = readers and all(self.takes_in[i] for i in readers)
        return not taken_in or v in self.outputs or self._leaves_group(v)

    def _leaves_group(self, v: int) -> bool:
        """Whether an instruction of another group reads a value."""
        group = self.groups[self.producers[v]]
        return group != ANYWHERE and any(self.groups[i] not in (group, ANYWHERE) for i in self.readers[v])

    def _source_bytes(self) -> list[float]:
        """[v] bytes to be read for making a value, of each operand its own or, if they are fewer, its sources'."""
        sources: list[float] = self.graph.value_bytes.tolist()
        least = list(sources)
        for i, opcode in enumerate(self.graph.opcodes):
            if opcode in FUSIBLE_OPCODES:
                v = self.first_results[i]
                sources[v] = sum(self._read_bytes(i, u, least) for u in self.inputs[i])
                if not self._must_be_written(v):
                    least[v] = min(least[v], sources[v])
        return sources

    def _read_bytes(self, i: int, v: int, sizes: list[float]) -> float:
        """Bytes that instruction i reads of value v: a slice only its part."""
        if self.graph.opcodes[i] in SLICE_OPCODES:
            return min(sizes[v], float(self.graph.value_bytes[self.first_results[i]]))
        return sizes[v]

    def _makes_bits(self, i: int) -> bool:
        """Whether an instruction computes with unsigned integers, as generators of random bits do."""
        unsigned = self.graph.dtypes[self.first_results[i]].startswith("ui")
        return self.graph.opcodes[i] in RANDOM_OPCODES or (unsigned and self.graph.opcodes[i] in FUSIBLE_OPCODES)

    def _is_fused(self, i: int) -> bool:
        return len(self.kernels[i]) != 1 or i not in self.kernels[i]

    def traffic(self) -> Traffic:
        """FLOP, and what is read and written."""
        graph, sizes = self.graph, self.graph.value_bytes.tolist()
        own_flop, flop = graph.flop.tolist(), [0.0] * len(graph)
        moved: dict[tuple[int, int], float] = {}  # (kernel, value) → bytes
        read: dict[tuple[int, int], float] = {}
        for i, opcode in enumerate(graph.opcodes):
            if opcode in VIEW_OPCODES or opcode in {"constant", PART_OPCODE}:
                continue
            for kernel in self.kernels[i] if not self._makes_bits(i) else ():
                flop[kernel] += own_flop[i]
            results = range(*self.first_results[i : i + 2])
            if not self.takes_in[i]:
                moved |= {(i, v): nbytes for v, nbytes in self._accessed(i, results).items()}
                continue
            if not self._is_fused(i):
                moved |= {(i, v): sizes[v] for v in results}
            for v in self.inputs[i]:
                maker = self.producers[v]
                if maker < 0 or not self._is_fused(maker):
                    for kernel in self.kernels[i]:
                        read[kernel, v] = max(read.get((kernel, v), 0.0), self._read_bytes(i, v, sizes))
        moved |= read
        keys = np.array(list(moved), dtype=np.int64).reshape(-1, 2)
        return Traffic(np.array(flop), keys[:, 0], keys[:, 1], np.array(list(moved.values())))

    def _accessed(self, i: int, results: range) -> dict[int, float]:
        """Value → bytes of it that an instruction which runs alone reads or writes, as the graph has them in total.

        What a gather or a scatter moves of its table is as much as the rows that it makes or adds.
        """
        graph = self.graph
        accessed, sizes = float(graph.bytes_accessed[i]), graph.value_bytes
        values = [*self.inputs[i], *results]
        if graph.opcodes[i] in _ROW_OPCODES:
            values = values[1:] if graph.opcodes[i] == "gather" else self.inputs[i][1:]
        of_values = {v: float(sizes[v]) for v in values}
        total = sum(of_values.values())
        if total > accessed:
            return {v: nbytes * accessed / total for v, nbytes in of_values.items()}
        if of_values:
            of_values[values[-1]] += accessed - total
        return of_values
