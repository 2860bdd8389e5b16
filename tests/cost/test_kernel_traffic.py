"""The kernels of small graphs, worked out by hand: what fused ones move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from automap_models.core.instruction_graph import Argument, FloatArray, InstructionGraph
from automap_models.cost.kernel_traffic import kernel_traffic, product_sizes

BIG, ROW = 4096.0, 64.0
"""Bytes of the values x, y, … and of those whose names begin with r."""

Line = tuple[str, str, str]
"""Result, opcode, operands."""


def graph_of(arguments: str, lines: list[Line], outputs: str) -> InstructionGraph:
    """A graph whose values have one-letter names; each instruction computes 1 FLOP."""
    values = [*arguments.split(), *(line[0] for line in lines)]
    index = {name: i for i, name in enumerate(values)}
    sizes = np.array([ROW if name.startswith("r") else 4.0 if name.startswith("s") else BIG for name in values])
    operands = [[index[name] for name in line[2].split()] for line in lines]
    first = len(arguments.split())
    return InstructionGraph(
        model="test",
        names=tuple(line[0] for line in lines),
        opcodes=tuple(line[1] for line in lines),
        layers=("",) * len(lines),
        phases=np.zeros(len(lines), np.int8),
        result_offsets=np.arange(first, len(values) + 1),
        operand_offsets=np.cumsum([0, *map(len, operands)]),
        operands=np.array([v for read in operands for v in read], np.int64),
        shapes=tuple((int(size) // 4,) for size in sizes),
        dtypes=("f32",) * len(values),
        value_bytes=sizes,
        arguments=tuple(Argument(name, "input") for name in arguments.split()),
        outputs=np.array([index[name] for name in outputs.split()]),
        flop=np.ones(len(lines)),
        bytes_accessed=np.array([sum(sizes[v] for v in read) for read in operands]) + sizes[first:],
    )


def costs(graph: InstructionGraph) -> tuple[FloatArray, FloatArray]:
    """FLOP and bytes of each instruction's kernel."""
    traffic = kernel_traffic(graph)
    return traffic.flop, traffic.moved


CHAIN: list[Line] = [("a", "add", "x y"), ("b", "tanh", "a"), ("c", "multiply", "b x")]


def test_a_chain_reads_its_sources_once_and_writes_its_end() -> None:
    flop, moved = costs(graph_of("x y", CHAIN, "c"))
    assert_allclose(moved, [0, 0, 3 * BIG])
    assert_allclose(flop, [0, 0, 3])


def test_what_the_step_returns_is_written() -> None:
    flop, moved = costs(graph_of("x y", CHAIN, "b c"))
    assert_allclose(moved, [0, 3 * BIG, 3 * BIG])
    assert_allclose(flop, [0, 2, 1])


def test_what_a_matrix_product_reads_is_written_and_the_product_costs_what_the_graph_says() -> None:
    _, moved = costs(graph_of("x y", [("a", "tanh", "x"), ("b", "dot_general", "a y"), ("c", "abs", "b")], "c"))
    assert_allclose(moved, [2 * BIG, 3 * BIG, 2 * BIG])


def test_a_broadcast_is_read_as_what_it_spreads() -> None:
    _, moved = costs(graph_of("x r", [("a", "broadcast_in_dim", "r"), ("b", "add", "x a")], "b"))
    assert_allclose(moved, [0, 2 * BIG + ROW])


def test_a_constant_or_an_iota_is_made_where_it_is_needed() -> None:
    lines: list[Line] = [("s", "constant", ""), ("a", "broadcast_in_dim", "s"), ("i", "iota", ""), ("b", "add", "x a")]
    _, moved = costs(graph_of("x", [*lines, ("c", "add", "b i")], "c"))
    assert_allclose(moved, [0, 0, 0, 0, 2 * BIG + 4])


def test_layer_normalisation_reads_its_input_three_times() -> None:
    """Mean, variance, result: x - mean is computed twice, which moves less than writing it."""
    lines: list[Line] = [
        ("r1", "reduce", "x"),
        ("m", "broadcast_in_dim", "r1"),
        ("d", "subtract", "x m"),
        ("q", "multiply", "d d"),
        ("r2", "reduce", "q"),
        ("r3", "rsqrt", "r2"),
        ("v", "broadcast_in_dim", "r3"),
        ("y", "multiply", "d v"),
    ]
    _, moved = costs(graph_of("x", lines, "y"))
    assert_allclose(moved, [BIG + ROW, 0, 0, 0, BIG + 2 * ROW, 0, 0, 2 * BIG + 2 * ROW])


def test_what_two_kernels_read_is_computed_in_both_unless_writing_it_moves_no_more() -> None:
    """Of two sources, again in the second kernel: 2 are read more, not 3 moved for its result. Of three it is equal."""
    read_twice: list[Line] = [("b", "tanh", "a"), ("c", "exponential", "a")]
    _, moved = costs(graph_of("x y", [("a", "add", "x y"), *read_twice], "b c"))
    assert_allclose(moved, [0, 3 * BIG, 3 * BIG])
    _, moved = costs(graph_of("x y z", [("a", "select", "x y z"), *read_twice], "b c"))
    assert_allclose(moved, [4 * BIG, 2 * BIG, 2 * BIG])


