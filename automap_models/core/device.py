"""A device that kernels are timed for without being there: the clock of all graphs and of all strategies.

    product    max(FLOP / (peak · efficiency of its sizes), bytes / (bandwidth · share)) + launch
    others     max(FLOP / (vector peak · efficiency), bytes / (bandwidth · share)) + launch

The peaks are of data sheets. Shares and the launch are constants fitted to measured training steps (`StepConstants`);
of a device that none have been fitted for they are the means of those that have them (USUAL).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput


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
            most = 1 if field.name == "overlap" else 1e6  # more of a size or a time is a slip of the pen
            if not ((0 < value <= 1) if of_share else (0 <= value <= most)):
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
            multiprocessors: of the device; None is one that computes no tiles, such as a CPU.
        """
        count, rows, columns, depth = np.moveaxis(np.asarray(sizes, np.float64), -1, 0)
        if multiprocessors is None:
            return np.asarray(self.product_efficiency * depth / (depth + self.half_size))
        high, wide = np.array(TILES, np.float64).T
        tiles = count[..., None] * np.ceil(rows[..., None] / high) * np.ceil(columns[..., None] / wide)
        shares, rounds = (count * rows * columns)[..., None] / (tiles * high * wide), tiles / multiprocessors
        shares *= rounds / np.ceil(rounds)
        read = 1.0 / high + 1.0 / wide
        best = (shares / (1.0 + self.half_size * (read - read.min()))).max(axis=-1)
        return np.asarray(self.product_efficiency * best * depth / (depth + self.half_size))


USUAL = StepConstants(
    product_efficiency=0.75,
    half_size=60.0,
    attention_efficiency=0.3,
    bandwidth_efficiency=0.65,
    launch_s=6e-6,
    intra_efficiency=0.55,
    inter_efficiency=0.5,
    overlap=0.3,
)
"""About the mean of those of V100, A100 and H100: what fits are pulled to, and what devices without a fit have."""

TILES = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)),
    *((128, 32), (32, 128), (64, 32), (32, 64), (128, 16), (16, 128)),
)
"""Rows and columns of the parts of a result that a multiprocessor computes at a time."""


HALVES = frozenset({"bfloat16", "float16"})
"""Element types of 16 bits."""


def alignment_shares(sizes: FloatArray) -> FloatArray:
    """[…] share of the aligned rate that products in 16 or 8 bits reach whose sides are multiples of few elements only.

    Matrix units take sides of 8 elements, full tiles 64. The shares were fitted with those of all kinds of devices. A
    side narrower than a tile, such as an adapter's rank, is filled up to one, which `product_efficiencies` counts.

    Args:
        sizes: […, 3] rows, columns and depth of each product; one that is no whole number counts as aligned.
    """
    shares = np.ones(sizes.shape[:-1])
    is_whole = sizes == np.floor(sizes)
    for multiple, least, share in ((64, 0, 0.93), (8, 64, 0.07)):
        shares = np.where((is_whole & (sizes > least) & (sizes % multiple != 0)).any(axis=-1), share, shares)
    return shares


@dataclass(frozen=True)
class HostMemory:
    """The memory of a node's host, where the state of an optimiser may lie, and be updated.

    Attributes:
        memory: bytes of a node.
        bandwidth: bytes/s of it that updates reach, of all devices of a node together.
        link: bytes/s of each device to it, in each direction.

    Raises:
        BadInput: a number that is not positive.
    """

    memory: float
    bandwidth: float
    link: float

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < (value := getattr(self, field.name)) < math.inf:
                raise BadInput(f"{field.name} is {value!r}", where="host_memory", do="give a positive number")


