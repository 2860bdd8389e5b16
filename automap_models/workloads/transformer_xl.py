"""Transformer-XL (Dai et al., arXiv 1901.02860): segments that attend to the one before them, by relative positions.

    segment s   layer l reads   [ layer l-1 of segment s-1, without gradient | layer l-1 of segment s ]

A step runs over all segments of its sequences one after the other. Sizes with 2, 4 and 8 layers are those of GDP (arXiv
1910.01578), of the widths of the model for enwik8 with 12 layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from automap_models.workloads.blocks import token_shapes


@dataclass(frozen=True)
class TransformerXlConfig:
    """Sizes of a Transformer-XL.

    Attributes:
        layers: of attention and a feed-forward each.
        width: of the hidden states.
        heads, head_width: of attention.
        inner: width of the feed-forward.
        vocabulary: characters; the embedding is the output's matrix, too.
        segment: tokens that attend to themselves and to as many before them.
    """

    layers: int
    width: int = 512
    heads: int = 8
    head_width: int = 64
    inner: int = 2048
    vocabulary: int = 204
    segment: int = 128

    def module(self, dtype: jnp.dtype) -> TransformerXl:
        """See sizes.JaxArchitecture."""
        return TransformerXl(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See sizes.JaxArchitecture."""
        return token_shapes(labels, "tokens", "labels")


TRANSFORMER_XL_2, TRANSFORMER_XL_4, TRANSFORMER_XL_8 = (TransformerXlConfig(layers) for layers in (2, 4, 8))


class TransformerXl(nn.Module):
    """An embedding, layers over segments, the embedding's transpose as the output."""

    config: TransformerXlConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[batch, sequence] → logits [batch, sequence, vocabulary]."""
        c, length = self.config, tokens.shape[1]
        embed = nn.Embed(c.vocabulary, c.width, dtype=self.dtype, name="embedding")
        bias = self.param("output_bias", nn.initializers.zeros, (c.vocabulary,)).astype(self.dtype)
        shape = (c.heads, c.head_width)
        content = self.param("content_bias", nn.initializers.normal(0.02), shape).astype(self.dtype)
        position = self.param("position_bias", nn.initializers.normal(0.02), shape).astype(self.dtype)
        layers = [XlLayer(c, self.dtype, name=f"layer_{i}") for i in range(c.layers)]
        before: list[jax.Array | None] = [None] * c.layers
        logits = []
        for start in range(0, length, c.segment):
            x = embed(tokens[:, start : start + c.segment])
            for i, layer in enumerate(layers):
                memory, before[i] = before[i], jax.lax.stop_gradient(x)
                x = layer(x, memory, content, position)
            logits.append(embed.attend(x) + bias)
        return jnp.concatenate(logits, axis=1)


class XlLayer(nn.Module):
    """Relative attention and a feed-forward, a norm behind either's sum."""

    config: TransformerXlConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, before: jax.Array | None, content: jax.Array, position: jax.Array) -> jax.Array:
        """[batch, segment, width], the same of the segment before, biases [heads, head width] → like x."""
        c = self.config
        mixed = RelativeAttention(c, self.dtype, name="attention")(x, before, content, position)
        x = nn.LayerNorm(dtype=self.dtype, name="attention_norm")(x + mixed)
        inner = nn.relu(nn.Dense(c.inner, dtype=self.dtype, name="wi")(x))
        narrow = nn.Dense(c.width, dtype=self.dtype, name="wo")(inner)
        out: jax.Array = nn.LayerNorm(dtype=self.dtype, name="norm")(x + narrow)
        return out


class RelativeAttention(nn.Module):
    """Attention with scores (q + u)·k + (q + v)·r, r a projection of the distance's sinusoids (section 3.3)."""

    config: TransformerXlConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, before: jax.Array | None, content: jax.Array, position: jax.Array) -> jax.Array:
        """See XlLayer."""
        c, queries = self.config, x.shape[1]
        memory = x if before is None else jnp.concatenate([before, x], axis=1)
        keys = memory.shape[1]

        def projected(name: str, y: jax.Array) -> jax.Array:
            columns = nn.Dense(c.heads * c.head_width, use_bias=False, dtype=self.dtype, name=name)(y)
            return columns.reshape(*y.shape[:-1], c.heads, c.head_width)

        q, k, v = projected("q", x), projected("k", memory), projected("v", memory)
        r = projected("r", jnp.asarray(_sinusoids(keys, c.width), self.dtype))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q + content, k)
        scores = scores + _shifted(jnp.einsum("bqhd,khd->bhqk", q + position, r))
        visible = jnp.arange(keys)[None, :] <= jnp.arange(queries)[:, None] + (keys - queries)
        scores = jnp.where(visible, scores * c.head_width**-0.5, jnp.finfo(self.dtype).min)  # type: ignore[no-untyped-call]
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        out = nn.Dense(c.width, use_bias=False, dtype=self.dtype, name="o")
        return out(mixed.reshape(*mixed.shape[:2], -1))


def _sinusoids(keys: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """[keys, width] of the distances keys - 1 … 0 (arXiv 1706.03762, section 3.5)."""
    angle = np.arange(keys - 1, -1, -1)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def _shifted(scores: jax.Array) -> jax.Array:
    """[b, h, q, k] by the row of r → by the key: query i's distance to key j is row j + (q - 1 - i) (appendix B)."""
    b, h, q, k = scores.shape
    padded = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(b, h, k + 1, q)
    return padded[:, :, 1:].reshape(b, h, q, k)
