"""Inception-v3 (Szegedy et al., arXiv 1512.00567) without the auxiliary head: blocks of parallel branches."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import image_shapes

Kernel = tuple[int, int, int]
"""Channels, height and width of a convolution."""


@dataclass(frozen=True)
class InceptionConfig:
    """Sizes of an Inception-v3."""

    classes: int = 1000
    image: int = 299

    def module(self, dtype: jnp.dtype) -> Inception:
        """See training.Architecture."""
        return Inception(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture."""
        return image_shapes(labels, self.image)


INCEPTION_V3 = InceptionConfig()


class Convolution(nn.Module):
    """A convolution without bias, a batch norm and a ReLU."""

    kernel: Kernel
    dtype: jnp.dtype
    stride: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h', w', channels]."""
        channels, height, width = self.kernel
        strides = (self.stride, self.stride)
        x = nn.Conv(channels, (height, width), strides, self.padding, use_bias=False, dtype=self.dtype, name="conv")(x)
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=self.dtype, name="batch_norm")(x)
        return nn.relu(x)


class Block(nn.Module):
    """Branches of convolutions side by side, concatenated.

    Attributes:
        branches: convolutions of each branch, one after the other.
        pool: channels of the 1×1 convolution behind a pooled branch; 0: the block halves its images, its branches' last
            convolutions have stride 2 and the pooled branch a maximum.
        fork: last convolutions of the branches from this one on, which stand side by side instead (1×3 and 3×1).
    """

    branches: tuple[tuple[Kernel, ...], ...]
    pool: int
    dtype: jnp.dtype
    fork: int = 99

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h', w', sum of channels]."""
        outputs = []
        for b, branch in enumerate(self.branches):
            y = x
            forked = b >= self.fork
            for i, kernel in enumerate(branch[:-2] if forked else branch):
                halves = not self.pool and i == len(branch) - 1
                stride, padding = (2, "VALID") if halves else (1, "SAME")
                y = Convolution(kernel, self.dtype, stride, padding, name=f"b{b}_{i}")(y)
            if forked:
                outputs += [Convolution(k, self.dtype, name=f"b{b}_fork{i}")(y) for i, k in enumerate(branch[-2:])]
            else:
                outputs.append(y)
        if self.pool:
            pooled = nn.avg_pool(x, (3, 3), (1, 1), "SAME")  # type: ignore[no-untyped-call]
            outputs.append(Convolution((self.pool, 1, 1), self.dtype, name="pool")(pooled))
        else:
            outputs.append(nn.max_pool(x, (3, 3), (2, 2)))  # type: ignore[no-untyped-call]
        return jnp.concatenate(outputs, axis=-1)


def _a(pool: int, dtype: jnp.dtype, name: str) -> Block:
    branches = (((64, 1, 1),), ((48, 1, 1), (64, 5, 5)), ((64, 1, 1), (96, 3, 3), (96, 3, 3)))
    return Block(branches, pool, dtype, name=name)


def _b(c: int, dtype: jnp.dtype, name: str) -> Block:
    long = ((c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7))
    return Block((((192, 1, 1),), ((c, 1, 1), (c, 1, 7), (192, 7, 1)), long), 192, dtype, name=name)


def _c(dtype: jnp.dtype, name: str) -> Block:
    ends = ((384, 1, 3), (384, 3, 1))
    branches = (((320, 1, 1),), ((384, 1, 1), *ends), ((448, 1, 1), (384, 3, 3), *ends))
    return Block(branches, 192, dtype, fork=1, name=name)


class Inception(nn.Module):
    """Five convolutions, eleven blocks, one fully connected layer."""

    config: InceptionConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, 3] → logits [batch, classes]."""
        dtype, x = self.dtype, images.astype(self.dtype)
        x = Convolution((32, 3, 3), dtype, 2, "VALID", name="stem_1")(x)
        x = Convolution((32, 3, 3), dtype, 1, "VALID", name="stem_2")(x)
        x = Convolution((64, 3, 3), dtype, name="stem_3")(x)
        x = nn.max_pool(x, (3, 3), (2, 2))  # type: ignore[no-untyped-call]
        x = Convolution((80, 1, 1), dtype, 1, "VALID", name="stem_4")(x)
        x = Convolution((192, 3, 3), dtype, 1, "VALID", name="stem_5")(x)
        x = nn.max_pool(x, (3, 3), (2, 2))  # type: ignore[no-untyped-call]
        for i, pool in enumerate((32, 64, 64)):
            x = _a(pool, dtype, f"block_a{i}")(x)
        x = Block((((384, 3, 3),), ((64, 1, 1), (96, 3, 3), (96, 3, 3))), 0, dtype, name="reduction_a")(x)
        for i, channels in enumerate((128, 160, 160, 192)):
            x = _b(channels, dtype, f"block_b{i}")(x)
        long = ((192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3))
        x = Block((((192, 1, 1), (320, 3, 3)), long), 0, dtype, name="reduction_b")(x)
        for i in range(2):
            x = _c(dtype, f"block_c{i}")(x)
        return nn.Dense(self.config.classes, dtype=dtype, name="predictions")(x.mean((1, 2)))
