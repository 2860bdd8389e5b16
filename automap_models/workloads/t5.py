"""T5 (arXiv 1910.10683) and the Switch Transformer (arXiv 2101.03961): a T5 with experts.

No biases, RMS layer norm before each sub-layer, one embedding for inputs and targets, one relative position bias for
all layers of the encoder and one for those of the decoder. The first version has ReLU and takes logits with the word
embedding; version 1.1 has gated feed-forward layers and an output matrix of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.strategy import TransformerShape
from automap_models.hlo.block_labels import BlockStack
from automap_models.workloads.blocks import Activation, Attention, FeedForward, causal_bias, norm, token_shapes

from .mixture import SwitchFeedForward


@dataclass(frozen=True)
class T5Config:
    """Sizes of a T5.

    Attributes:
        layers: of the encoder.
        decoder_layers: of the decoder; None: as many.
        buckets, max_distance: of the relative position bias.
        gated: whether a third matrix gates the feed-forward layers (arXiv 2002.05202).
        tied: whether logits are taken with the word embedding.
        experts: in every second layer's feed-forward, from the second layer on; 0: none.
    """

    width: int
    heads: int
    head_width: int
    feed_forward: int
    layers: int
    vocabulary: int = 32128
    buckets: int = 32
    max_distance: int = 128
    experts: int = 0
    decoder_layers: int | None = None
    activation: Activation = "relu"
    gated: bool = False
    tied: bool = True
    epsilon: float = 1e-6

    def module(self, dtype: jnp.dtype) -> T5:
        """See training.Architecture."""
        return T5(self, dtype)

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """See training.RepeatingArchitecture; with experts, two blocks repeat."""
        period = 2 if self.experts else 1
        decoder_layers = self.layers if self.decoder_layers is None else self.decoder_layers
        return (
            BlockStack("encoder/block_", self.layers, period=period, causal=False),
            BlockStack("decoder/block_", decoder_layers, period=period),
        )

    def with_blocks(self, blocks: Mapping[str, int]) -> T5Config:
        """See training.RepeatingArchitecture."""
        return replace(self, layers=blocks["encoder/block_"], decoder_layers=blocks["decoder/block_"])

    def shape(self, name: str, sequence: int) -> TransformerShape:
        """See training.TransformerArchitecture; the layers are those of both stacks."""
        return TransformerShape(
            name=name,
            layers=sum(stack.layers for stack in self.stacks),
            hidden=self.width,
            heads=self.heads,
            kv_heads=self.heads,
            ffn=self.feed_forward,
            sequence=sequence,
            vocabulary=self.vocabulary,
            experts=self.experts or None,
        )

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture; `decoder_ids` are the labels shifted right."""
        return token_shapes(labels, "ids", "decoder_ids", "labels")


T5_BASE = T5Config(width=768, heads=12, head_width=64, feed_forward=3072, layers=12)
T5_3B = T5Config(width=1024, heads=32, head_width=128, feed_forward=16384, layers=24)
T5_11B = T5Config(width=1024, heads=128, head_width=128, feed_forward=65536, layers=24)
SWITCH_BASE_8 = T5Config(width=768, heads=12, head_width=64, feed_forward=3072, layers=12, experts=8)


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
