"""The clock of instruction graphs: kernels worked out by hand, and held against the layers that strategies price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideal_devices import ideal_device
from numpy.testing import assert_allclose

from automap_models.core.instruction_graph import Argument, InstructionGraph
from automap_models.errors import BadInput
from automap_models.hlo.clock import clock_seconds, clock_times

DEVICE = ideal_device("test", {"float32": 5e11, "float16": 4e12}, 2.5e11, 8e10)


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


def test_a_product_runs_at_the_peak_of_its_operands_type() -> None:
    shapes = ((64, 64), (64, 64), (64, 64))
    for dtype, peak in (("f32", 5e11), ("f16", 4e12), ("i32", 5e11)):
        assert_allclose(clock_times(one_instruction("dot_general", *shapes, dtype=dtype), DEVICE), [1e9 / peak])


def test_float32_is_float32_on_a_device_that_has_tf32_too() -> None:
    """gpt2_medium on A100 took 156 TFLOP/s in one search and 19.5 in the other: JAX's default was one's meaning."""
    device = replace(DEVICE, matrix={"float32": 5e11, "tf32": 4e12})
    assert_allclose(clock_times(one_instruction("dot_general", (64, 64), (64, 64), (64, 64)), device), [1e9 / 5e11])


def test_a_type_without_a_rate_is_named() -> None:
    graph = one_instruction("dot_general", (64, 64), (64, 64), (64, 64), dtype="bf16")
    with pytest.raises(
        BadInput, match="device test: has no rate for matrix products in bfloat16; choose from float32, f"
    ):
        clock_times(graph, DEVICE)


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
    assert_allclose(clock_times(one_instruction("convolution", *shapes), device), [1e9 / 2.25 / 5e11])
    assert_allclose(clock_times(one_instruction("convolution", *shapes), DEVICE), [1e9 / 5e11])
    half = one_instruction("convolution", *shapes, dtype="f16")
    assert_allclose(clock_times(half, device), [1e9 / 4e12])


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
    assert_allclose(clock_times(one_instruction("convolution", *shapes), device), [1e9 / 5e11])


def test_kinds_without_a_rate_for_a_step_are_left_out() -> None:
    graph = one_instruction("dot_general", (100, 100), (100, 500), (100, 500), dtype="bf16")
    without = replace(DEVICE, name="old", matrix={"float32": 1e12})
    able = replace(DEVICE, name="new", matrix={"float32": 1e12, "bfloat16": 1e13})
    assert clock_seconds(graph, [without, able]) == {"new": clock_times(graph, able).sum()}
