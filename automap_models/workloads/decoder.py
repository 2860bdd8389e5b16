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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.strategy import TransformerShape
from automap_models.hlo.block_labels import BlockStack
from automap_models.workloads.blocks import (
    Activation,
    Attention,
    FeedForward,
    Latent,
    LatentAttention,
    QueryNorm,
    Rotary,
    capped,
    causal_bias,
    dropped,
    linear_bias,
    norm,
    token_shapes,
)
from automap_models.workloads.mixture import Mixture, RoutedFeedForward

Norms = Literal["before", "after", "around"]


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a decoder; the defaults are GPT-2's.

    Attributes:
        feed_forward: width of the feed-forward layers; None: four times as wide as the hidden states.
        positions: that the model has learned embeddings for; None: it has none.
        head_width: None: the heads together are as wide as the hidden states.
        kv_heads: heads of keys and values; None: as many as of queries.
        attention_bias, output_bias: whether q, k and v, and o, have biases.
        feed_forward_bias: whether the feed-forward layers have biases.
        gated: whether a third matrix gates the feed-forward layers.
        norms: where a block's norms are: before attention and feed-forward layers, after them, or both.
        embedding_scale: what the embeddings are multiplied with.
        root_mean_square: whether norms leave out the mean and the bias.
        query_norm: how queries and keys are normed; None: not at all.
        score_scale: what attention's scores are multiplied with; None: 1 over the root of head_width.
        score_cap, logit_cap: beyond which no score and no logit gets; None: there is no such limit.
        rotary: rotary positions; None: none.
        linear_bias: whether scores grow with the position of the key, by a slope of each head (arXiv 2108.12409).
        embedding_norm: whether a norm follows the embeddings.
        parallel: whether attention and feed-forward read the same hidden states.
        tied: whether logits are taken with the word embedding.
        classes: columns of the output matrix of a model that classifies, which is not tied; None: the vocabulary's.
        latent: attention through a narrow latent; None: plain attention.
        mixture: of experts in place of feed-forward layers; None: dense.
        dense_layers: with a mixture, the number of blocks before those that have it.
        attention_dropout: share of the weights of plain attention that are left out.
        residual_dropout: share of what attention and feed-forward layers give that is left out.
        embedding_dropout: share of the embeddings that is left out.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int = 50257
    positions: int | None = 1024
    feed_forward: int | None = None
    head_width: int | None = None
    kv_heads: int | None = None
    attention_bias: bool = True
    output_bias: bool = True
    feed_forward_bias: bool = True
    activation: Activation = "gelu_tanh"
    gated: bool = False
    root_mean_square: bool = False
    epsilon: float = 1e-5
    query_norm: QueryNorm | None = None
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    norms: Norms = "before"
    embedding_scale: float = 1.0
    rotary: Rotary | None = None
    linear_bias: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    tied: bool = True
    classes: int | None = None
    latent: Latent | None = None
    mixture: Mixture | None = None
    dense_layers: int = 0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """See training.RepeatingArchitecture."""
        return (BlockStack("block_", self.layers, self.dense_layers % self.layers if self.mixture else 0),)

    def with_blocks(self, blocks: Mapping[str, int]) -> DecoderConfig:
        """See training.RepeatingArchitecture."""
        return replace(self, layers=blocks["block_"])

    def shape(self, name: str, sequence: int) -> TransformerShape:
        """See training.TransformerArchitecture; with a mixture, `ffn` is the width of an expert."""
        return TransformerShape(
            name=name,
            layers=self.layers,
            hidden=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            ffn=self.mixture.width if self.mixture else self.feed_forward or 4 * self.width,
            sequence=sequence,
            vocabulary=self.vocabulary,
            outputs=self.classes,
            experts=self.mixture.experts if self.mixture else None,
        )

    def module(self, dtype: jnp.dtype) -> Decoder:
        """See training.Architecture."""
        return Decoder(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture; labels are the ids shifted left."""
        shares = self.attention_dropout, self.residual_dropout, self.embedding_dropout
        return token_shapes(labels, "ids", "labels", random=any(shares))


GPT2_MEDIUM = DecoderConfig(width=1024, heads=16, layers=24)
GPT2_XL = DecoderConfig(width=1600, heads=25, layers=48)
GPT3_7B = DecoderConfig(width=4096, heads=32, layers=32, positions=2048)
GPT3_13B = DecoderConfig(width=5120, heads=40, layers=40, positions=2048)
"""GPT-3 6.7B and 13B (arXiv 2005.14165, Table 2.1), all attention dense; 13B is as wide as its 40 heads of 128 are."""


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
        tied = c.tied and c.classes is None
        head = embedding.attend if tied else nn.Dense(c.classes or c.vocabulary, False, self.dtype, name="head")
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
