"""ResNet with bottleneck blocks (arXiv 1512.03385), the stride in the 3×3 convolutions ("v1.5").

Batch statistics are state: each step updates them, and no gradient reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import image_shapes


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a ResNet.

    Attributes:
        stages: blocks of each stage; the first stage's bottlenecks have `width` channels, each further one's double.
        width: also the channels of the first convolution.
        image: height and width of the images.
    """

    stages: tuple[int, ...]
    width: int = 64
    classes: int = 1000
    image: int = 224

    def module(self, dtype: jnp.dtype) -> ResNet:
        """See training.Architecture."""
        return ResNet(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture."""
        return image_shapes(labels, self.image)


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
