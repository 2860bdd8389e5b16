"""Models with a plan of their own: transformers of equal blocks, CNNs of falling resolution, and what lies over rows.

In both, the instructions of one bin (binning.py) are taken to be alike: they are neighbours in one block or level. Over
a row of values lie spikes, slow trends and noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .binning import Bins, Raw
from .settings import (
    CountRange,
    FloatArray,
    LogPartRange,
    LogRange,
    PartRange,
    Range,
    Settings,
    Share,
    SignedRange,
)


class Spikes(Settings, frozen=True):
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
        place = np.where(rng.random(last.size) < 0.5, from_end, last - from_end)
        return np.where(rng.random(last.size) < self.at_ends, place, anywhere)


class Trend(Settings, frozen=True):
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


class Texture(Settings, frozen=True):
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


PATTERN = 64
"""Distinct instructions in a repeated block; longer blocks stretch them."""


class Transformer(Settings, frozen=True):
    """Equal blocks with a small pattern inside, an embedding before them and sometimes a head after them.

    Attributes:
        blocks: range of their number.
        spread: range of σ of the lognormal values inside a block.
        parameter_share: range of the share of a block's instructions with parameters.
        zero_compute: range of the share of a block's instructions that take no time.
        noise: range of σ of the lognormal noise on every single instruction.
        inner_activation: range of what crosses inside a block relative to between blocks.
        input_activation: range of what crosses after the few inputs, before the embedding.
        decoder_probability: share of the groups with a second, different half (encoder and decoder).
        decoder_factor: range of its values relative to the first half's.
        embedding_probability, embedding: share of groups with one; range of its part of all parameters.
        head_probability, head_parameters, head_compute: the same for the last instruction.
    """

    blocks: CountRange
    spread: Range
    parameter_share: Range
    zero_compute: Range
    noise: Range
    inner_activation: LogRange
    input_activation: LogRange
    decoder_probability: Share
    decoder_factor: LogRange
    embedding_probability: Share
    embedding: PartRange
    head_probability: Share
    head_parameters: PartRange
    head_compute: PartRange

    def draw(self, rng: np.random.Generator, bins: Bins) -> Raw:
        """Raw arrays for these models."""
        pick = self._pattern_index(rng, bins)
        C, A, W = (np.take_along_axis(pattern, pick, axis=1) for pattern in self._patterns(rng, len(bins)))
        for values in (C, A, W):
            self._decode(rng, bins, values)
        noise = self.noise.draw(rng, len(bins))
        C = bins.span * C * jitter(rng, bins, noise)
        W = bins.span * W
        self._ends(rng, bins, C, A, W)
        return Raw(C, A, W)

    def _pattern_index(self, rng: np.random.Generator, bins: Bins) -> NDArray[np.int64]:
        """[B, m] which instruction of the pattern each bin is; 0 ends a block: the residual stream alone crosses."""
        blocks = np.minimum(self.blocks.draw(rng, len(bins)), bins.n)
        length = np.maximum(bins.n // blocks, 1)[:, None]
        offset = rng.integers(0, 4, (len(bins), 1))
        inside = (bins.first + offset) % length
        return (inside * np.minimum(PATTERN, length) // length).astype(np.int64)

    def _patterns(self, rng: np.random.Generator, groups: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        shape = (groups, PATTERN)
        spread = self.spread.draw(rng, groups)
        C, W = (np.exp(spread * rng.standard_normal(shape, dtype=np.float32)) for _ in range(2))
        C[:, 1:] *= rng.random((groups, PATTERN - 1)) >= self.zero_compute.draw(rng, groups)
        W[:, 1:] *= rng.random((groups, PATTERN - 1)) < self.parameter_share.draw(rng, groups)
        A = self.inner_activation.draw(rng, groups * PATTERN).reshape(shape)
        A[:, 0] = 1
        return C, A, W

    def _decode(self, rng: np.random.Generator, bins: Bins, values: FloatArray) -> None:
        groups = len(bins)
        start = np.where(rng.random((groups, 1)) < self.decoder_probability, rng.uniform(0.3, 0.7, (groups, 1)), 2.0)
        values *= np.where(bins.depth > start, self.decoder_factor.draw(rng, groups), np.float32(1))

    def _ends(self, rng: np.random.Generator, bins: Bins, C: FloatArray, A: FloatArray, W: FloatArray) -> None:
        groups, rows, last = len(bins), np.arange(len(bins)), bins.last
        inputs = rng.integers(0, 4, groups)
        before = bins.first < inputs[:, None]
        C[before] *= np.float32(0.01)
        W[before] = 0
        A *= np.where(before, self.input_activation.draw(rng, groups), np.float32(1))
        has_embedding = rng.random(groups) < self.embedding_probability
        has_head = rng.random(groups) < self.head_probability
        spikes = (
            (W, np.minimum(inputs, last), has_embedding, self.embedding),
            (W, last, has_head, self.head_parameters),
            (C, last, has_head, self.head_compute),
        )
        for values, place, present, part in spikes:
            share = part.draw(rng, groups)[:, 0] * present
            values[rows, place] += values.sum(axis=1) * share / (1 - share)


class Cnn(Settings, frozen=True):
    """Levels of falling resolution: activations fall in steps, weights rise, often with a fully connected head.

    Attributes:
        levels: range of the number of resolutions.
        activation_step: range of the factor on activations at each step down.
        weight_step: range of the factor on weights at each step down.
        hump: range of how far compute (in the logarithm) rises in the middle, either way.
        spread: range of σ of the lognormal values of compute.
        inner_activation: range of σ of the lognormal values of activations inside a level.
        parameter_share: range of the share of instructions with parameters.
        zero_compute: range of the share of instructions that take no time.
        head_probability: share of the groups with a fully connected head (VGG, AlexNet) rather than none (ResNet).
        head_instructions: range of its length.
        head_parameters: range of its part of all parameters.
        head_compute: range of its part of all compute.
        head_activation: range of its activations relative to the last level's.
        compute_spikes: instructions that hold much of C.
    """

    levels: CountRange
    activation_step: LogRange
    weight_step: LogRange
    hump: SignedRange
    spread: Range
    inner_activation: Range
    parameter_share: Range
    zero_compute: Range
    head_probability: Share
    head_instructions: CountRange
    head_parameters: PartRange
    head_compute: LogPartRange
    head_activation: LogRange
    compute_spikes: Spikes

    def draw(self, rng: np.random.Generator, bins: Bins) -> Raw:
        """Raw arrays for these models."""
        groups, shape = len(bins), bins.shape
        level = self._level(rng, bins)
        spread = self.spread.draw(rng, groups)
        sparse = rng.random((2, *shape), dtype=np.float32)
        hump = self.hump.draw(rng, groups) * np.sin(np.pi * bins.depth)
        busy = sparse[0] >= self.zero_compute.draw(rng, groups)
        C = np.exp(hump + spread * rng.standard_normal(shape, dtype=np.float32)) * busy
        C = np.asarray(bins.span * C, dtype=np.float32)
        A = self.activation_step.draw(rng, groups) ** level
        A = A * jitter(rng, bins, self.inner_activation.draw(rng, groups))
        W = bins.span * self.weight_step.draw(rng, groups) ** level
        W *= sparse[1] < self.parameter_share.draw(rng, groups)
        self.compute_spikes.add(rng, bins, C)
        self._head(rng, bins, C, A, W)
        return Raw(C, A, W)

    def _level(self, rng: np.random.Generator, bins: Bins) -> FloatArray:
        """[B, m] how many steps down each bin is."""
        count = self.levels.draw(rng, len(bins))
        level = np.zeros(bins.shape, dtype=np.float32)
        for k in range(1, int(self.levels.high)):
            step = np.where(k < count, rng.random(len(bins)), 2.0)
            level += bins.depth > step[:, None].astype(np.float32)
        return level

    def _head(self, rng: np.random.Generator, bins: Bins, C: FloatArray, A: FloatArray, W: FloatArray) -> None:
        groups, rows = len(bins), np.arange(len(bins))
        present = rng.random(groups) < self.head_probability
        length = np.minimum(self.head_instructions.draw(rng, groups), bins.n // 3) * present
        inside = bins.first >= (bins.n - length)[:, None]
        last_cell_only = ~inside.any(axis=1) & present
        inside[rows[last_cell_only], bins.last[last_cell_only]] = True
        inside &= bins.span > 0
        A *= np.where(inside, self.head_activation.draw(rng, groups), np.float32(1))
        W *= ~inside
        C *= ~inside
        layers = inside * rng.standard_exponential(bins.shape, dtype=np.float32) ** 2
        layers /= np.maximum(layers.sum(axis=1, keepdims=True), np.float32(1e-30))
        for values, part in ((W, self.head_parameters), (C, self.head_compute)):
            share = part.draw(rng, groups) * present[:, None]
            np.add(values, layers * (values.sum(axis=1, keepdims=True) * share / (1 - share)), out=values)
