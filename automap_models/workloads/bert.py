"""BERT (arXiv 1810.04805) as a masked language model, without its next-sentence task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import Attention, FeedForward, token_shapes

gelu = partial(nn.gelu, approximate=False)


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT; its feed-forward layers are four times as wide as its hidden states."""

    width: int
    heads: int
    layers: int
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2

    def module(self, dtype: jnp.dtype) -> Bert:
        """See training.Architecture."""
        return Bert(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture; labels are negative where no token was masked."""
        return token_shapes(labels, "ids", "types", "labels")


BERT_48 = BertConfig(width=1024, heads=16, layers=48)


class Bert(nn.Module):
    """Embeddings, encoder, and a head that predicts every token with the word embedding."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, ids: jax.Array, types: jax.Array) -> jax.Array:
        """[batch, n] twice → logits [batch, n, vocabulary]."""
        c = self.config
        embed = partial(nn.Embed, features=c.width, dtype=self.dtype)
        embedding = embed(c.vocabulary, name="embedding")
        x = embedding(ids) + embed(c.types, name="type_embedding")(types)
        x = x + embed(c.positions, name="position_embedding")(jnp.arange(ids.shape[1]))
        x = layer_norm("embedding_layer_norm", self.dtype)(x)
        for i in range(c.layers):
            x = Block(c, self.dtype, name=f"block_{i}")(x)
        x = gelu(nn.Dense(c.width, dtype=self.dtype, name="masked_lm")(x))
        x = layer_norm("masked_lm_layer_norm", self.dtype)(x)
        bias = self.param("masked_lm_bias", nn.initializers.zeros, (c.vocabulary,))
        logits: jax.Array = embedding.attend(x) + bias.astype(self.dtype)
        return logits


class Block(nn.Module):
    """Attention and feed-forward, a layer norm after each residual sum."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, width] → the same shape."""
        c = self.config
        attention = Attention(c.heads, c.width // c.heads, True, True, self.dtype, name="attention")
        x = layer_norm("attention_layer_norm", self.dtype)(x + attention(x))
        feed_forward = FeedForward(4 * c.width, True, gelu, self.dtype, name="feed_forward")
        normed: jax.Array = layer_norm("feed_forward_layer_norm", self.dtype)(x + feed_forward(x))
        return normed


def layer_norm(name: str, dtype: jnp.dtype) -> nn.LayerNorm:
    """BERT's: the ε is its own."""
    return nn.LayerNorm(epsilon=1e-12, dtype=dtype, name=name)
