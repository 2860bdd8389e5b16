"""Roofline times of small graphs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from automap_models.core.instruction_graph import Argument, InstructionGraph
from automap_models.cost.roofline import Device, roofline_times
from automap_models.errors import BadInput

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
