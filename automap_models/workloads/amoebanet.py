"""AmoebaNet-D (Real et al., arXiv 1802.01548), in the sizes of GPipe (arXiv 1811.06965, table 1).

A cell has seven states: what the cell before it made and what the one before that made, each through a 1×1 convolution,
then five sums of two operations on earlier states. Some of them, concatenated, are what it makes.

    stem, 2 reductions ── L/3 normal cells ── reduction ── L/3 normal cells ── reduction ── L/3 normal cells ── mean

The normal cell's concatenated states are those of TensorFlow's code, with which the parameters are GPipe's.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import ImageSizes

Kernels = tuple[tuple[int, int, int, tuple[int, int]], ...]
"""Channels, height, width and stride of convolutions."""
Genotype = tuple[tuple[tuple[int, str], ...], tuple[int, ...]]
"""State and operation of the ten inputs of the five sums, and the states that are concatenated."""

NORMAL: Genotype = (
    (
        *((1, "conv_1x1"), (1, "avg_pool_3x3")),
        *((1, "none"), (0, "conv_1x7_7x1")),
        *((0, "conv_1x1"), (0, "conv_1x7_7x1")),
        *((2, "max_pool_3x3"), (2, "none")),
        *((1, "avg_pool_3x3"), (5, "conv_1x1")),
    ),
    (0, 3, 4, 6),
)
REDUCTION: Genotype = (
    (
        *((0, "max_pool_2x2"), (0, "max_pool_3x3")),
        *((2, "none"), (1, "conv_3x3")),
        *((2, "conv_1x7_7x1"), (2, "max_pool_3x3")),
        *((3, "none"), (1, "max_pool_2x2")),
        *((2, "avg_pool_3x3"), (3, "conv_1x1")),
    ),
    (4, 5, 6),
)


@dataclass(frozen=True)
class AmoebaNetConfig(ImageSizes):
    """Sizes of an AmoebaNet-D.

    Attributes:
        layers: normal cells, a multiple of three.
        filters: D of GPipe; the first cells have a quarter of it, and it doubles with every reduction.
    """

    layers: int = 18
    filters: int = 208

    def module(self, dtype: jnp.dtype) -> AmoebaNet:
        """See sizes.JaxArchitecture."""
        return AmoebaNet(self, dtype)


AMOEBANET_D = AmoebaNetConfig()


def _normed(dtype: jnp.dtype, name: str) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=dtype, name=name)


class Convolutions(nn.Module):
    """ReLU, convolution without bias and batch norm, once for each kernel (channels, height, width, stride)."""

    kernels: Kernels
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h', w', channels]."""
        for i, (channels, height, width, stride) in enumerate(self.kernels):
            size = (height, width)
            x = nn.Conv(channels, size, stride, use_bias=False, dtype=self.dtype, name=f"conv_{i}")(nn.relu(x))
            x = _normed(self.dtype, f"norm_{i}")(x)
        return x


class FactorizedReduction(nn.Module):
    """Two 1×1 convolutions of stride 2, the second one shifted by a pixel, side by side."""

    channels: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h/2, w/2, channels]."""
        x = nn.relu(x)
        shifted = jnp.pad(x[:, 1:, 1:], ((0, 0), (0, 1), (0, 1), (0, 0)))
        halves = [
            nn.Conv(self.channels // 2, (1, 1), (2, 2), use_bias=False, dtype=self.dtype, name=f"conv_{i}")(y)
            for i, y in enumerate((x, shifted))
        ]
        out: jax.Array = _normed(self.dtype, "norm")(jnp.concatenate(halves, axis=-1))
        return out


class Operation(nn.Module):
    """One operation of a genotype; the channels stay."""

    kind: str
    stride: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h/stride, w/stride, c]."""
        c, s = x.shape[-1], self.stride
        quarter, both = c // 4, (s, s)
        match self.kind:
            case "none":
                return x if s == 1 else FactorizedReduction(c, self.dtype, name="reduce")(x)
            case "avg_pool_3x3":
                return nn.avg_pool(x, (3, 3), both, "SAME", count_include_pad=False)  # type: ignore[no-untyped-call, no-any-return]
            case "max_pool_3x3" | "max_pool_2x2":
                size = int(self.kind[-1])
                return nn.max_pool(x, (size, size), both, "SAME")  # type: ignore[no-untyped-call, no-any-return]
            case "conv_1x1":
                kernels: Kernels = ((c, 1, 1, both),)
            case "conv_3x3":
                kernels = ((quarter, 1, 1, (1, 1)), (quarter, 3, 3, both), (c, 1, 1, (1, 1)))
            case _:  # conv_1x7_7x1
                ends = ((quarter, 1, 1, (1, 1)), (c, 1, 1, (1, 1)))
                kernels = (ends[0], (quarter, 1, 7, (1, s)), (quarter, 7, 1, (s, 1)), ends[1])
        return Convolutions(kernels, self.dtype, name=self.kind)(x)


class AmoebaCell(nn.Module):
    """A cell of a genotype.

    Attributes:
        channels: of its states.
        reduction: whether it halves its images.
        halved: whether the cell before it did, so that the state before that is twice as large.
    """

    channels: int
    reduction: bool
    halved: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What the cell before made, and the one before that → what this one makes, and x."""
        one = ((self.channels, 1, 1, (1, 1)),)
        older = before
        if self.halved:
            older = FactorizedReduction(self.channels, self.dtype, name="older")(before)
        elif before.shape[-1] != self.channels:
            older = Convolutions(one, self.dtype, name="older")(before)
        states = [Convolutions(one, self.dtype, name="newer")(x), older]
        inputs, operations = REDUCTION if self.reduction else NORMAL
        for i in range(0, len(inputs), 2):
            ends = [
                Operation(kind, 2 if self.reduction and state < 2 else 1, self.dtype, name=f"op_{j}")(states[state])
                for j, (state, kind) in enumerate(inputs[i : i + 2], start=i)
            ]
            states.append(ends[0] + ends[1])
        return jnp.concatenate([states[i] for i in operations], axis=-1), x


class AmoebaNet(nn.Module):
    """Stem, cells, mean, one fully connected layer."""

    config: AmoebaNetConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, 3] → logits [batch, classes]."""
        c, channels = self.config, self.config.filters // 4
        x = nn.Conv(channels, (3, 3), (2, 2), use_bias=False, dtype=self.dtype, name="stem")(
            nn.relu(images.astype(self.dtype))
        )
        x = before = _normed(self.dtype, "stem_norm")(x)
        normal = (False,) * (c.layers // 3)
        halved = False
        for i, reduction in enumerate((True, True, *normal, True, *normal, True, *normal)):
            channels *= 2 if reduction else 1
            x, before = AmoebaCell(channels, reduction, halved, self.dtype, name=f"cell_{i}")(x, before)
            halved = reduction
        return nn.Dense(c.classes, dtype=self.dtype, name="predictions")(x.mean((1, 2)))
