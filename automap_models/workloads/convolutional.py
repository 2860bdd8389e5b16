"""Convolutional networks: VGG, ResNet and Inception.

- VGG (arXiv 1409.1556).
- ResNet with bottleneck blocks (arXiv 1512.03385), the stride in the 3×3 convolutions ("v1.5"). Batch statistics are
  state: each step updates them, and no gradient reaches them.
- Inception-v3 (Szegedy et al., arXiv 1512.00567) without the auxiliary head: blocks of parallel branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import ImageSizes

Kernel = tuple[int, int, int]
"""Channels, height and width of a convolution."""


@dataclass(frozen=True)
class VggConfig(ImageSizes):
    """Sizes of a VGG.

    Attributes:
        blocks: (channels, convolutions) between one pooling and the next.
        width: of the two hidden fully connected layers.
    """

    blocks: tuple[tuple[int, int], ...]
    width: int = 4096

    def module(self, dtype: jnp.dtype) -> Vgg:
        """See sizes.JaxArchitecture."""
        return Vgg(self, dtype)


VGG_19 = VggConfig(blocks=((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)))


class Vgg(nn.Module):
    """3×3 convolutions and poolings, then three fully connected layers."""

    config: VggConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, 3] → logits [batch, classes]."""
        c, x = self.config, images.astype(self.dtype)
        for block, (channels, convolutions) in enumerate(c.blocks, start=1):
            for i in range(1, convolutions + 1):
                x = nn.relu(nn.Conv(channels, (3, 3), dtype=self.dtype, name=f"conv{block}_{i}")(x))
            x = nn.max_pool(x, (2, 2), (2, 2))  # type: ignore[no-untyped-call]
        x = x.reshape(len(x), -1)
        for name in ("fc1", "fc2"):
            x = nn.relu(nn.Dense(c.width, dtype=self.dtype, name=name)(x))
        return nn.Dense(c.classes, dtype=self.dtype, name="predictions")(x)


@dataclass(frozen=True)
class ResNetConfig(ImageSizes):
    """Sizes of a ResNet.

    Attributes:
        stages: blocks of each stage; the first stage's bottlenecks have `width` channels, each further one's double.
        width: also the channels of the first convolution.
    """

    stages: tuple[int, ...]
    width: int = 64

    def module(self, dtype: jnp.dtype) -> ResNet:
        """See sizes.JaxArchitecture."""
        return ResNet(self, dtype)


RESNET_50 = ResNetConfig(stages=(3, 4, 6, 3))


class ResNet(nn.Module):
    """A 7×7 convolution, stages of bottleneck blocks, one fully connected layer."""

    config: ResNetConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, 3] → logits [batch, classes]."""
        c = self.config
        x = nn.relu(ConvNorm(c.width, 7, 2, self.dtype, name="conv1")(images.astype(self.dtype)))
        x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))  # type: ignore[no-untyped-call]
        for stage, blocks in enumerate(c.stages):
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                x = Bottleneck(c.width * 2**stage, stride, self.dtype, name=f"stage{stage + 1}_block{i + 1}")(x)
        return nn.Dense(c.classes, dtype=self.dtype, name="predictions")(x.mean((1, 2)))


class Bottleneck(nn.Module):
    """Three convolutions around a residual sum; the last has four times `width` channels."""

    width: int
    stride: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, channels] → [batch, h / stride, w / stride, 4 · width]."""
        y = nn.relu(ConvNorm(self.width, 1, 1, self.dtype, name="conv1")(x))
        y = nn.relu(ConvNorm(self.width, 3, self.stride, self.dtype, name="conv2")(y))
        y = ConvNorm(4 * self.width, 1, 1, self.dtype, name="conv3")(y)
        if x.shape != y.shape:
            x = ConvNorm(4 * self.width, 1, self.stride, self.dtype, name="shortcut")(x)
        return nn.relu(x + y)


class ConvNorm(nn.Module):
    """A convolution without bias and a batch norm; edges are padded so that an odd kernel is centred."""

    channels: int
    kernel: int
    stride: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, h, w, c] → [batch, h / stride, w / stride, channels]."""
        size, strides = (self.kernel, self.kernel), (self.stride, self.stride)
        padding = ((self.kernel // 2, self.kernel // 2),) * 2
        x = nn.Conv(self.channels, size, strides, padding, use_bias=False, dtype=self.dtype, name="conv")(x)
        normed: jax.Array = nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=self.dtype, name="batch_norm")(
            x
        )
        return normed


@dataclass(frozen=True)
class InceptionConfig(ImageSizes):
    """Sizes of an Inception-v3."""

    image: int = 299

    def module(self, dtype: jnp.dtype) -> Inception:
        """See sizes.JaxArchitecture."""
        return Inception(self, dtype)


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


class InceptionBlock(nn.Module):
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


def _a(pool: int, dtype: jnp.dtype, name: str) -> InceptionBlock:
    branches = (((64, 1, 1),), ((48, 1, 1), (64, 5, 5)), ((64, 1, 1), (96, 3, 3), (96, 3, 3)))
    return InceptionBlock(branches, pool, dtype, name=name)


def _b(c: int, dtype: jnp.dtype, name: str) -> InceptionBlock:
    long = ((c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7))
    return InceptionBlock((((192, 1, 1),), ((c, 1, 1), (c, 1, 7), (192, 7, 1)), long), 192, dtype, name=name)


def _c(dtype: jnp.dtype, name: str) -> InceptionBlock:
    ends = ((384, 1, 3), (384, 3, 1))
    branches = (((320, 1, 1),), ((384, 1, 1), *ends), ((448, 1, 1), (384, 3, 3), *ends))
    return InceptionBlock(branches, 192, dtype, fork=1, name=name)


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
        x = InceptionBlock((((384, 3, 3),), ((64, 1, 1), (96, 3, 3), (96, 3, 3))), 0, dtype, name="reduction_a")(x)
        for i, channels in enumerate((128, 160, 160, 192)):
            x = _b(channels, dtype, f"block_b{i}")(x)
        long = ((192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3))
        x = InceptionBlock((((192, 1, 1), (320, 3, 3)), long), 0, dtype, name="reduction_b")(x)
        for i in range(2):
            x = _c(dtype, f"block_c{i}")(x)
        return nn.Dense(self.config.classes, dtype=dtype, name="predictions")(x.mean((1, 2)))
