"""WaveNet (van den Oord et al., arXiv 1609.03499): stacks of dilated causal convolutions with gates and skip sums.

Sizes 2×18 and 4×36 are those of GDP (arXiv 1910.01578): stacks, and layers of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import token_shapes


@dataclass(frozen=True)
class WaveNetConfig:
    """Sizes of a WaveNet.

    Attributes:
        stacks: how often the dilations begin anew.
        layers: of each stack; the dilation doubles from layer to layer up to 512 and begins anew.
        residual, skip: channels.
        values: levels of a sample.
    """

    stacks: int
    layers: int
    residual: int = 128
    skip: int = 256
    values: int = 256

    def module(self, dtype: jnp.dtype) -> WaveNet:
        """See sizes.JaxArchitecture."""
        return WaveNet(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See sizes.JaxArchitecture."""
        return token_shapes(labels, "samples", "labels")


WAVENET_2_18, WAVENET_4_36 = WaveNetConfig(2, 18), WaveNetConfig(4, 36)


class WaveNet(nn.Module):
    """An embedding, gated dilated convolutions with residual and skip sums, two 1×1 convolutions."""

    config: WaveNetConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, samples: jax.Array) -> jax.Array:
        """[batch, length] → logits [batch, length, values]."""
        c = self.config
        x = nn.Embed(c.values, c.residual, dtype=self.dtype, name="embedding")(samples)
        skips = jnp.zeros((*x.shape[:2], c.skip), self.dtype)
        for stack in range(c.stacks):
            for layer in range(c.layers):
                block = GatedLayer(c, 2 ** (layer % 10), self.dtype, name=f"stack{stack}_layer{layer}")
                x, skip = block(x)
                skips = skips + skip
        y = nn.relu(nn.Dense(c.skip, dtype=self.dtype, name="head_1")(nn.relu(skips)))
        logits: jax.Array = nn.Dense(c.values, dtype=self.dtype, name="head_2")(y)
        return logits


class GatedLayer(nn.Module):
    """tanh and sigmoid of two causal convolutions, multiplied; a sum to the next layer and one to the output."""

    config: WaveNetConfig
    dilation: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[batch, length, residual] → the next layer's input, and [batch, length, skip]."""
        c = self.config
        both = nn.Conv(
            2 * c.residual, (2,), padding="CAUSAL", kernel_dilation=(self.dilation,), dtype=self.dtype, name="dilated"
        )(x)
        tanh, gate = jnp.split(both, 2, axis=-1)
        z = jnp.tanh(tanh) * nn.sigmoid(gate)
        skip = nn.Dense(c.skip, dtype=self.dtype, name="skip")(z)
        return x + nn.Dense(c.residual, dtype=self.dtype, name="residual")(z), skip
