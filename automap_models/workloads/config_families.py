"""The families of Hugging Face's config.json: the sizes of each, in its own words, as one of our architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta
from msgspec.structs import replace

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, Positive, Share, wrong

if TYPE_CHECKING:
    from automap_models.workloads.blocks import Activation, Rotary
    from automap_models.workloads.training import Architecture

HAVE_DROPOUT = ("bert", "bloom", "gpt2")
"""Families whose models can have dropout here."""
Size = Annotated[int, Meta(ge=1, le=1 << 24)]
"""Of one dimension of a parameter."""
Heads = Annotated[int, Meta(ge=1, le=1 << 14)]
Layers = Annotated[int, Meta(ge=1, le=1000)]
Few = Annotated[int, Meta(ge=1, le=64)]
"""Experts of a token: each is chosen by operations of its own."""
Epsilon = Annotated[float, Meta(gt=0, lt=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]
Dtype = Literal["float32", "bfloat16", "float16"]

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


class _Rope(Foreign):
    """Rotary positions, as files of transformers 5 have them."""

    rope_theta: Positive = 10000.0
    partial_rotary_factor: Share | None = None


class _Family(Foreign):
    """What all families have in common.

    Each has two methods: `positions` says for how many tokens the model was made and whether it has a learned position
    for each; `architecture` is the model. It takes the file's name for messages and raises BadInput where sizes do not
    fit each other.
    """

    torch_dtype: str | None = None
    dtype: str | None = None

    def compute_dtype(self) -> Dtype:
        """What the model is published in; float32 where the file does not say, or says what nothing computes in."""
        match self.torch_dtype or self.dtype:
            case "bfloat16" | "float16" as dtype:
                return dtype
        return "float32"

    def without_dropout(self) -> Self:
        """The same without dropout."""
        return self


class _Bert(_Family, kw_only=True):
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

        _require_divides(where, "num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        return BertConfig(
            width=self.hidden_size,
            heads=self.num_attention_heads,
            layers=self.num_hidden_layers,
            vocabulary=self.vocab_size,
            positions=self.max_position_embeddings,
            types=self.type_vocab_size,
            feed_forward=self.intermediate_size,
            activation=_activation(where, "hidden_act", self.hidden_act),
            epsilon=self.layer_norm_eps,
            attention_dropout=self.attention_probs_dropout_prob,
            residual_dropout=self.hidden_dropout_prob,
            embedding_dropout=self.hidden_dropout_prob,
        )


class _T5(_Family, kw_only=True):
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
            raise wrong(where, "$.feed_forward_proj", self.feed_forward_proj, "an activation, or gated-… one")
        least = self.relative_attention_num_buckets // 2
        if self.relative_attention_max_distance <= least:
            distance = self.relative_attention_max_distance
            raise wrong(where, "$.relative_attention_max_distance", distance, f"more than half the buckets, {least}")
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
            activation=_activation(where, "feed_forward_proj", activation),
            gated=bool(gated),
            tied=self.tie_word_embeddings and self.scale_decoder_outputs,
            epsilon=self.layer_norm_epsilon,
        )


class _Gpt2(_Family, kw_only=True):
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

    def positions(self) -> tuple[int | None, bool]:
        return self.n_positions, True

    def without_dropout(self) -> Self:
        return replace(self, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        _require_divides(where, "n_head", self.n_head, "n_embd", self.n_embd)
        return DecoderConfig(
            width=self.n_embd,
            heads=self.n_head,
            layers=self.n_layer,
            vocabulary=self.vocab_size,
            positions=self.n_positions,
            feed_forward=self.n_inner,
            activation=_activation(where, "activation_function", self.activation_function),
            epsilon=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
            attention_dropout=self.attn_pdrop,
            residual_dropout=self.resid_pdrop,
            embedding_dropout=self.embd_pdrop,
        )


class _Bloom(_Family, kw_only=True):
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

    def positions(self) -> tuple[int | None, bool]:
        return self.seq_length, False

    def without_dropout(self) -> Self:
        return replace(self, hidden_dropout=0.0, attention_dropout=0.0)

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        if self.apply_residual_connection_post_layernorm:
            key = "$.apply_residual_connection_post_layernorm"
            raise wrong(where, key, True, "false", "give a model whose residuals are added before the norms")
        width = _one_of(where, n_embed=self.n_embed, hidden_size=self.hidden_size)
        heads = _one_of(where, n_head=self.n_head, num_attention_heads=self.num_attention_heads)
        _require_divides(where, "n_head", heads, "hidden_size", width)
        return DecoderConfig(
            width=width,
            heads=heads,
            layers=_one_of(where, n_layer=self.n_layer, num_hidden_layers=self.num_hidden_layers),
            vocabulary=self.vocab_size,
            positions=None,
            linear_bias=True,
            embedding_norm=True,
            activation="gelu_tanh",
            epsilon=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
            attention_dropout=self.attention_dropout,
            residual_dropout=self.hidden_dropout,
        )


class _Rotating(_Family, kw_only=True):
    """A decoder with rotary positions."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    intermediate_size: Size
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = False
    rope_theta: Positive = 10000.0
    rope_parameters: _Rope | None = None

    def positions(self) -> tuple[int | None, bool]:
        return self.max_position_embeddings, False

    def rotary(self, where: str, head_width: int, share: float = 1.0, base: float | None = None) -> Rotary:
        """Rotary positions of a share of a head's numbers, by the file's base unless another is given.

        Raises:
            BadInput: these numbers are no pairs.
        """
        from automap_models.workloads.blocks import Rotary

        rope = self.rope_parameters
        width = int(head_width * (share if rope is None else rope.partial_rotary_factor or share))
        if width < 2 or width % 2:
            what = f"{width} of a head's {head_width} numbers have rotary positions, which come in pairs"
            raise BadInput(what, where=where, do="give sizes that make their number even")
        return Rotary(width, base or (self.rope_theta if rope is None else rope.rope_theta))