@dataclass(frozen=True)
class Device:
    """A device's peaks, and the constants that say what kernels reach of them.

    Attributes:
        name: what people call it.
        matrix: peak FLOP/s of matrix products and convolutions by element type (`float32`, `bfloat16`, …); `tf32` is
            the rate of float32 products on units that round their operands to TF32.
        vector: peak FLOP/s of everything else.
        bandwidth: peak bytes/s of the memory.
        winograd: whether 3×3 convolutions of stride 1 in float32 run by Winograd's algorithm, as cuDNN's do.
        multiprocessors: that compute tiles of a product beside one another; None where it computes no tiles, or their
            number is not known.
        sustained: share of the peaks at the clock that the device's power limit lets products of training steps run at,
            where that is lower than the one the peaks are of.
        step: constants fitted to training steps; None where none have been, which takes the means (`constants`).
        left_out: least and largest median error of a source of measured steps under constants that are fitted to
            other ones (docs/reference/accuracy.md); None where that is not known.
        fitted_to: sources of the measured steps that the constants are fitted to.
        host: time that the processor beside it takes to launch kernels over that of x86 hosts.
        cluster: whose nodes and links are the usual ones of such devices, by name or file; None where nobody says.
        host_memory: of the nodes that usually have such devices; None where nobody says.
        alone: whether no job has other kinds beside them, since they exchange over links of their own.

    Raises:
        BadInput: a number out of range, or no float32 rate.
    """

    name: str
    matrix: Mapping[str, float]
    vector: float
    bandwidth: float
    winograd: bool = False
    multiprocessors: int | None = None
    sustained: float = 1.0
    step: StepConstants | None = None
    left_out: tuple[float, float] | None = None
    fitted_to: tuple[str, ...] = ()
    cluster: str | None = None
    host: float = 1.0
    host_memory: HostMemory | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        where = f"device {self.name}"
        if "float32" not in self.matrix:
            raise BadInput("matrix has no float32", where=where, do="give the peak FLOP/s of each element type")
        peaks = {f"matrix {dtype}": rate for dtype, rate in self.matrix.items()}
        for key, value in {**peaks, "vector": self.vector, "bandwidth": self.bandwidth}.items():
            if not 0 < value < math.inf:
                raise BadInput(f"{key} is {value!r}", where=where, do="give a positive number per second")
        if not 0 < self.host < 1e3:
            raise BadInput(f"host is {self.host!r}", where=where, do="give a positive number, 1 for x86 hosts")
        if not 0 < self.sustained <= 1:
            raise BadInput(f"sustained is {self.sustained!r}", where=where, do="give a share in (0, 1]")
        if self.left_out is not None and not 0 <= self.left_out[0] <= self.left_out[1] < math.inf:
            do = "give the least and the largest median error, such as [0.02, 0.16]"
            raise BadInput(f"left_out is {list(self.left_out)}", where=where, do=do)
        if self.multiprocessors is not None and self.multiprocessors < 1:
            raise BadInput(f"multiprocessors is {self.multiprocessors!r}", where=where, do="give a number ≥ 1")

    @property
    def constants(self) -> StepConstants:
        """Those that were fitted, else the means of the kinds that have them."""
        return USUAL if self.step is None else self.step

    @property
    def origin(self) -> str:
        """Where the constants come from, as profiles say it."""
        return "mean of fitted devices" if self.step is None else "of the device"

    @property
    def bytes_per_s(self) -> float:
        """What kernels reach of the memory's bandwidth."""
        return self.bandwidth * self.constants.bandwidth_efficiency

    @property
    def matrix_rates(self) -> tuple[tuple[str, float], ...]:
        """Element types with the FLOP/s that large products of them reach."""
        return tuple((dtype, self.matrix_rate(dtype)) for dtype in self.matrix)

    def matrix_rate(self, dtype: str) -> float:
        """FLOP/s that large products of an element type reach.

        Raises:
            BadInput: the device has no rate for it.
        """
        return self.sustained * self.matrix_peak(dtype) * self.constants.product_efficiency

    def attention_rate(self, dtype: str) -> float:
        """FLOP/s of a flash kernel.

        Raises:
            BadInput: the device has no rate for the type.
        """
        return self.sustained * self.matrix_peak(dtype) * self.constants.attention_efficiency

    def seconds(self, flop: ArrayLike, moved_bytes: ArrayLike, rate: ArrayLike | None = None) -> FloatArray:
        """Times of kernels that compute and move that much, each max(FLOP / rate, bytes / attained) + launch.

        Args:
            flop, moved_bytes: work of each kernel; one that does neither takes no time. Any shapes that broadcast.
            rate: FLOP/s that it reaches; None is that of kernels which are no products.
        """
        flop, moved_bytes = np.asarray(flop, np.float64), np.asarray(moved_bytes, np.float64)
        rates = np.asarray(self.vector * self.constants.product_efficiency if rate is None else rate, np.float64)
        work_s = np.maximum(flop / rates, moved_bytes / self.bytes_per_s)
        return np.asarray(np.where(work_s > 0, work_s + self.constants.launch_s, 0.0))

    def product_rates(self, sizes: FloatArray, dtype: str, aligned: bool | NDArray[np.bool_] = True) -> FloatArray:
        """[…] FLOP/s that products of these sizes reach.

        Args:
            sizes: […, 4] how many products, rows, columns and depth.
            dtype: element type of the operands, or `tf32`.
            aligned: [… or one] whether a library pads their sides; else types of 16 bits lose by them
                (`alignment_shares`).

        Raises:
            BadInput: the device has no rate for the type.
        """
        peak = self.sustained * self.matrix_peak(dtype)
        rates = peak * self.constants.product_efficiencies(sizes, self.multiprocessors)
        if dtype not in HALVES or self.multiprocessors is None:
            return rates
        return rates * np.where(aligned, 1.0, alignment_shares(sizes[..., 1:]))

    def matrix_peak(self, dtype: str) -> float:
        """Peak FLOP/s of products of matrices of an element type.

        Raises:
            BadInput: the device has no rate for it.
        """
        if dtype not in self.matrix:
            do = f"choose from {', '.join(self.matrix)} or add it to the device's file"
            raise BadInput(f"has no rate for matrix products in {dtype}", where=f"device {self.name}", do=do)
        return self.matrix[dtype]
