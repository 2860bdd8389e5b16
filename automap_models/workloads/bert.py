"""BERT (arXiv 1810.04805) as a masked language model, without its next-sentence task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.strategy import TransformerShape
from automap_models.hlo.block_labels import BlockStack
from automap_models.workloads.blocks import (
    ACTIVATIONS,
    Activation,
    Attention,
    FeedForward,
    dropped,
    norm,
    token_shapes,
)


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT.

    Attributes:
        feed_forward: width of the feed-forward layers; None: four times as wide as the hidden states.
        attention_dropout: share of the weights of attention that are left out.
        residual_dropout: share of what attention and feed-forward layers give that is left out.
        embedding_dropout: share of the embeddings that is left out.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    feed_forward: int | None = None
    activation: Activation = "gelu"
    epsilon: float = 1e-12
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0

    def module(self, dtype: jnp.dtype) -> Bert:
        """See training.Architecture."""
        return Bert(self, dtype)

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """See training.RepeatingArchitecture."""
        return (BlockStack("block_", self.layers, causal=False),)

    def with_blocks(self, blocks: Mapping[str, int]) -> BertConfig:
        """See training.RepeatingArchitecture."""
        return replace(self, layers=blocks["block_"])

    def shape(self, name: str, sequence: int) -> TransformerShape:
        """See training.TransformerArchitecture."""
        return TransformerShape(
            name=name,
            layers=self.layers,
            hidden=self.width,
            heads=self.heads,
            kv_heads=self.heads,
            ffn=self.feed_forward or 4 * self.width,
            sequence=sequence,
            vocabulary=self.vocabulary,
        )

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture; labels are negative where no token was masked."""
        shares = self.attention_dropout, self.residual_dropout, self.embedding_dropout
        return token_shapes(labels, "ids", "types", "labels", random=any(shares))


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
        x = norm("embedding_layer_norm", False, c.epsilon, self.dtype)(x)
        x = dropped("embedding_dropout", c.embedding_dropout, x)
        for i in range(c.layers):
            x = Block(c, self.dtype, name=f"block_{i}")(x)
        x = ACTIVATIONS[c.activation](nn.Dense(c.width, dtype=self.dtype, name="masked_lm")(x))
        x = norm("masked_lm_layer_norm", False, c.epsilon, self.dtype)(x)
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
        heads = c.heads, c.width // c.heads
        attention = Attention(*heads, True, self.dtype, dropout=c.attention_dropout, name="attention")
        change = dropped("attention_dropout", c.residual_dropout, attention(x))
        x = norm("attention_layer_norm", False, c.epsilon, self.dtype)(x + change)
        feed_forward = FeedForward(c.feed_forward or 4 * c.width, True, c.activation, self.dtype, name="feed_forward")
        change = dropped("feed_forward_dropout", c.residual_dropout, feed_forward(x))
        normed: jax.Array = norm("feed_forward_layer_norm", False, c.epsilon, self.dtype)(x + change)
        return normed
