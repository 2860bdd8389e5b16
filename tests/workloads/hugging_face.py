"""Small models of every family whose config.json is read, as transformers builds and writes them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_PLAIN = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
_SHARED = {**_PLAIN, "num_key_value_heads": 2}
_DEEPSEEK = {
    **_PLAIN,
    "num_key_value_heads": 4,
    "kv_lora_rank": 6,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ROUTED = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **{"moe_intermediate_size": 12, "n_group": 1, "topk_group": 1},
}
_DELTA = {
    **{"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 6, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3},
}
_GATED_EXPERTS = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20},
}
_SEQ2SEQ = {
    **{"vocab_size": 40, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "max_position_embeddings": 32},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20},
}
_IMAGES = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24},
    **{"image_size": 12, "patch_size": 4, "num_labels": 5},
}
_NO_TOKENS = dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0)
_SCAN = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 6, "time_step_rank": 3}
_STATES = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 1, "mamba_expand": 2}
_INDEXER = {"index_n_heads": 2, "index_head_dim": 6, "index_topk": 4}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", _PLAIN),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", {**_PLAIN, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", {**_PLAIN, "type_vocab_size": 1}),
    "camembert": ("CamembertConfig", "CamembertForMaskedLM", _PLAIN),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 32},
    ),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**_PLAIN, "embedding_size": 12}),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", {**_PLAIN, **_NO_TOKENS}),
    "nomic_bert": ("NomicBertConfig", "NomicBertForMaskedLM", _PLAIN),
    "bart": ("BartConfig", "BartForConditionalGeneration", _SEQ2SEQ),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", _SEQ2SEQ),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", _SEQ2SEQ),
    "blenderbot": ("BlenderbotConfig", "BlenderbotForConditionalGeneration", _SEQ2SEQ),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration", _SEQ2SEQ),
    "marian": ("MarianConfig", "MarianMTModel", {**_SEQ2SEQ, "pad_token_id": 0}),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {**_SEQ2SEQ, "num_mel_bins": 5, "max_source_positions": 12, "max_target_positions": 32, "pad_token_id": 0},
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", _IMAGES),
    "deit": ("DeiTConfig", "DeiTForImageClassification", _IMAGES),
    "dinov2": (
        "Dinov2Config",
        "Dinov2ForImageClassification",
        {**{key: size for key, size in _IMAGES.items() if key != "intermediate_size"}, "mlp_ratio": 3},
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": 40, "hidden_size": 24, "n_layer": 2, "n_head": 6, "seq_length": 32},
    ),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", {**_DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**_DEEPSEEK, "rope_interleave": False}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**_SHARED, "head_dim": 6, "query_pre_attn_scalar": 5}),
    "gemma3_text": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_SHARED, "head_dim": 6, "rope_theta": 10000.0, "rope_local_base_freq": 10000.0},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "n_positions": 32},
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_PLAIN, "rotary_pct": 0.5}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_SHARED, "tie_word_embeddings": True, "rope_theta": 500.0}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_SHARED, "head_dim": 8}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_SHARED, "num_local_experts": 2, "num_experts_per_tok": 2}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _SHARED),
    "phi3": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {**_SHARED, "hidden_size": 32, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    ),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _SHARED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_SHARED, "head_dim": 6}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **{**_SHARED, "head_dim": 6, "moe_intermediate_size": 12, "num_experts": 2, "num_experts_per_tok": 2},
            **{"norm_topk_prob": True},
        },
    ),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {**_SHARED, "hidden_size": 32, "use_qkv_bias": True}),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            **{**_SHARED, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"]},
            **{"head_dim": 6, "mamba_num_heads": 6, "mamba_head_dim": 4, "ssm_state_size": 5, "n_groups": 2},
            **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_latent_size": 8, "moe_intermediate_size": 12},
            **{"moe_shared_expert_intermediate_size": 20, "conv_kernel": 3},
        },
    ),
    "qwen3_5_text": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {**_SHARED, **_DELTA, "head_dim": 8},
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**_SHARED, **_DELTA, **_GATED_EXPERTS, "head_dim": 8},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**_SHARED, **_DELTA, **_GATED_EXPERTS, "head_dim": 8, "mlp_only_layers": [0]},
    ),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", _SHARED),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            **{"vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1},
            **{"num_heads": 2, "feed_forward_proj": "gated-gelu"},
        },
    ),
    "cwm": ("CwmConfig", "CwmForCausalLM", {**_SHARED, "head_dim": 6}),
    "dots1": ("Dots1Config", "Dots1ForCausalLM", {**_SHARED, **_ROUTED, "head_dim": 6}),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM", {**_SHARED, "head_dim": 6, "use_bias": True}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        {
            **{**_SHARED, "moe_num_experts": 4, "moe_k": 4, "moe_intermediate_size": 12, "moe_num_shared_experts": 1},
            **{"moe_layer_start_index": 1},
        },
    ),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM", _SHARED),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_SHARED, "head_dim": 6}),
    "glm": ("GlmConfig", "GlmForCausalLM", {**_SHARED, "head_dim": 8, "pad_token_id": 0}),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", {**_SHARED, "head_dim": 8, "pad_token_id": 0}),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", {**_SHARED, **_ROUTED, "head_dim": 8, "use_qk_norm": True}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", _SHARED),
    "granitemoe": (
        "GraniteMoeConfig",
        "GraniteMoeForCausalLM",
        {**_SHARED, "num_local_experts": 4, "num_experts_per_tok": 4},
    ),
    "helium": ("HeliumConfig", "HeliumForCausalLM", {**_SHARED, "head_dim": 4}),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", {**_SHARED, "head_dim": 6}),
    "minimax_m2": (
        "MiniMaxM2Config",
        "MiniMaxM2ForCausalLM",
        {**_SHARED, "head_dim": 6, "num_local_experts": 4, "num_experts_per_tok": 4},
    ),
    "ministral": ("MinistralConfig", "MinistralForCausalLM", {**_SHARED, "head_dim": 6}),
    "mt5": (
        "MT5Config",
        "MT5ForConditionalGeneration",
        {**{"vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2}},
    ),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**_SHARED, **_GATED_EXPERTS, "decoder_sparse_step": 2}),
    "deepseek_v32": ("DeepseekV32Config", "DeepseekV32ForCausalLM", {**_DEEPSEEK, **_INDEXER}),
    "deepseek_v4": (
        "DeepseekV4Config",
        "DeepseekV4ForCausalLM",
        {
            **{**_PLAIN, **_INDEXER, "num_hidden_layers": 4, "head_dim": 16, "q_lora_rank": 10, "o_groups": 2},
            **{"o_lora_rank": 6, "hc_mult": 3, "moe_intermediate_size": 12, "n_routed_experts": 4},
            **{"num_experts_per_tok": 4, "sliding_window": 8, "num_nextn_predict_layers": 0},
            **{
                "layer_types": [
                    "sliding_attention",
                    *["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
                ][:4]
            },
        },
    ),
    "glm_moe_dsa": ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", {**_DEEPSEEK, **_INDEXER, "pad_token_id": 0}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", _DEEPSEEK),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        "GraniteMoeSharedForCausalLM",
        {**_SHARED, "num_local_experts": 4, "num_experts_per_tok": 4, "shared_intermediate_size": 20},
    ),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", {**_SHARED, "head_dim": 4}),
    "solar_open": (
        "SolarOpenConfig",
        "SolarOpenForCausalLM",
        {**_SHARED, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 12},
    ),
    "exaone_moe": (
        "ExaoneMoeConfig",
        "ExaoneMoeForCausalLM",
        {**_SHARED, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 12},
    ),
    "hy_v3": (
        "HYV3Config",
        "HYV3ForCausalLM",
        {**_SHARED, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 12, "head_dim": 6},
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1Config",
        "HunYuanMoEV1ForCausalLM",
        {**_SHARED, "head_dim": 6, "num_experts": 4, "moe_topk": 2, "pad_token_id": 0},
    ),
    "phimoe": (
        "PhimoeConfig",
        "PhimoeForCausalLM",
        {**_SHARED, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {**_SHARED, "num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 6, "pad_token_id": 0},
    ),
    "llama4_text": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {
            **{**_SHARED, "num_local_experts": 4, "intermediate_size_mlp": 36, "interleave_moe_layer_step": 2},
            **{"num_hidden_layers": 4, "head_dim": 4, "pad_token_id": 0},
        },
    ),
    "mimo_v2_flash": (
        "MiMoV2FlashConfig",
        "MiMoV2FlashForCausalLM",
        {**_SHARED, **_ROUTED, "n_shared_experts": None, "head_dim": 12, "v_head_dim": 8, "num_hidden_layers": 7},
    ),
    "minimax_m3_vl_text": (
        "MiniMaxM3VLTextConfig",
        "MiniMaxM3VLForCausalLM",
        {
            **{**_SHARED, "head_dim": 6, "num_local_experts": 4, "num_experts_per_tok": 4, "rotary_dim": 4},
            **{"dense_intermediate_size": 36, "shared_intermediate_size": 20, "index_n_heads": 2, "index_head_dim": 6},
            **{"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"]},
            **{"bos_token_id": 0, "eos_token_id": 0},
        },
    ),
    "gemma4_text": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **{**_SHARED, "head_dim": 4, "global_head_dim": 8, "num_global_key_value_heads": 1, "num_hidden_layers": 6},
            **{"attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "enable_moe_block": True},
            **{"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12, "num_kv_shared_layers": 0},
        },
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            **{"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24},
            **{"max_position_embeddings": 32, "word_embed_proj_dim": 16},
        },
    ),
    "gpt_bigcode": (
        "GPTBigCodeConfig",
        "GPTBigCodeForCausalLM",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "n_positions": 32},
    ),
    "gptj": (
        "GPTJConfig",
        "GPTJForCausalLM",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "rotary_dim": 2},
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {"vocab_size": 40, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 24}
        | {"max_position_embeddings": 32, "window_size": 32, "attention_types": [[["global", "local"], 1]]},
    ),
    "codegen": (
        "CodeGenConfig",
        "CodeGenForCausalLM",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_ctx": 32, "rotary_dim": 2},
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {key: size for key, size in _PLAIN.items() if key != "intermediate_size"},
    ),
    "xglm": (
        "XGLMConfig",
        "XGLMForCausalLM",
        {"vocab_size": 40, "d_model": 16, "num_layers": 2, "attention_heads": 4, "ffn_dim": 24}
        | {"max_position_embeddings": 32},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {**_SHARED, "shared_intermediate_size": 20, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 6}
        | {"mamba_n_groups": 1, "mamba_expand": 2},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", {**_SHARED, "partial_rotary_factor": 0.5}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {**_SHARED, "pad_token_id": 0}),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {**_SHARED, "head_dim": 4, "pad_token_id": 0}),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", {**_SHARED, "head_dim": 4, "partial_rotary_factor": 0.5}),
    "mamba": ("MambaConfig", "MambaForCausalLM", _SCAN),
    "falcon_mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", _SCAN),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        {**_SHARED, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1}
        | {"num_hidden_layers": 4, "mamba_d_state": 6, "mamba_dt_rank": 3, "pad_token_id": 0},
    ),
    "bamba": ("BambaConfig", "BambaForCausalLM", {**_SHARED, **_STATES, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", {**_SHARED, **_STATES, "mamba_d_ssm": 32}),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {**_SHARED, "block_multiple_of": 10, "full_attn_idxs": [1]}),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {**_SHARED, "num_experts": 4, "moe_intermediate_size": 12, "num_dense_layers": 1, "num_experts_per_tok": 2}
        | {"layer_types": ["conv", "full_attention"]},
    ),
    "dbrx": (
        "DbrxConfig",
        "DbrxForCausalLM",
        {"d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": 40}
        | {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}}
        | {"ffn_config": {"hidden_size": 16, "ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 4}},
    ),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        {"d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": 40},
    ),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM", {**_SHARED, "head_dim": 8}),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            **{"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 4},
            **{"state_size": 6, "n_groups": 2, "chunk_size": 8},
        },
    ),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", {**_SHARED, "pad_token_id": 0}),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {**_SHARED, "num_experts": 4, "num_experts_per_tok": 4}),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM", {**_SHARED, "head_dim": 6}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {**_SHARED, "pad_token_id": 0}),
}
"""model_type → class of the config, class of the model, sizes. Every expert takes every token: none overflows."""


ALIKE = {
    **{"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2"},
    **{"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe"},
    "step3p7": "step3p5",
}
"""Families of the text in models of more than text → those of text alone that have the same sizes."""


def configuration(model_type: str, **changes: Any) -> Any:
    """The configuration of a small model, as an object of transformers."""
    hf = importlib.import_module("transformers")
    name, _, sizes = FAMILIES[model_type]
    return getattr(hf, name)(**{**sizes, **changes})


def model_of(config: Any, **options: Any) -> Any:
    """The model of a configuration, on the device that torch's context says."""
    hf = importlib.import_module("transformers")
    _, name, _ = FAMILIES[config.model_type]
    return getattr(hf, name)._from_config(config, **options)


def inputs(config: Any, samples: int = 1, tokens: int = 24) -> dict[str, Any]:
    """What a forward pass of the model reads: zeros, in float32 where they are no tokens."""
    torch = importlib.import_module("torch")
    ids = torch.zeros((samples, tokens), dtype=torch.int64)
    if "image_size" in vars(config):
        return {"pixel_values": torch.zeros(samples, 3, config.image_size, config.image_size)}
    sound = {"input_features": torch.zeros(samples, config.num_mel_bins, 24)} if "num_mel_bins" in vars(config) else {}
    decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    return {**(sound or {"input_ids": ids}), **decoder}


def written(config: Any, folder: Path) -> Path:
    """The config.json of a configuration."""
    config.save_pretrained(folder)
    return folder / "config.json"
