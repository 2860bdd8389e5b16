"""T5 (arXiv 1910.10683) and the Switch Transformer (arXiv 2101.03961): a T5 with experts.

No biases, RMS layer norm before each sub-layer, one embedding for inputs and targets, one relative position bias for
all layers of the encoder and one for those of the decoder. The first version has ReLU and takes logits with the word
embedding; version 1.1 has gated feed-forward layers and an output matrix of its own.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import Attention, FeedForward, causal_bias, norm
from automap_models.workloads.mixture import SwitchFeedForward
from automap_models.workloads.sizes import T5Config


class T5(nn.Module):
    """Encoder, decoder, logits."""

    config: T5Config
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, ids: jax.Array, decoder_ids: jax.Array) -> jax.Array:
        """[batch, n], [batch, m] → logits [batch, m, vocabulary]."""
        c = self.config
        embedding = nn.Embed(c.vocabulary, c.width, self.dtype, name="embedding")
        encoder, decoder = c.stacks
        memory = Stack(c, encoder.layers, self.dtype, name="encoder")(embedding(ids))
        x = Stack(c, decoder.layers, self.dtype, name="decoder")(embedding(decoder_ids), memory)
        if not c.tied:
            return nn.Dense(c.vocabulary, False, self.dtype, name="head")(x)
        logits: jax.Array = embedding.attend(x * c.width**-0.5)
        return logits


class Stack(nn.Module):
    """The encoder; with the encoder's output as memory, the decoder."""

    config: T5Config
    layers: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None) -> jax.Array:
        """[batch, n, width], memory [batch, m, width] → [batch, n, width]."""
        c, length, decoder = self.config, x.shape[1], memory is not None
        buckets = relative_buckets(length, c.buckets, c.max_distance, bidirectional=not decoder)
        bias = nn.Embed(c.buckets, c.heads, self.dtype, name="relative_bias")(buckets).transpose(2, 0, 1)[None]
        if decoder:
            bias = bias + causal_bias(length, self.dtype)
        for i in range(self.layers):
            sparse = c.experts > 0 and i % 2 == 1
            x = Block(c, self.dtype, sparse, name=f"block_{i}")(x, bias, memory)
        normed: jax.Array = norm("final_layer_norm", True, c.epsilon, self.dtype)(x)
        return normed


class Block(nn.Module):
    """Self-attention, attention to the memory if there is one, feed-forward, each around a residual sum."""

    config: T5Config
    dtype: jnp.dtype
    sparse: bool

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, memory: jax.Array | None) -> jax.Array:
        """[batch, n, width], bias [1, heads, n, n], memory [batch, m, width] → [batch, n, width]."""
        x = x + self._attention("attention")(self._norm("attention_layer_norm")(x), bias=bias)
        if memory is not None:
            x = x + self._attention("cross_attention")(self._norm("cross_attention_layer_norm")(x), memory)
        total: jax.Array = x + self._feed_forward()(self._norm("feed_forward_layer_norm")(x))
        return total

    def _norm(self, name: str) -> nn.Module:
        return norm(name, True, self.config.epsilon, self.dtype)

    def _attention(self, name: str) -> Attention:
        return Attention(self.config.heads, self.config.head_width, False, self.dtype, scale=1.0, name=name)

    def _feed_forward(self) -> nn.Module:
        c = self.config
        if self.sparse:
            return SwitchFeedForward(c.experts, c.feed_forward, self.dtype, name="feed_forward")
        return FeedForward(c.feed_forward, False, c.activation, self.dtype, c.gated, name="feed_forward")


def relative_buckets(length: int, buckets: int, max_distance: int, *, bidirectional: bool) -> jax.Array:
    """int32 [query, key] bucket of each distance: exact while small, then logarithmic up to max_distance.

    With both directions, keys after the query have the second half of the buckets; with one, they share bucket 0.
    """
    position = jnp.arange(length)
    distance = position[None, :] - position[:, None]
    if bidirectional:
        buckets //= 2
        first, distance = jnp.where(distance > 0, buckets, 0), jnp.abs(distance)
    else:
        first, distance = jnp.zeros_like(distance), jnp.maximum(-distance, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(max_distance / exact)
    coarse = jnp.minimum(exact + (ratio * (buckets - exact)).astype(jnp.int32), buckets - 1)
    return first + jnp.where(distance < exact, distance, coarse)
