"""How long instructions take on a device that is not there: the roofline (Williams et al., CACM 52(4), 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.cost.fusion import MATRIX_OPCODES, kernel_costs
from automap_models.errors import BadInput

FloatArray = NDArray[np.float64]
Kind = Literal["matrix", "vector"]

WINOGRAD_SAVING = 2.25
"""How many times fewer multiplications F(2×2, 3×3) needs (Lavin and Gray, arXiv 1509.09308)."""

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Device:
    """A device's peaks, and the parts of them that good kernels reach.

    Attributes:
        name: what people call it.
        matrix: peak FLOP/s of matrix products and convolutions by element type (`float32`, `bfloat16`, …); `tf32` is
            the rate of float32 products on units that round their operands to TF32.
        vector: peak FLOP/s of everything else.
        bandwidth: peak bytes/s of the memory.
        compute_efficiency, bandwidth_efficiency: attainable share of the peaks, in (0, 1].
        winograd: whether 3×3 convolutions of stride 1 in float32 run by Winograd's algorithm, as cuDNN's do.
        launch_s: what each kernel costs beside its work, seconds.

    Raises:
        BadInput: a number out of range, or no float32 rate.
    """

    name: str
    matrix: Mapping[str, float]
    vector: float
    bandwidth: float
    compute_efficiency: float
    bandwidth_efficiency: float
    winograd: bool = False
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"device {self.name}"
        if "float32" not in self.matrix:
            raise BadInput("matrix has no float32", where=where, do="give the peak FLOP/s of each element type")
        peaks = {f"matrix {dtype}": rate for dtype, rate in self.matrix.items()}
        for key, value in {**peaks, "vector": self.vector, "bandwidth": self.bandwidth}.items():
            if not 0 < value < math.inf:
                raise BadInput(f"{key} is {value!r}", where=where, do="give a positive number per second")
        for key in ("compute_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, key) <= 1:
                raise BadInput(f"{key} is {getattr(self, key)!r}", where=where, do="give a share in (0, 1]")
        if not 0 <= self.launch_s < math.inf:
            raise BadInput(f"launch_s is {self.launch_s!r}", where=where, do="give seconds ≥ 0")

    def seconds(
        self, flop: ArrayLike, moved_bytes: ArrayLike, dtype: str = "float32", kind: Kind = "vector"
    ) -> FloatArray:
        """Times of kernels that compute and move that much, each max(FLOP / attainable, bytes / attainable) + launch_s.

        Args:
            flop, moved_bytes: work of each kernel; one that does neither takes no time. Any shapes that broadcast.
            dtype: element type of a matrix product's operands, or `tf32`; others run at the vector rate.
            kind: `matrix` for matrix products and convolutions, `vector` for everything else.

        Raises:
            BadInput: the device has no rate for matrix products of that type.
        """
        flop, moved_bytes = np.asarray(flop, np.float64), np.asarray(moved_bytes, np.float64)
        peak = self._matrix_peak(dtype) if kind == "matrix" else self.vector
        compute_s = flop / (peak * self.compute_efficiency)
        work_s = np.maximum(compute_s, moved_bytes / (self.bandwidth * self.bandwidth_efficiency))
        return np.asarray(np.where(work_s > 0, work_s + self.launch_s, 0.0))

    def _matrix_peak(self, dtype: str) -> float:
        if dtype not in self.matrix:
            raise BadInput(
                f"has no rate for matrix products in {dtype}",
                where=f"device {self.name}",
                do=f"choose from {', '.join(self.matrix)} or add it to the device's file",
            )
        return self.matrix[dtype]


def roofline_times(graph: InstructionGraph, device: Device, *, tf32: bool = True) -> FloatArray:
    """Time of each instruction on a device, [n] seconds.

    Elementwise instructions are fused as a compiler would (see cost.fusion): a fused kernel's time is that of the
    instruction which writes its result, the others in it take none.

    Args:
        tf32: whether float32 matrix products run in TF32 where the device can, as XLA's do unless a precision is asked.

    Raises:
        BadInput: the device has no rate for the element type of a matrix product.
    """
    flop, moved_bytes = kernel_costs(graph)
    times_s = device.seconds(flop, moved_bytes)
    matrix: dict[str, list[int]] = {}
    for i, opcode in enumerate(graph.opcodes):
        if opcode in MATRIX_OPCODES:
            matrix.setdefault(_product_type(graph, i, device, tf32), []).append(i)
            if device.winograd and _is_winograd(graph, i):
                flop[i] /= WINOGRAD_SAVING
    for dtype, members in matrix.items():
        times_s[members] = device.seconds(flop[members], moved_bytes[members], dtype, "matrix")
    return times_s


def _operands(graph: InstructionGraph, i: int) -> NDArray[np.int64]:
    return graph.operands[graph.operand_offsets[i] : graph.operand_offsets[i + 1]]


def _product_type(graph: InstructionGraph, i: int, device: Device, tf32: bool) -> str:
    """Element type of a matrix product; integers and booleans are taken for float32."""
    own = graph.dtypes[_operands(graph, i)[0]]
    dtype = _DTYPES.get(own, own if own.startswith("f") else "float32")
    return "tf32" if tf32 and dtype == "float32" and "tf32" in device.matrix else dtype


def _is_winograd(graph: InstructionGraph, i: int) -> bool:
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
