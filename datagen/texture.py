"""Structure laid over a row of values: spikes, slow trends, noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .binning import Bins
from .settings import CountRange, FloatArray, LogRange, PartRange, Range, Share


@dataclass(frozen=True)
class Spikes:
    """Single instructions that hold a large part of an array: an embedding, a fully connected layer.

    Attributes:
        probability: share of the groups that have any.
        count: range of how many.
        share: range of the part of the array's sum that they hold together.
        at_ends: share of the spikes that sit at the first or the last instructions.
    """

    probability: Share
    count: CountRange
    share: PartRange
    at_ends: Share

    def add(self, rng: np.random.Generator, bins: Bins, values: FloatArray) -> None:
        """Add spikes to an array of bin sums, in place."""
        groups = len(bins)
        count = self.count.draw(rng, groups) * (rng.random(groups) < self.probability)
        share = self.share.draw(rng, groups)[:, 0]
        height = values.sum(axis=1) * share / (1 - share) / np.maximum(count, 1)
        for k in range(int(count.max())):
            rows = np.flatnonzero(count > k)
            values[rows, self._place(rng, bins.last[rows])] += height[rows] * rng.uniform(0.5, 1.5, rows.size)

    def _place(self, rng: np.random.Generator, last: NDArray[np.int64]) -> NDArray[np.int64]:
        anywhere = rng.integers(0, last + 1)
        from_end = np.minimum(rng.geometric(0.5, last.size) - 1, last)
        at_end = np.where(rng.random(last.size) < 0.5, from_end, last - from_end)
        return np.where(rng.random(last.size) < self.at_ends, at_end, anywhere)


@dataclass(frozen=True)
class Trend:
    """A slow change over the model's depth: a slope and a bump in the logarithm.

    Attributes:
        probability: share of the groups with a slope, and with a bump.
        strength: range of how far the logarithm moves, up or down.
    """

    probability: Share
    strength: Range

    def factor(self, rng: np.random.Generator, bins: Bins) -> FloatArray:
        """The factor at each bin, float32 [B, m]."""
        groups = len(bins)
        slope, bump = (self._amplitude(rng, groups) for _ in range(2))
        centre = rng.random((groups, 1), dtype=np.float32)
        width = 0.05 + 0.4 * rng.random((groups, 1), dtype=np.float32)
        hump = 1 / (1 + np.square((bins.depth - centre) / width))
        return np.asarray(np.exp(slope * (bins.depth - 0.5) + bump * hump), dtype=np.float32)

    def _amplitude(self, rng: np.random.Generator, groups: int) -> FloatArray:
        size = self.strength.draw(rng, groups) * rng.choice([np.float32(-1), np.float32(1)], (groups, 1))
        return np.asarray(size * (rng.random((groups, 1)) < self.probability), dtype=np.float32)


@dataclass(frozen=True)
class Texture:
    """What is laid over independent draws so that they have structure.

    Attributes:
        zero_compute: range of the share of instructions that take no time.
        no_parameters: range of the share of instructions without parameters.
        trend: slow changes, drawn for each array apart.
        parameter_spikes, compute_spikes: instructions that hold much of W or C.
        narrow: range of the share of cuts where little crosses.
        narrow_factor: range of how little, relative to its neighbours.
    """

    zero_compute: PartRange
    no_parameters: PartRange
    trend: Trend
    parameter_spikes: Spikes
    compute_spikes: Spikes
    narrow: Range
    narrow_factor: LogRange


def jitter(rng: np.random.Generator, bins: Bins, sigma: FloatArray) -> FloatArray:
    """Lognormal noise of median 1 on each bin; sigma [B, 1]."""
    return np.asarray(np.exp(sigma * rng.standard_normal(bins.shape, dtype=np.float32)), dtype=np.float32)
