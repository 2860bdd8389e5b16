"""A device that instructions are timed for without being there: its peaks and what good kernels reach of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.errors import BadInput

FloatArray = NDArray[np.float64]
KernelKind = Literal["matrix", "vector"]
LARGEST = 1e6
"""Of a size or a time among the constants; more is a slip of the pen."""


@dataclass(frozen=True)
class StepConstants:
    """What the kernels and the collectives of a training step reach on a kind of device, fitted to measured steps.

    Attributes:
        product_efficiency: share of the peak that products of large matrices reach, in (0, 1].
        half_size: depth of a product at which it reaches half of that, and what small tiles of it lose, elements; see
            `product_efficiencies`.
        attention_efficiency: share of the peak that a flash kernel reaches.
        bandwidth_efficiency: share of the memory's bandwidth that other kernels reach.
        launch_s: what each kernel costs beside its work, seconds.
        intra_efficiency, inter_efficiency: share of a link's bandwidth that collectives reach inside a node and across
            nodes.
        overlap: share of the communication of data parallelism that can go on beside computation, in [0, 1].

    Raises:
        BadInput: a number out of range.
    """

    product_efficiency: float
    half_size: float
    attention_efficiency: float
    bandwidth_efficiency: float
    launch_s: float
    intra_efficiency: float
    inter_efficiency: float
    overlap: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            of_share = field.name.endswith("_efficiency")
            if not ((0 < value <= 1) if of_share else (0 <= value <= (1 if field.name == "overlap" else LARGEST))):
                do = "give a share in (0, 1]" if of_share else "give a number of 0 or more; of overlap, up to 1"
                raise BadInput(f"{field.name} is {value!r}", where="step", do=do)

    def product_efficiencies(self, sizes: FloatArray, multiprocessors: int | None) -> FloatArray:
        """[…] share of the peak that products of these sizes reach.

            product_efficiency · depth / (depth + half_size) · best tile's (whole · filled · side)

            rows                  The result is computed in tiles, one by a multiprocessor at a time.
            ┌────┬────┬──┐        whole    elements of the result over those of its tiles
            │    │    │  │        filled   tiles over what the rounds of the multiprocessors hold, the last one, too
            ├────┼────┼──┤        side     1 / (1 + half_size · (1/a + 1/b - 3/256)): for a product of two numbers a
            └────┴────┴──┘                 tile of a × b reads 1/a + 1/b operands, the largest one 3/256

        Libraries choose among tiles (TILES) by the product's size. That is tile and wave quantization of NVIDIA's
        "Matrix Multiplication Background User's Guide".

        Args:
            sizes: […, 4] how many products, rows, columns and depth.
            multiprocessors: of the device; None counts no rounds.
        """
        count, rows, columns, depth = np.moveaxis(np.asarray(sizes, np.float64), -1, 0)
        high, wide = np.array(TILES, np.float64).T
        tiles = count[..., None] * np.ceil(rows[..., None] / high) * np.ceil(columns[..., None] / wide)
        shares = (count * rows * columns)[..., None] / (tiles * high * wide)
        if multiprocessors is not None:
            shares *= tiles / multiprocessors / np.ceil(tiles / multiprocessors)
        read = 1.0 / high + 1.0 / wide
        best = (shares / (1.0 + self.half_size * (read - read.min()))).max(axis=-1)
        return np.asarray(self.product_efficiency * best * depth / (depth + self.half_size))


TILES = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)),
    *((128, 32), (32, 128), (64, 32), (32, 64), (128, 16), (16, 128)),
)
"""Rows and columns of the parts of a result that a multiprocessor computes at a time."""
ALIGNED = ((64, 1.0), (8, 0.93), (1, 0.07))
"""Elements that the sides of a product in 16 or 8 bits are multiples of, and the share of the aligned rate that it
then reaches: matrix units take sides of 8 elements, full tiles 64. Of all kinds of devices; fitted with them."""


def alignment_shares(sizes: FloatArray) -> FloatArray:
    """[…] share of the aligned rate that products reach whose sides are multiples of few elements only.

    Args:
        sizes: […, 3] rows, columns and depth of each product; one that is no whole number counts as aligned.
    """
    shares = np.ones(sizes.shape[:-1])
    whole = sizes == np.floor(sizes)
    for (multiple, _), (_, share) in pairwise(ALIGNED):
        shares = np.where((whole & (sizes % multiple != 0)).any(axis=-1), share, shares)
    return shares


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
        multiprocessors: that compute tiles of a product beside one another; None where it is not known.
        sustained: share of the peaks at the clock that the device's power limit lets products of training steps run at,
            where that is lower than the one the peaks are of.
        step: constants of the training step under a strategy; None where none have been fitted.

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
    multiprocessors: int | None = None
    sustained: float = 1.0
    step: StepConstants | None = None

    def __post_init__(self) -> None:
        where = f"device {self.name}"
        if "float32" not in self.matrix:
            raise BadInput("matrix has no float32", where=where, do="give the peak FLOP/s of each element type")
        peaks = {f"matrix {dtype}": rate for dtype, rate in self.matrix.items()}
        for key, value in {**peaks, "vector": self.vector, "bandwidth": self.bandwidth}.items():
            if not 0 < value < math.inf:
                raise BadInput(f"{key} is {value!r}", where=where, do="give a positive number per second")
        for key in ("compute_efficiency", "bandwidth_efficiency", "sustained"):
            if not 0 < getattr(self, key) <= 1:
                raise BadInput(f"{key} is {getattr(self, key)!r}", where=where, do="give a share in (0, 1]")
        if not 0 <= self.launch_s < math.inf:
            raise BadInput(f"launch_s is {self.launch_s!r}", where=where, do="give seconds ≥ 0")
        if self.multiprocessors is not None and self.multiprocessors < 1:
            raise BadInput(f"multiprocessors is {self.multiprocessors!r}", where=where, do="give a number ≥ 1")

    @property
    def matrix_rates(self) -> tuple[tuple[str, float], ...]:
        """Element types with the FLOP/s attainable in matrix products of them."""
        return tuple((dtype, peak * self.compute_efficiency) for dtype, peak in self.matrix.items())

    def seconds(
        self, flop: ArrayLike, moved_bytes: ArrayLike, dtype: str = "float32", kind: KernelKind = "vector"
    ) -> FloatArray:
        """Times of kernels that compute and move that much, each max(FLOP / attainable, bytes / attainable) + launch_s.

        This is the roofline (Williams et al., CACM 52(4), 2009).

        Args:
            flop, moved_bytes: work of each kernel; one that does neither takes no time. Any shapes that broadcast.
            dtype: element type of a matrix product's operands, or `tf32`; others run at the vector rate.
            kind: `matrix` for matrix products and convolutions, `vector` for everything else.

        Raises:
            BadInput: the device has no rate for matrix products of that type.
        """
        flop, moved_bytes = np.asarray(flop, np.float64), np.asarray(moved_bytes, np.float64)
        peak = self.matrix_peak(dtype) if kind == "matrix" else self.vector
        compute_s = flop / (peak * self.compute_efficiency)
        work_s = np.maximum(compute_s, moved_bytes / (self.bandwidth * self.bandwidth_efficiency))
        return np.asarray(np.where(work_s > 0, work_s + self.launch_s, 0.0))

    @property
    def required_step(self) -> StepConstants:
        """The constants of the training step.

        Raises:
            BadInput: the device has none.
        """
        if self.step is None:
            do = "fit them with automap-calibrate, or choose a device that has them"
            raise BadInput("has no constants of training steps (`step:`)", where=f"device {self.name}", do=do)
        return self.step

    def matrix_peak(self, dtype: str) -> float:
        """Peak FLOP/s of products of matrices of an element type.

        Raises:
            BadInput: the device has no rate for it.
        """
        if dtype not in self.matrix:
            raise BadInput(
                f"has no rate for matrix products in {dtype}",
                where=f"device {self.name}",
                do=f"choose from {', '.join(self.matrix)} or add it to the device's file",
            )
        return self.matrix[dtype]
