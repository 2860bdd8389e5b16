"""Which values of a training step grow with the samples of its micro-batch, and which side of each product does.

From the inputs of the step forwards, by the shapes alone:

    product of a and b → c   both have samples   a·b·c / m² > 1: one product a sample (attention): so has c
                                                 else they are summed over (a parameter's gradient): c has none
                             one of them has     so has c
    convolution              as a product; both have samples: a kernel's gradient, which has none
    reduction                where the first dimension stays, which samples stand in
    scatter, slice           what its first operand has; the others of a scatter are added to it
    everything else          where an operand has

m are the multiplications; see cost.kernel_traffic for the sizes of products.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray
from automap_models.cost.kernel_traffic import MATRIX_OPCODES, REDUCTION_OPCODES, SLICE_OPCODES, product_sizes
from automap_models.hlo.liveness import Liveness

COUNT, ROWS, COLUMNS, DEPTH = range(4)
"""Where the sizes of a product stand."""
NO_SIDE = -1
FLASH_OPCODES = frozenset({"scaled_dot_product_attention"})
"""Attention cores that are one instruction."""
_FIRST_ONLY = SLICE_OPCODES | {"scatter", "select_and_scatter", "dynamic_update_slice"}


def graph_products(graph: InstructionGraph, products: IntArray) -> FloatArray:
    """[k, 4] count, rows, columns and depth of the products that these instructions are (cost.kernel_traffic)."""
    elements = np.array([math.prod(shape) for shape in graph.shapes], dtype=np.float64)
    first = graph.operand_offsets[products]
    a, b = elements[graph.operands[first]], elements[graph.operands[first + 1]]
    convolution = np.array([graph.opcodes[i] == "convolution" for i in products.tolist()], dtype=bool)
    return product_sizes(a, b, elements[graph.result_offsets[products]], graph.flop[products], convolution)


def per_sample(graph: InstructionGraph) -> NDArray[np.bool_]:
    """[v] whether a value grows with the samples."""
    given = zip(graph.arguments, graph.shapes, strict=False)  # arguments are the first values
    sampled = [argument.kind == "input" and len(shape) > 0 for argument, shape in given]
    liveness, sums = Liveness(graph), _summing_products(graph)
    for i, (opcode, read, results) in enumerate(zip(graph.opcodes, liveness.reads, liveness.results, strict=True)):
        of_read = [sampled[v] for v in read]
        if opcode in _FIRST_ONLY:
            grows = bool(of_read) and of_read[0]
        elif opcode in REDUCTION_OPCODES:
            grows = any(
                has and graph.shapes[v][:1] == graph.shapes[results[0]][:1] != ()
                for v, has in zip(read, of_read, strict=True)
            )
        else:
            grows = any(of_read) and not (i in sums and all(of_read[:2]))
        sampled += [grows] * len(results)
    return np.array(sampled, dtype=bool)


def sample_sides(graph: InstructionGraph, products: IntArray, sampled: NDArray[np.bool_]) -> IntArray:
    """[k] which of a product's sizes the samples are in; NO_SIDE for none."""
    first = graph.operand_offsets[products]
    a, b = sampled[graph.operands[first]], sampled[graph.operands[first + 1]]
    c = sampled[graph.result_offsets[products]]
    convolution = np.array([graph.opcodes[i] == "convolution" for i in products.tolist()], dtype=bool)
    sides = np.select([a & b & c, a & b, a & c, b & c], [COUNT, DEPTH, ROWS, COLUMNS], NO_SIDE)
    return np.where(convolution & (sides != NO_SIDE), ROWS, sides)


def _summing_products(graph: InstructionGraph) -> frozenset[int]:
    """Products that sum over the samples, if both operands have them."""
    products = np.flatnonzero([opcode in MATRIX_OPCODES - FLASH_OPCODES for opcode in graph.opcodes])
    products = products[np.diff(graph.operand_offsets)[products] > 1]
    return frozenset(products[graph_products(graph, products)[:, COUNT] == 1.0].tolist())
