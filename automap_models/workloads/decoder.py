"""Decoders: the GPT-2 family and what came after it, as one model with options.

- GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), and GPT-3: one scaled up;
- GPT-NeoX (arXiv 2204.06745): rotary positions, attention and feed-forward side by side;
- BLOOM (arXiv 2211.05100): a norm after the embeddings, attention with linear biases in place of positions;
- Llama (arXiv 2302.13971, 2407.21783), Mistral, Qwen 2 and 3: root-mean-square norms, gated feed-forward layers, heads
  of keys and values that several heads of queries share;
- Phi-3 (arXiv 2404.14219), StableLM (arXiv 2402.17834), StarCoder2 (arXiv 2402.19173): variants of Llama's block;
- Gemma 2 and 3 (arXiv 2408.00118, 2503.19786), OLMo 2 (arXiv 2501.00656): norms after attention and feed-forward, too;
- Mixtral (arXiv 2401.04088) and DeepSeek (arXiv 2405.04434, 2412.19437): mixtures of experts, and latent attention.

Where published weights keep several matrices in one (q, k and v), here they are apart, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.sublayer_sizes import Mixture
from automap_models.workloads.blocks import (
    Attention,
    FeedForward,
    LatentAttention,
    capped,
    causal_bias,
    dropped,
    linear_bias,
    norm,
)
from automap_models.workloads.mixture import RoutedFeedForward
from automap_models.workloads.sizes import DecoderConfig, Norms


class Decoder(nn.Module):
    """Embeddings, blocks, logits."""

    config: DecoderConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """[batch, n] → logits [batch, n, vocabulary], or of as many classes."""
        c = self.config
        embedding = nn.Embed(c.vocabulary, c.width, self.dtype, name="embedding")
        x = embedding(ids)
        if c.embedding_scale != 1.0:
            x = x * c.embedding_scale
        if c.positions is not None:
            position = nn.Embed(c.positions, c.width, self.dtype, name="position_embedding")
            x = x + position(jnp.arange(ids.shape[1]))
        if c.embedding_norm:
            x = norm("embedding_layer_norm", c.root_mean_square, c.epsilon, self.dtype)(x)
        x = dropped("embedding_dropout", c.embedding_dropout, x)
        for i in range(c.layers):
            x = Block(c, self.dtype, c.mixture if i >= c.dense_layers else None, name=f"block_{i}")(x)
        x = norm("final_layer_norm", c.root_mean_square, c.epsilon, self.dtype)(x)
        head = embedding.attend if c.ties else nn.Dense(c.classes or c.vocabulary, False, self.dtype, name="head")
        return capped(head(x), c.logit_cap)


class Block(nn.Module):
    """Causal attention and feed-forward, with norms before each, after each, or both."""

    config: DecoderConfig
    dtype: jnp.dtype
    mixture: Mixture | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, width] → the same shape."""
        c = self.config
        mask = causal_bias(x.shape[1], self.dtype)  # each block makes its own, so that none crosses a pipeline cut
        if c.linear_bias:
            mask = mask + linear_bias(c.heads, x.shape[1], self.dtype)
        change = self._attention()(self._norm("attention_layer_norm", "before")(x), bias=mask)
        change = self._norm("attention_output_norm", "after")(change)
        attended = x + dropped("attention_dropout", c.residual_dropout, change)
        read = x if c.parallel else attended
        change = self._feed_forward()(self._norm("feed_forward_layer_norm", "before")(read))
        change = self._norm("feed_forward_output_norm", "after")(change)
        return attended + dropped("feed_forward_dropout", c.residual_dropout, change)

    def _norm(self, name: str, place: Norms) -> Callable[[jax.Array], jax.Array]:
        c = self.config
        if c.norms not in (place, "around"):
            return lambda x: x
        return norm(name, c.root_mean_square, c.epsilon, self.dtype)

    def _attention(self) -> nn.Module:
        c = self.config
        if c.latent is not None:
            return LatentAttention(c.heads, c.latent, c.attention_bias, c.epsilon, self.dtype, name="attention")
        return Attention(
            c.heads,
            c.head_width or c.width // c.heads,
            c.attention_bias,
            self.dtype,
            scale=c.score_scale,
            kv_heads=c.kv_heads,
            output_bias=c.output_bias,
            rotary=c.rotary,
            query_norm=c.query_norm,
            epsilon=c.epsilon,
            score_cap=c.score_cap,
            dropout=c.attention_dropout,
            name="attention",
        )

    def _feed_forward(self) -> nn.Module:
        c = self.config
        if self.mixture is not None:
            return RoutedFeedForward(self.mixture, c.activation, self.dtype, name="feed_forward")
        width = c.feed_forward or 4 * c.width
        return FeedForward(width, c.feed_forward_bias, c.activation, self.dtype, c.gated, name="feed_forward")
