"""The families of Hugging Face's config.json: the sizes of each, in its own words, as one of our architectures.

Here is what all have in common, and the families without rotary positions; config_rotary.py has the others.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta
from msgspec.structs import replace

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, wrong
from automap_models.workloads.catalogue import FACTORY, Dtype
from automap_models.workloads.sizes import Activation, Architecture, BertConfig, DecoderConfig, T5Config

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
"""Of one dimension of a parameter."""
Heads = Annotated[int, Meta(ge=1, le=1 << 14)]
Layers = Annotated[int, Meta(ge=1, le=1000)]
Few = Annotated[int, Meta(ge=1, le=64)]
"""Experts of a token: each is chosen by operations of its own."""
Epsilon = Annotated[float, Meta(gt=0, lt=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's word for an activation → ours."""


class Family(Foreign):
    """What all families have in common; `positions` and `architecture` are of each family's own."""

    torch_dtype: str | None = None
    dtype: str | None = None
    architectures: tuple[str, ...] | None = None
    num_labels: Size | None = None
    id2label: dict[str, Any] | None = None

    classifies: ClassVar[bool] = False
    """Whether models of the family that classify sequences are known: `classes` says into how many."""

    @property
    def classes(self) -> int | None:
        """Columns of the matrix that is in place of the vocabulary's; None where the model has the vocabulary's."""
        if not any(name.endswith("ForSequenceClassification") for name in self.architectures or ()):
            return None
        return self.num_labels or len(self.id2label or {}) or 2

    def compute_dtype(self) -> Dtype:
        """What the model is published in; float32 where the file does not say, or says what nothing computes in."""
        match self.torch_dtype or self.dtype:
            case "bfloat16" | "float16" as dtype:
                return dtype
        return "float32"

    def without_dropout(self) -> Self:
        """The same without dropout."""
        return self

    def positions(self) -> tuple[int | None, bool]:
        """For how many tokens the model was made, None for any number; whether it has a learned position for each."""
        raise NotImplementedError

    def architecture(self, where: str) -> Architecture:
        """The model; `where` is the file's name for messages.

        Raises:
            BadInput: sizes do not fit each other.
        """
        raise NotImplementedError


def unsupported(where: str, path: str, value: object, expected: str) -> BadInput:
    """What to say of a value that a model may well have and no family here knows."""
    return wrong(path, value, expected, where, f"give a model that has that, or {FACTORY}")


def known_activation(where: str, key: str, name: str) -> Activation:
    """Our word for an activation.

    Raises:
        BadInput: it is none of those.
    """
    if name not in _ACTIVATIONS:
        raise unsupported(where, f"$.{key}", name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def one_of(where: str, **sizes: int | None) -> int:
    """The first of sizes that go by several names which the file has.

    Raises:
        BadInput: it has none.
    """
    known = next((size for size in sizes.values() if size is not None), None)
    if known is None:
        raise BadInput(f"$.{' or $.'.join(sizes)} is missing", where=where, do="add it")
    return known


def require_divides(where: str, key: str, count: int, whole_key: str, whole: int) -> None:
    """Refuse a number that does not divide another.

    Raises:
        BadInput: it does not.
    """
    if whole % count:
        raise BadInput(
            f"$.{key} is {count}, which does not divide $.{whole_key}, {whole}", where=where, do="check both numbers"
        )


def require_enough(where: str, per_token: int, key: str, experts: int) -> None:
    """Refuse more experts for a token than there are.

    Raises:
        BadInput: there are fewer.
    """
    if per_token > experts:
        do = "check both numbers"
        raise BadInput(f"$.num_experts_per_tok is {per_token}, more than $.{key}, {experts}", where=where, do=do)


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


PLAIN: dict[str, type[Family]] = {"bert": _Bert, "bloom": _Bloom, "gpt2": _Gpt2, "t5": _T5}
"""Their values of model_type."""
