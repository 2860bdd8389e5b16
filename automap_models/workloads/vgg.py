"""VGG (arXiv 1409.1556)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import image_shapes


@dataclass(frozen=True)
class VggConfig:
    """Sizes of a VGG.

    Attributes:
        blocks: (channels, convolutions) between one pooling and the next.
        width: of the two hidden fully connected layers.
        image: height and width of the images.
    """

    blocks: tuple[tuple[int, int], ...]
    width: int = 4096
    classes: int = 1000
    image: int = 224

    def module(self, dtype: jnp.dtype) -> Vgg:
        """See training.Architecture."""
        return Vgg(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture."""
        return image_shapes(labels, self.image)


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