class _GptNeoX(_Rotating):
    hidden_act: str = "gelu"
    layer_norm_eps: Epsilon = 1e-5
    use_parallel_residual: bool = True
    attention_bias: bool = True
    rotary_pct: Share = 0.25
    rotary_emb_base: Positive = 10000.0

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        heads, width = self.num_attention_heads, self.hidden_size
        _require_divides(where, "num_attention_heads", heads, "hidden_size", width)
        base = self.rotary_emb_base if self.rope_parameters is None else None
        return DecoderConfig(
            width=width,
            heads=heads,
            layers=self.num_hidden_layers,
            vocabulary=self.vocab_size,
            positions=None,
            feed_forward=self.intermediate_size,
            attention_bias=self.attention_bias,
            output_bias=self.attention_bias,
            activation=_activation(where, "hidden_act", self.hidden_act),
            epsilon=self.layer_norm_eps,
            rotary=self.rotary(where, width // heads, self.rotary_pct, base),
            parallel=self.use_parallel_residual,
            tied=self.tie_word_embeddings,
        )


class _Llama(_Rotating):
    """Llama; the families after it have other defaults and options."""

    hidden_act: str = "silu"
    rms_norm_eps: Epsilon = 1e-6
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    query_norm: ClassVar[bool] = False
    """Whether queries and keys are normed."""

    def architecture(self, where: str) -> Architecture:
        from automap_models.workloads.decoder import DecoderConfig

        return DecoderConfig(
            width=self.hidden_size,
            heads=self.num_attention_heads,
            layers=self.num_hidden_layers,
            vocabulary=self.vocab_size,
            positions=None,
            feed_forward=self.intermediate_size,
            feed_forward_bias=self.mlp_bias,
            activation=_activation(where, "hidden_act", self.hidden_act),
            gated=True,
            root_mean_square=True,
            epsilon=self.rms_norm_eps,
            tied=self.tie_word_embeddings,
            **self.attention(where),
            **self.experts(where),
        )

    def attention(self, where: str) -> dict[str, Any]:
        """What the attention is, as arguments of DecoderConfig.

        Raises:
            BadInput: heads do not divide.
        """
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if self.head_dim is None:
            _require_divides(where, "num_attention_heads", heads, "hidden_size", self.hidden_size)
        _require_divides(where, "num_key_value_heads", kv_heads, "num_attention_heads", heads)
        head_width = self.head_dim or self.hidden_size // heads
        return {
            "head_width": head_width,
            "kv_heads": kv_heads,
            "attention_bias": self.attention_bias,
            "output_bias": self.attention_bias,
            "query_norm": self.query_norm,
            "rotary": self.rotary(where, head_width),
        }

    def experts(self, where: str) -> dict[str, Any]:
        """What the mixture of experts is, as arguments of DecoderConfig."""
        return {}


class _Mistral(_Llama):
    num_key_value_heads: Heads | None = 8


class _Qwen2(_Llama):
    def attention(self, where: str) -> dict[str, Any]:
        return {**super().attention(where), "attention_bias": True, "output_bias": False}


class _Qwen3(_Llama):
    query_norm: ClassVar[bool] = True


class _Qwen3Moe(_Qwen3, kw_only=True):
    moe_intermediate_size: Size = 768
    num_experts: Heads | None = None
    num_local_experts: Heads | None = None
    """The word for num_experts in files of transformers 5."""
    num_experts_per_tok: Few = 8
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def experts(self, where: str) -> dict[str, Any]:
        from automap_models.workloads.mixture import Mixture

        if self.decoder_sparse_step != 1:
            raise wrong(where, "$.decoder_sparse_step", self.decoder_sparse_step, "1, the only one that is known")
        if self.mlp_only_layers:
            raise wrong(where, "$.mlp_only_layers", list(self.mlp_only_layers), "[], the only one that is known")
        experts = self.num_experts or self.num_local_experts or 128
        _require_enough(where, self.num_experts_per_tok, "num_experts", experts)
        sizes = experts, self.num_experts_per_tok, self.moe_intermediate_size
        return {"mixture": Mixture(*sizes, normalised=self.norm_topk_prob)}


class _Mixtral(_Mistral):
    num_local_experts: Heads = 8
    num_experts_per_tok: Few = 2

    def experts(self, where: str) -> dict[str, Any]:
        from automap_models.workloads.mixture import Mixture

        _require_enough(where, self.num_experts_per_tok, "num_local_experts", self.num_local_experts)
        return {"mixture": Mixture(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)}


class _DeepseekV2(_Llama, kw_only=True):
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    moe_intermediate_size: Size
    n_routed_experts: Heads
    num_experts_per_tok: Few
    q_lora_rank: Size | None = None
    n_shared_experts: Annotated[int, Meta(ge=0, le=64)] | None = None
    first_k_dense_replace: Annotated[int, Meta(ge=0, le=1000)] = 0
    moe_layer_freq: int = 1
    norm_topk_prob: bool = False
    routed_scaling_factor: Positive = 1.0

    scores: ClassVar[Literal["softmax", "sigmoid"]] = "softmax"

    def attention(self, where: str) -> dict[str, Any]:
        from automap_models.workloads.blocks import Latent

        rotary = self.rotary(where, self.qk_rope_head_dim)
        latent = Latent(self.q_lora_rank, self.kv_lora_rank, self.qk_nope_head_dim, rotary, self.v_head_dim)
        return {"latent": latent, "attention_bias": self.attention_bias}

    def experts(self, where: str) -> dict[str, Any]:
        from automap_models.workloads.mixture import Mixture

        if self.moe_layer_freq != 1:
            raise wrong(where, "$.moe_layer_freq", self.moe_layer_freq, "1, the only one that is known")
        _require_enough(where, self.num_experts_per_tok, "n_routed_experts", self.n_routed_experts)
        mixture = Mixture(
            self.n_routed_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            self.moe_intermediate_size * (self.n_shared_experts or 0),
            self.scores,
            self.norm_topk_prob,
            self.routed_scaling_factor,
        )
        return {"mixture": mixture, "dense_layers": min(self.first_k_dense_replace, self.num_hidden_layers)}


class _DeepseekV3(_DeepseekV2, kw_only=True):
    norm_topk_prob: bool = True
    routed_scaling_factor: Positive = 2.5

    scores: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"


FAMILIES: dict[str, type[_Bert | _Bloom | _Gpt2 | _GptNeoX | _Llama | _T5]] = {
    "bert": _Bert,
    "bloom": _Bloom,
    "deepseek_v2": _DeepseekV2,
    "deepseek_v3": _DeepseekV3,
    "gpt2": _Gpt2,
    "gpt_neox": _GptNeoX,
    "llama": _Llama,
    "mistral": _Mistral,
    "mixtral": _Mixtral,
    "qwen2": _Qwen2,
    "qwen3": _Qwen3,
    "qwen3_moe": _Qwen3Moe,
    "t5": _T5,
}
"""The known values of model_type."""


def _activation(where: str, key: str, name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise wrong(
            where, f"$.{key}", name, f"one of {', '.join(_ACTIVATIONS)}", "give a model with a known activation"
        )
    return _ACTIVATIONS[name]


def _one_of(where: str, **sizes: int | None) -> int:
    """The first of sizes that go by several names which the file has.

    Raises:
        BadInput: it has none.
    """
    known = next((size for size in sizes.values() if size is not None), None)
    if known is None:
        raise BadInput(f"$.{' or $.'.join(sizes)} is missing", where=where, do="add it")
    return known


def _require_divides(where: str, key: str, count: int, whole_key: str, whole: int) -> None:
    if whole % count:
        raise BadInput(
            f"$.{key} is {count}, which does not divide $.{whole_key}, {whole}", where=where, do="check both numbers"
        )


def _require_enough(where: str, per_token: int, key: str, experts: int) -> None:
    if per_token > experts:
        do = "check both numbers"
        raise BadInput(f"$.num_experts_per_tok is {per_token}, more than $.{key}, {experts}", where=where, do=do)
