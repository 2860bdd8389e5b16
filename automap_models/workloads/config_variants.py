"""The families of config.json that vary Llama's block: other norms, biases, partial rotary positions, capped scores.

Sliding windows of attention (Gemma, Phi-3, StarCoder2) are not modelled, and noted: every layer attends to all
positions before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from automap_models.formats.schema import Positive, Share
from automap_models.workloads.config_fields import Epsilon, Family, Heads, Size, known_activation, unsupported
from automap_models.workloads.config_rotary import Llama

if TYPE_CHECKING:
    from automap_models.workloads.blocks import Rotary
    from automap_models.workloads.training import Architecture


class _Partial(Llama):
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


class _Olmo2(Llama):
    rms_norm_eps: Epsilon = 1e-5

    query_norm: ClassVar[Literal["head", "heads"] | None] = "heads"

    def options(self, where: str) -> dict[str, Any]:
        return {**super().options(where), "norms": "after"}


class _Gemma2(Llama):
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

    query_norm: ClassVar[Literal["head", "heads"] | None] = "head"


VARIANTS: dict[str, type[Family]] = {
    "gemma2": _Gemma2,
    "gemma3_text": _Gemma3Text,
    "olmo2": _Olmo2,
    "phi3": _Phi3,
    "stablelm": _StableLm,
    "starcoder2": _Starcoder2,
}
"""Their values of model_type."""