@pytest.mark.parametrize("opcode", ["random_bits", "rng_bit_generator"])
def test_random_bits_stay_in_registers_and_the_mask_made_of_them_is_written_once(opcode: str) -> None:
    """Dropout: a mask r of the bits b of a seed s, read by the forward pass and again by the backward pass."""
    dropout = [("b", opcode, "s"), ("r", "compare", "b"), ("c", "select", "r x"), ("g", "select", "r y")]
    flop, moved = costs(graph_of("s x y", dropout, "c g"))
    assert_allclose(moved, [0, 4 + ROW, ROW + 2 * BIG, ROW + 2 * BIG])
    assert_allclose(flop, [0, 1, 1, 1])


def test_bits_that_one_kernel_reads_cost_nothing_but_their_seed() -> None:
    _, moved = costs(graph_of("s x", [("b", "random_bits", "s"), ("c", "select", "b x")], "c"))
    assert_allclose(moved, [0, 4 + 2 * BIG])


def test_a_sum_that_many_read_is_written_once() -> None:
    """A residual stream: computing it from two values in each of four kernels would read more."""
    readers: list[Line] = [(name, "abs", "a") for name in "bcde"]
    _, moved = costs(graph_of("x y", [("a", "add", "x y"), *readers], "b c d e"))
    assert_allclose(moved, [3 * BIG, *[2 * BIG] * 4])


def test_a_view_moves_nothing_and_hides_nothing() -> None:
    lines: list[Line] = [("a", "abs", "x"), ("b", "reshape", "a"), ("c", "abs", "b"), ("d", "reshape", "c")]
    _, moved = costs(graph_of("x", lines, "d"))
    assert_allclose(moved, [0, 0, 2 * BIG, 0])


def test_a_slice_reads_its_part() -> None:
    _, moved = costs(graph_of("x", [("r", "slice", "x")], "r"))
    assert_allclose(moved, [2 * ROW])


OPCODES = st.sampled_from(["add", "subtract", "dot_general", "reduce", "reshape", "tanh", "transpose", "sort"])


@st.composite
def graphs(draw: st.DrawFn) -> InstructionGraph:
    lines: list[Line] = []
    values = ["x0", "x1"]
    for i in range(draw(st.integers(1, 12))):
        opcode = draw(OPCODES)
        count = 2 if opcode in {"add", "subtract", "dot_general"} else 1
        lines.append((f"v{i}", opcode, " ".join(draw(st.sampled_from(values)) for _ in range(count))))
        values.append(f"v{i}")
    read = {name for line in lines for name in line[2].split()}
    unread = [line[0] for line in lines if line[0] not in read]
    return graph_of("x0 x1", lines, " ".join(unread))


@given(graphs())
def test_fusing_never_moves_more_than_running_alone_nor_less_than_must_be(graph: InstructionGraph) -> None:
    flop, moved = costs(graph)
    computing = np.array([opcode != "reshape" for opcode in graph.opcodes])
    distinct = [
        graph.value_bytes[np.unique(graph.operands[slice(*graph.operand_offsets[i : i + 2])])].sum() + BIG
        for i in range(len(graph))
    ]
    alone = np.where([opcode in {"dot_general", "sort"} for opcode in graph.opcodes], graph.bytes_accessed, distinct)
    assert moved.sum() <= alone[computing].sum()
    assert flop.sum() >= graph.flop[computing].sum()
    assert np.all(moved >= 0)
    written = {graph.result_offsets[i] for i in np.flatnonzero(computing)} & set(graph.outputs.tolist())
    assert moved.sum() >= BIG * len(written)


@pytest.mark.parametrize("count", [0, 1])
def test_a_graph_may_be_tiny(count: int) -> None:
    flop, moved = costs(graph_of("x", [("y", "abs", "x")][:count], "x"))
    assert flop.shape == moved.shape == (count,)


@given(*[st.integers(1, 300)] * 4)
def test_sizes_of_a_product_follow_from_its_elements(count: int, rows: int, columns: int, depth: int) -> None:
    a, b, c = count * rows * depth, count * columns * depth, count * rows * columns
    sizes = product_sizes(a, b, c, 2 * count * rows * columns * depth)
    assert_allclose(sizes, [count, rows, columns, depth])


def test_a_convolution_is_a_product_of_its_positions_channels_and_taps() -> None:
    """8 images of 14 × 14, 3 × 3 kernels from 16 to 32 channels, padded; and the gradient of the kernels."""
    images, kernel, features = 8 * 14 * 14 * 16, 9 * 16 * 32, 8 * 14 * 14 * 32
    flop = 2 * 8 * 14 * 14 * 32 * 9 * 16
    assert_allclose(product_sizes(images, kernel, features, flop, True), [1, 8 * 14 * 14, 32, 9 * 16])
    assert_allclose(product_sizes(images, features, kernel, flop, True), [1, 8 * 14 * 14, 32, 9 * 16])
