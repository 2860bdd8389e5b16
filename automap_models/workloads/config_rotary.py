"""The families of config.json whose decoders have rotary positions: GPT-NeoX, Llama and those after it.

Some vary Llama's block: other norms, biases, partial rotary positions, capped scores. Sliding windows of attention
(Gemma, Phi-3, StarCoder2) are not modelled, and noted: every layer attends to all positions before.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, Positive, Share
from automap_models.workloads.config_families import (
    PLAIN,
    Epsilon,
    Family,
    Few,
    Heads,
    Layers,
    Size,
    known_activation,
    require_divides,
    require_enough,
    unsupported,
)
from automap_models.workloads.sizes import Architecture, DecoderConfig, Latent, Mixture, QueryNorm, Rotary


class _Rope(Foreign):
    """Rotary positions, as files of transformers 5 have them."""

    rope_theta: Positive = 10000.0
    partial_rotary_factor: Share | None = None


class _Rotating(Family, kw_only=True):
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

    classifies: ClassVar[bool] = True

    def positions(self) -> tuple[int | None, bool]:
        return self.max_position_embeddings, False

    def rotary(self, where: str, head_width: int, share: float = 1.0, base: float | None = None) -> Rotary:
        """Rotary positions of a share of a head's numbers, by the file's base unless another is given.

        Raises:
            BadInput: these numbers are no pairs.
        """
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
        heads, width = self.num_attention_heads, self.hidden_size
        require_divides(where, "num_attention_heads", heads, "hidden_size", width)
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
            activation=known_activation(where, "hidden_act", self.hidden_act),
            epsilon=self.layer_norm_eps,
            rotary=self.rotary(where, width // heads, self.rotary_pct, base),
            parallel=self.use_parallel_residual,
            tied=self.tie_word_embeddings,
            classes=self.classes,
        )


class _Llama(_Rotating):
    """Llama; the families after it have other defaults and options."""

    hidden_act: str = "silu"
    rms_norm_eps: Epsilon = 1e-6
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    query_norm: ClassVar[QueryNorm | None] = None
    """How queries and keys are normed."""

    def architecture(self, where: str) -> Architecture:
        """See Family."""
        return DecoderConfig(
            width=self.hidden_size,
            heads=self.num_attention_heads,
            layers=self.num_hidden_layers,
            vocabulary=self.vocab_size,
            positions=None,
            feed_forward=self.intermediate_size,
            tied=self.tie_word_embeddings,
            classes=self.classes,
            **self.options(where),
            **self.attention(where),
            **self.experts(where),
        )

    def options(self, where: str) -> dict[str, Any]:
        """What norms and feed-forward layers are, as arguments of DecoderConfig."""
        return {
            "feed_forward_bias": self.mlp_bias,
            "activation": known_activation(where, "hidden_act", self.hidden_act),
            "gated": True,
            "root_mean_square": True,
            "epsilon": self.rms_norm_eps,
        }

    def attention(self, where: str) -> dict[str, Any]:
        """What the attention is, as arguments of DecoderConfig.

        Raises:
            BadInput: heads do not divide.
        """
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if self.head_dim is None:
            require_divides(where, "num_attention_heads", heads, "hidden_size", self.hidden_size)
        require_divides(where, "num_key_value_heads", kv_heads, "num_attention_heads", heads)
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
    query_norm: ClassVar[QueryNorm | None] = "head"


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
        if self.decoder_sparse_step != 1:
            raise unsupported(where, "$.decoder_sparse_step", self.decoder_sparse_step, "1, the only one that is known")
        dense = len(self.mlp_only_layers)
        if sorted(self.mlp_only_layers) != list(range(dense)) or dense > self.num_hidden_layers:
            raise unsupported(where, "$.mlp_only_layers", list(self.mlp_only_layers), "the first layers")
        experts = self.num_experts or self.num_local_experts or 128
        require_enough(where, self.num_experts_per_tok, "num_experts", experts)
        sizes = experts, self.num_experts_per_tok, self.moe_intermediate_size
        return {"mixture": Mixture(*sizes, normalised=self.norm_topk_prob), "dense_layers": dense}


class _Mixtral(_Mistral):
    num_local_experts: Heads = 8
    num_experts_per_tok: Few = 2

    def experts(self, where: str) -> dict[str, Any]:
        require_enough(where, self.num_experts_per_tok, "num_local_experts", self.num_local_experts)
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
        rotary = self.rotary(where, self.qk_rope_head_dim)
        latent = Latent(self.q_lora_rank, self.kv_lora_rank, self.qk_nope_head_dim, rotary, self.v_head_dim)
        return {"latent": latent, "attention_bias": self.attention_bias}

    def experts(self, where: str) -> dict[str, Any]:
        if self.moe_layer_freq != 1:
            raise unsupported(where, "$.moe_layer_freq", self.moe_layer_freq, "1, the only one that is known")
        require_enough(where, self.num_experts_per_tok, "n_routed_experts", self.n_routed_experts)
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


class _Partial(_Llama):
    """Of each head a share of the numbers has rotary positions."""

    partial_rotary_factor: Share | None = None

    least_share: ClassVar[float] = 1.0
    """The share where the file does not say."""

    def rotary(self, where: str, head_width: int, share: float = 1.0, base: float | None = None) -> Rotary:
        return super().rotary(where, head_width, self.partial_rotary_factor or self.least_share, base)


class _Phi3(_Partial):
    rms_norm_eps: Epsilon = 1e-5


class _WithLayerNorms(_Partial):
    """Layer norms with biases in place of root-mean-square norms."""

    layer_norm_eps: Epsilon = 1e-5

    def options(self, where: str) -> dict[str, Any]:
        return {**super().options(where), "root_mean_square": False, "epsilon": self.layer_norm_eps}


class _StableLm(_WithLayerNorms):
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False

    least_share: ClassVar[float] = 0.25

    def architecture(self, where: str) -> Architecture:
        for key in ("qk_layernorm", "use_parallel_residual"):
            if getattr(self, key):
                raise unsupported(where, f"$.{key}", True, "false, the only one that is known")
        return super().architecture(where)

    def attention(self, where: str) -> dict[str, Any]:
        return {**super().attention(where), "attention_bias": self.use_qkv_bias, "output_bias": False}


class _Starcoder2(_WithLayerNorms):
    hidden_act: str = "gelu_pytorch_tanh"
    norm_epsilon: Epsilon = 1e-5
    num_key_value_heads: Heads | None = 2
    use_bias: bool = True
    tie_word_embeddings: bool = True

    def options(self, where: str) -> dict[str, Any]:
        own = {"gated": False, "feed_forward_bias": self.use_bias, "epsilon": self.norm_epsilon}
        return {**super().options(where), **own}

    def attention(self, where: str) -> dict[str, Any]:
        return {**super().attention(where), "attention_bias": self.use_bias, "output_bias": self.use_bias}


class _Olmo2(_Llama):
    rms_norm_eps: Epsilon = 1e-5

    query_norm: ClassVar[QueryNorm | None] = "heads"

    def options(self, where: str) -> dict[str, Any]:
        return {**super().options(where), "norms": "after"}


class _Gemma2(_Llama):
    hidden_activation: str = "gelu_pytorch_tanh"
    head_dim: Size | None = 256
    num_key_value_heads: Heads | None = 4
    query_pre_attn_scalar: Positive = 256
    final_logit_softcapping: Positive | None = 30.0
    attn_logit_softcapping: Positive | None = 50.0
    tie_word_embeddings: bool = True

    def options(self, where: str) -> dict[str, Any]:
        own = {
            "activation": known_activation(where, "hidden_activation", self.hidden_activation),
            "norms": "around",
            "embedding_scale": self.hidden_size**0.5,
            "score_scale": self.query_pre_attn_scalar**-0.5,
            "score_cap": self.attn_logit_softcapping,
            "logit_cap": self.final_logit_softcapping,
        }
        return {**super().options(where), **own}


class _Gemma3Text(_Gemma2):
    """Layers with windows have another base of the rotary positions than the others, which costs the same."""

    final_logit_softcapping: Positive | None = None
    attn_logit_softcapping: Positive | None = None

    query_norm: ClassVar[QueryNorm | None] = "head"


_ROTARY: dict[str, type[Family]] = {
    "deepseek_v2": _DeepseekV2,
    "deepseek_v3": _DeepseekV3,
    "gemma2": _Gemma2,
    "gemma3_text": _Gemma3Text,
    "gpt_neox": _GptNeoX,
    "llama": _Llama,
    "mistral": _Mistral,
    "mixtral": _Mixtral,
    "olmo2": _Olmo2,
    "phi3": _Phi3,
    "qwen2": _Qwen2,
    "qwen3": _Qwen3,
    "qwen3_moe": _Qwen3Moe,
    "stablelm": _StableLm,
    "starcoder2": _Starcoder2,
}
FAMILIES = dict(sorted((PLAIN | _ROTARY).items()))
"""The known values of model_type."""
