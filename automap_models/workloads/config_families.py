"""The families of Hugging Face's config.json: the sizes of each, in its own words, as one of our architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from msgspec import Meta
from msgspec.structs import replace

from automap_models.formats.schema import wrong
from automap_models.workloads.config_fields import (
    Dropout,
    Epsilon,
    Family,
    Heads,
    Layers,
    Size,
    known_activation,
    one_of,
    require_divides,
    unsupported,
)
from automap_models.workloads.config_rotary import ROTARY
from automap_models.workloads.config_variants import VARIANTS

if TYPE_CHECKING:
    from automap_models.workloads.training import Architecture

HAVE_DROPOUT = ("bert", "bloom", "gpt2")
"""Families whose models can have dropout here."""


class _Bert(Family, kw_only=True):
    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    intermediate_size: Size
    max_position_embeddings: Size
    type_vocab_size: Size = 2
    hidden_act: str = "gelu"
    layer_norm_eps: Epsilon = 1e-12
    hidden_dropout_prob: Dropout = 0.1
    attention_probs_dropout_prob: Dropout = 0.1

    def positions(self) -> tuple[int | None, bool]:
        return self.max_position_embeddings, True

    def without_dropout(self) -> Self:
        return replace(self, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.bert import BertConfig

        require_divides(where, "num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        return BertConfig(
            width=self.hidden_size,
            heads=self.num_attention_heads,
            layers=self.num_hidden_layers,
            vocabulary=self.vocab_size,
            positions=self.max_position_embeddings,
            types=self.type_vocab_size,
            feed_forward=self.intermediate_size,
            activation=known_activation(where, "hidden_act", self.hidden_act),
            epsilon=self.layer_norm_eps,
            attention_dropout=self.attention_probs_dropout_prob,
            residual_dropout=self.hidden_dropout_prob,
            embedding_dropout=self.hidden_dropout_prob,
        )


class _T5(Family, kw_only=True):
    vocab_size: Size
    d_model: Size
    d_kv: Size
    d_ff: Size
    num_layers: Layers
    num_heads: Heads
    num_decoder_layers: Layers | None = None
    relative_attention_num_buckets: Annotated[int, Meta(ge=4, le=1 << 16)] = 32
    relative_attention_max_distance: Size = 128
    feed_forward_proj: str = "relu"
    layer_norm_epsilon: Epsilon = 1e-6
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool = True
    """False in files of transformers 5 whose models have an output matrix of their own; tie_word_embeddings is true."""

    def positions(self) -> tuple[int | None, bool]:
        return None, False

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.t5 import T5Config

        gated, _, activation = self.feed_forward_proj.rpartition("-")
        if gated not in ("", "gated"):
            raise unsupported(where, "$.feed_forward_proj", self.feed_forward_proj, "an activation, or gated-… one")
        least = self.relative_attention_num_buckets // 2
        if self.relative_attention_max_distance <= least:
            distance, expected = self.relative_attention_max_distance, f"more than half the buckets, {least}"
            raise wrong("$.relative_attention_max_distance", distance, expected, where, "write the file again")
        if gated and activation == "gelu":
            activation = "gelu_new"  # as transformers reads it
        return T5Config(
            width=self.d_model,
            heads=self.num_heads,
            head_width=self.d_kv,
            feed_forward=self.d_ff,
            layers=self.num_layers,
            vocabulary=self.vocab_size,
            buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
            decoder_layers=self.num_decoder_layers,
            activation=known_activation(where, "feed_forward_proj", activation),
            gated=bool(gated),
            tied=self.tie_word_embeddings and self.scale_decoder_outputs,
            epsilon=self.layer_norm_epsilon,
        )


class _Gpt2(Family, kw_only=True):
    vocab_size: Size
    n_positions: Size
    n_embd: Size
    n_layer: Layers
    n_head: Heads
    n_inner: Size | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    attn_pdrop: Dropout = 0.1
    resid_pdrop: Dropout = 0.1
    embd_pdrop: Dropout = 0.1

    classifies: ClassVar[bool] = True

    def positions(self) -> tuple[int | None, bool]:
        return self.n_positions, True

    def without_dropout(self) -> Self:
        return replace(self, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        require_divides(where, "n_head", self.n_head, "n_embd", self.n_embd)
        return DecoderConfig(
            width=self.n_embd,
            heads=self.n_head,
            layers=self.n_layer,
            vocabulary=self.vocab_size,
            positions=self.n_positions,
            feed_forward=self.n_inner,
            activation=known_activation(where, "activation_function", self.activation_function),
            epsilon=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
            classes=self.classes,
            attention_dropout=self.attn_pdrop,
            residual_dropout=self.resid_pdrop,
            embedding_dropout=self.embd_pdrop,
        )


class _Bloom(Family, kw_only=True):
    """Its files name three sizes in one of two ways."""

    vocab_size: Size
    hidden_size: Size | None = None
    n_embed: Size | None = None
    n_layer: Layers | None = None
    num_hidden_layers: Layers | None = None
    n_head: Heads | None = None
    num_attention_heads: Heads | None = None
    layer_norm_epsilon: Epsilon = 1e-5
    apply_residual_connection_post_layernorm: bool = False
    tie_word_embeddings: bool = True
    seq_length: Size = 2048
    hidden_dropout: Dropout = 0.0
    attention_dropout: Dropout = 0.0

    classifies: ClassVar[bool] = True

    def positions(self) -> tuple[int | None, bool]:
        return self.seq_length, False

    def without_dropout(self) -> Self:
        return replace(self, hidden_dropout=0.0, attention_dropout=0.0)

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        if self.apply_residual_connection_post_layernorm:
            key = "$.apply_residual_connection_post_layernorm"
            raise unsupported(where, key, True, "false, the only one that is known")
        width = one_of(where, n_embed=self.n_embed, hidden_size=self.hidden_size)
        heads = one_of(where, n_head=self.n_head, num_attention_heads=self.num_attention_heads)
        require_divides(where, "n_head", heads, "hidden_size", width)
        return DecoderConfig(
            width=width,
            heads=heads,
            layers=one_of(where, n_layer=self.n_layer, num_hidden_layers=self.num_hidden_layers),
            vocabulary=self.vocab_size,
            positions=None,
            linear_bias=True,
            embedding_norm=True,
            activation="gelu_tanh",
            epsilon=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
            classes=self.classes,
            attention_dropout=self.attention_dropout,
            residual_dropout=self.hidden_dropout,
        )


_OTHERS: dict[str, type[Family]] = {"bert": _Bert, "bloom": _Bloom, "gpt2": _Gpt2, "t5": _T5}
FAMILIES = dict(sorted((_OTHERS | ROTARY | VARIANTS).items()))
"""The known values of model_type."""
