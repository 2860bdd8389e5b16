"""Models as rows of equal width: an instruction a bin, or equal runs of instructions where there are too many.

Drawing 4,096 instructions only to add them up in 128 blocks would waste nearly all of the work. So a model
with n ≤ m = `bins_per_point`·P instructions has a bin for each of them, exactly; a larger one has m bins, nested
in the P blocks of core.coarsen.Grid, and bin c stands for k = ⌈(c+1)·n/m⌉ - ⌈c·n/m⌉ instructions. The sum of k
independent values of mean μ is drawn as k·μ + √k·(x - μ) with one x of the same distribution: mean and variance are
those of the sum and it is never negative; only its skewness (that of x instead of 1/√k of it) is approximate, and
adding up the bins of a block brings it down again. Activations are read at single instructions, so nothing is
approximate about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .settings import FloatArray


@dataclass(frozen=True, eq=False)
class Bins:
    """B models in m bins each.

    Attributes:
        n: int32 [B] instructions.
        width: m.
        first: int32 [B, m] first instruction of each bin.
        span: float32 [B, m] instructions in each bin; 0 past the end of a model with n < m.
        depth: float32 [B, m] relative position of the bin's first instruction, 0 … 1.
    """

    n: NDArray[np.int32]
    width: int
    first: NDArray[np.int32]
    span: FloatArray
    depth: FloatArray

    @classmethod
    def create(cls, n: NDArray[np.int32], width: int) -> Bins:
        """The bins of models with n instructions; all n ≤ width (an instruction a bin) or all n > width."""
        column = np.arange(width + 1, dtype=np.int64)
        length = n[:, None].astype(np.int64)
        edges = np.minimum(column, length) if n.max() <= width else -(-column * length // width)
        first = edges[:, :-1].astype(np.int32)
        return cls(
            n=n,
            width=width,
            first=first,
            span=np.diff(edges, axis=1).astype(np.float32),
            depth=(first / np.maximum(length - 1, 1)).astype(np.float32),
        )

    def __len__(self) -> int:
        return int(self.n.size)

    @property
    def shape(self) -> tuple[int, int]:
        """(B, m)."""
        return len(self), self.width

    @property
    def last(self) -> NDArray[np.int64]:
        """[B] the bin of the last instruction."""
        return np.minimum(self.n, self.width).astype(np.int64) - 1

    def point_bins(self, points: int) -> NDArray[np.int64]:
        """[B, P] the bin that ends with the instruction each point of the grid stands for (core.coarsen.Grid)."""
        j = np.arange(1, points + 1, dtype=np.int64)
        bins = np.minimum(self.n, self.width).astype(np.int64)[:, None]
        return -(-j * bins // points) - 1

    def totals(self, values: FloatArray, mean: float, count: FloatArray) -> FloatArray:
        """Each bin's sum over `count` of its instructions, from one draw of mean `mean` a bin (module docstring)."""
        if self.n.max() <= self.width:
            return values * count
        sums: Any = count * np.float32(mean) + np.sqrt(count) * (values - np.float32(mean))
        return cast(FloatArray, np.maximum(sums, 0, out=sums))

    def how_many(self, rng: np.random.Generator, probability: FloatArray) -> FloatArray:
        """Of each bin's instructions, those that something is true of; probability [B, 1], result [B, m]."""
        if self.n.max() <= self.width:
            return self.span * (rng.random(self.shape, dtype=np.float32) < probability)
        return rng.binomial(self.span.astype(np.int64), probability).astype(np.float32)


class Raw(NamedTuple):
    """Raw values of a batch, float32 [B, m] each: C and W a bin's sums, A at the bin's last instruction."""

    C: FloatArray
    A: FloatArray
    W: FloatArray
