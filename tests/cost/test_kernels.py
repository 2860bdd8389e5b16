"""The kernels of small graphs, worked out by hand: what fused ones move, and how long they take by the roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from automap_models.core.device import Device
from automap_models.core.instruction_graph import Argument, InstructionGraph
from automap_models.cost.kernels import kernel_costs, roofline_seconds, roofline_times
from automap_models.errors import BadInput

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


CHAIN: list[Line] = [("a", "add", "x y"), ("b", "tanh", "a"), ("c", "multiply", "b x")]


def test_a_chain_reads_its_sources_once_and_writes_its_end() -> None:
    flop, moved = kernel_costs(graph_of("x y", CHAIN, "c"))
    assert_allclose(moved, [0, 0, 3 * BIG])
    assert_allclose(flop, [0, 0, 3])


def test_what_the_step_returns_is_written() -> None:
    flop, moved = kernel_costs(graph_of("x y", CHAIN, "b c"))
    assert_allclose(moved, [0, 3 * BIG, 3 * BIG])
    assert_allclose(flop, [0, 2, 1])


def test_what_a_matrix_product_reads_is_written_and_the_product_costs_what_the_graph_says() -> None:
    _, moved = kernel_costs(graph_of("x y", [("a", "tanh", "x"), ("b", "dot_general", "a y"), ("c", "abs", "b")], "c"))
    assert_allclose(moved, [2 * BIG, 3 * BIG, 2 * BIG])


def test_a_broadcast_is_read_as_what_it_spreads() -> None:
    _, moved = kernel_costs(graph_of("x r", [("a", "broadcast_in_dim", "r"), ("b", "add", "x a")], "b"))
    assert_allclose(moved, [0, 2 * BIG + ROW])


def test_a_constant_or_an_iota_is_made_where_it_is_needed() -> None:
    lines: list[Line] = [("s", "constant", ""), ("a", "broadcast_in_dim", "s"), ("i", "iota", ""), ("b", "add", "x a")]
    _, moved = kernel_costs(graph_of("x", [*lines, ("c", "add", "b i")], "c"))
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
    _, moved = kernel_costs(graph_of("x", lines, "y"))
    assert_allclose(moved, [BIG + ROW, 0, 0, 0, BIG + 2 * ROW, 0, 0, 2 * BIG + 2 * ROW])


def test_what_two_kernels_read_is_computed_in_both_unless_writing_it_moves_no_more() -> None:
    """Of two sources, again in the second kernel: 2 are read more, not 3 moved for its result. Of three it is equal."""
    read_twice: list[Line] = [("b", "tanh", "a"), ("c", "exponential", "a")]
    _, moved = kernel_costs(graph_of("x y", [("a", "add", "x y"), *read_twice], "b c"))
    assert_allclose(moved, [0, 3 * BIG, 3 * BIG])
    _, moved = kernel_costs(graph_of("x y z", [("a", "select", "x y z"), *read_twice], "b c"))
    assert_allclose(moved, [4 * BIG, 2 * BIG, 2 * BIG])


@pytest.mark.parametrize("opcode", ["random_bits", "rng_bit_generator"])
def test_random_bits_stay_in_registers_and_the_mask_made_of_them_is_written_once(opcode: str) -> None:
    """Dropout: a mask r of the bits b of a seed s, read by the forward pass and again by the backward pass."""
    dropout = [("b", opcode, "s"), ("r", "compare", "b"), ("c", "select", "r x"), ("g", "select", "r y")]
    flop, moved = kernel_costs(graph_of("s x y", dropout, "c g"))
    assert_allclose(moved, [0, 4 + ROW, ROW + 2 * BIG, ROW + 2 * BIG])
    assert_allclose(flop, [0, 1, 1, 1])


def test_bits_that_one_kernel_reads_cost_nothing_but_their_seed() -> None:
    _, moved = kernel_costs(graph_of("s x", [("b", "random_bits", "s"), ("c", "select", "b x")], "c"))
    assert_allclose(moved, [0, 4 + 2 * BIG])


def test_a_sum_that_many_read_is_written_once() -> None:
    """A residual stream: computing it from two values in each of four kernels would read more."""
    readers: list[Line] = [(name, "abs", "a") for name in "bcde"]
    _, moved = kernel_costs(graph_of("x y", [("a", "add", "x y"), *readers], "b c d e"))
    assert_allclose(moved, [3 * BIG, *[2 * BIG] * 4])


def test_a_view_moves_nothing_and_hides_nothing() -> None:
    lines: list[Line] = [("a", "abs", "x"), ("b", "reshape", "a"), ("c", "abs", "b"), ("d", "reshape", "c")]
    _, moved = kernel_costs(graph_of("x", lines, "d"))
    assert_allclose(moved, [0, 0, 2 * BIG, 0])


def test_a_slice_reads_its_part() -> None:
    _, moved = kernel_costs(graph_of("x", [("r", "slice", "x")], "r"))
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
    flop, moved = kernel_costs(graph)
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
    flop, moved = kernel_costs(graph_of("x", [("y", "abs", "x")][:count], "x"))
    assert flop.shape == moved.shape == (count,)


DEVICE = Device(
    "test", {"float32": 1e12, "float16": 8e12}, 5e11, 1e11, compute_efficiency=0.5, bandwidth_efficiency=0.8
)


def one_instruction(opcode: str, *shapes: tuple[int, ...], dtype: str = "f32", flop: float = 1e9) -> InstructionGraph:
    """An instruction whose operands and, last, result have these shapes."""
    sizes = np.array([4.0 * np.prod(shape) for shape in shapes])
    count = len(shapes) - 1
    return InstructionGraph(
        model="test",
        names=(f"{opcode}.1",),
        opcodes=(opcode,),
        layers=("",),
        phases=np.zeros(1, np.int8),
        result_offsets=np.array([count, count + 1]),
        operand_offsets=np.array([0, count]),
        operands=np.arange(count),
        shapes=shapes,
        dtypes=(dtype,) * len(shapes),
        value_bytes=sizes,
        arguments=tuple(Argument(f"x{i}", "input") for i in range(count)),
        outputs=np.array([count]),
        flop=np.array([flop]),
        bytes_accessed=np.array([sizes.sum()]),
    )


def test_the_slower_of_computing_and_moving_counts() -> None:
    times_s = DEVICE.seconds([1e9, 1e6, 0.0], [8e3, 8e6, 0.0], kind="matrix")
    assert_allclose(times_s, [1e9 / 5e11, 8e6 / 8e10, 0.0])


def test_a_type_and_a_kind_have_their_own_peaks() -> None:
    assert_allclose(DEVICE.seconds(1e9, 0, "float16", "matrix"), 1e9 / 4e12)
    assert_allclose(DEVICE.seconds(1e9, 0, "float16", "vector"), 1e9 / 2.5e11)


def test_a_launch_is_added_to_every_kernel_that_does_something() -> None:
    assert_allclose(replace(DEVICE, launch_s=1e-6).seconds([0, 5e5], [0, 0], kind="matrix"), [0, 2e-6])


def test_work_can_be_an_array_of_any_shape() -> None:
    assert DEVICE.seconds(np.ones((2, 3)), 1.0).shape == (2, 3)


def test_a_product_runs_at_the_peak_of_its_operands_type() -> None:
    shapes = ((64, 64), (64, 64), (64, 64))
    for dtype, peak in (("f32", 5e11), ("f16", 4e12), ("i32", 5e11)):
        assert_allclose(roofline_times(one_instruction("dot_general", *shapes, dtype=dtype), DEVICE), [1e9 / peak])


def test_float32_products_run_in_tf32_where_the_device_can_and_one_may() -> None:
    device = replace(DEVICE, matrix={"float32": 1e12, "tf32": 4e12})
    graph = one_instruction("dot_general", (64, 64), (64, 64), (64, 64))
    assert_allclose(roofline_times(graph, device), [1e9 / 2e12])
    assert_allclose(roofline_times(graph, device, tf32=False), [1e9 / 5e11])


def test_a_type_without_a_rate_is_named() -> None:
    graph = one_instruction("dot_general", (64, 64), (64, 64), (64, 64), dtype="bf16")
    with pytest.raises(
        BadInput, match="device test: has no rate for matrix products in bfloat16; choose from float32, f"
    ):
        roofline_times(graph, DEVICE)


IMAGES, FEATURES = (2, 56, 56, 16), (2, 56, 56, 32)


@pytest.mark.parametrize(
    "shapes",
    [
        (IMAGES, (3, 3, 16, 32), FEATURES),
        (FEATURES, (3, 3, 16, 32), IMAGES),  # gradient of the images
        (IMAGES, FEATURES, (3, 3, 16, 32)),  # gradient of the kernel
        ((2, 16, 56, 56), (32, 16, 3, 3), (2, 32, 56, 56)),  # NCHW, OIHW
        (IMAGES, (3, 3, 16, 32), (2, 54, 54, 32)),  # no padding
    ],
)
def test_3_by_3_convolutions_of_stride_1_and_their_gradients_run_by_winograd(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    device = replace(DEVICE, winograd=True)
    assert_allclose(roofline_times(one_instruction("convolution", *shapes), device), [1e9 / 2.25 / 5e11])
    assert_allclose(roofline_times(one_instruction("convolution", *shapes), DEVICE), [1e9 / 5e11])
    half = one_instruction("convolution", *shapes, dtype="f16")
    assert_allclose(roofline_times(half, device), [1e9 / 4e12])


@pytest.mark.parametrize(
    "shapes",
    [
        (IMAGES, (3, 3, 16, 32), (2, 28, 28, 32)),  # stride 2
        (IMAGES, (1, 1, 16, 32), FEATURES),
        (IMAGES, (5, 5, 16, 32), FEATURES),
        ((2, 56, 16), (3, 16, 32), (2, 56, 32)),  # one dimension
    ],
)
def test_other_convolutions_do_not(shapes: tuple[tuple[int, ...], ...]) -> None:
    device = replace(DEVICE, winograd=True)
    assert_allclose(roofline_times(one_instruction("convolution", *shapes), device), [1e9 / 5e11])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth": 0.0}, "device test: bandwidth is 0.0; give a positive number"),
        ({"vector": float("nan")}, "vector is nan"),
        ({"matrix": {"float32": -1.0}}, "matrix float32 is -1.0"),
        ({"matrix": {"float16": 1e12}}, "matrix has no float32"),
        ({"compute_efficiency": 1.5}, r"compute_efficiency is 1.5; give a share in \(0, 1\]"),
        ({"bandwidth_efficiency": 0.0}, "bandwidth_efficiency is 0.0"),
        ({"launch_s": -1.0}, "launch_s is -1.0; give seconds"),
    ],
)
def test_a_number_out_of_range_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(DEVICE, **change)


def test_kinds_without_a_rate_for_a_step_are_left_out() -> None:
    graph = one_instruction("dot_general", (100, 100), (100, 500), (100, 500), dtype="bf16")
    without = replace(DEVICE, name="old", matrix={"float32": 1e12})
    able = replace(DEVICE, name="new", matrix={"float32": 1e12, "bfloat16": 1e13})
    assert roofline_seconds(graph, [without, able]) == {"new": roofline_times(graph, able).sum()}
