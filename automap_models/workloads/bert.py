"""BERT (arXiv 1810.04805) as a masked language model, without its next-sentence task.

RoBERTa (1907.11692) and DistilBERT (1910.01108) are the same without types of tokens, or with one; ELECTRA (2003.10555)
has narrower embeddings, and its generator, which is what is built here, the same head.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import ACTIVATIONS, Attention, FeedForward, dropped, norm
from automap_models.workloads.sizes import BertConfig


class Bert(nn.Module):
    """Embeddings, encoder, and a head that predicts every token with the word embedding."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, ids: jax.Array, types: jax.Array) -> jax.Array:
        """[batch, n] twice → logits [batch, n, vocabulary]."""
        c = self.config
        width = c.embedding_width or c.width
        embed = partial(nn.Embed, features=width, dtype=self.dtype)
        embedding = embed(c.vocabulary, name="embedding")
        x = embedding(ids)
        if c.types:
            x = x + embed(c.types, name="type_embedding")(types)
        x = x + embed(c.positions, name="position_embedding")(jnp.arange(ids.shape[1]))
        x = norm("embedding_layer_norm", False, c.epsilon, self.dtype)(x)
        x = dropped("embedding_dropout", c.embedding_dropout, x)
        if width != c.width:
            x = nn.Dense(c.width, dtype=self.dtype, name="embedding_projection")(x)
        for i in range(c.layers):
            x = Block(c, self.dtype, name=f"block_{i}")(x)
        x = ACTIVATIONS[c.activation](nn.Dense(width, dtype=self.dtype, name="masked_lm")(x))
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
