"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), and GPT-3: one scaled up.

The published weights keep q, k and v in one matrix; here they are three, which compute the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import Attention, FeedForward, causal_bias, token_shapes


@dataclass(frozen=True)
class Gpt2Config:
    """Sizes of a GPT-2; its feed-forward layers are four times as wide as its hidden states."""

    width: int
    heads: int
    layers: int
    vocabulary: int = 50257
    positions: int = 1024

    def module(self, dtype: jnp.dtype) -> Gpt2:
        """See training.Architecture."""
        return Gpt2(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture; labels are the ids shifted left."""
        return token_shapes(labels, "ids", "labels")


GPT2_MEDIUM = Gpt2Config(width=1024, heads=16, layers=24)
GPT2_XL = Gpt2Config(width=1600, heads=25, layers=48)
GPT3_7B = Gpt2Config(width=4096, heads=32, layers=32, positions=2048)
GPT3_13B = Gpt2Config(width=5120, heads=40, layers=40, positions=2048)
"""GPT-3 6.7B and 13B (arXiv 2005.14165, Table 2.1), all attention dense; 13B is as wide as its 40 heads of 128 are."""


class Gpt2(nn.Module):
    """Embeddings, decoder, logits with the word embedding."""

    config: Gpt2Config
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """[batch, n] → logits [batch, n, vocabulary]."""
        c = self.config
        embedding = nn.Embed(c.vocabulary, c.width, self.dtype, name="embedding")
        position = nn.Embed(c.positions, c.width, self.dtype, name="position_embedding")
        x = embedding(ids) + position(jnp.arange(ids.shape[1]))
        for i in range(c.layers):
            x = Block(c, self.dtype, name=f"block_{i}")(x)
        logits: jax.Array = embedding.attend(layer_norm("final_layer_norm", self.dtype)(x))
        return logits


class Block(nn.Module):
    """Causal attention and feed-forward, a layer norm before each."""

    config: Gpt2Config
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, width] → the same shape."""
        c = self.config
        attention = Attention(c.heads, c.width // c.heads, True, True, self.dtype, name="attention")
        mask = causal_bias(x.shape[1], self.dtype)  # each block makes its own, so that none crosses a pipeline cut
        x = x + attention(layer_norm("attention_layer_norm", self.dtype)(x), bias=mask)
        feed_forward = FeedForward(4 * c.width, True, nn.gelu, self.dtype, name="feed_forward")
        return x + feed_forward(layer_norm("feed_forward_layer_norm", self.dtype)(x))


def layer_norm(name: str, dtype: jnp.dtype) -> nn.LayerNorm:
    """GPT-2's: the ε is its own."""
    return nn.LayerNorm(epsilon=1e-5, dtype=dtype, name=name)
