"""What a config.json says and nothing prices: each key is read by its family, of no consequence, or named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from automap_models.workloads.catalogue import MODEL_TYPES
from automap_models.workloads.config_families import Family, families, family_named

HEADS = (
    *("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration"),
    *("MTModel", "ForImageClassification"),
)
"""How names of classes end whose models have an output matrix of the vocabulary."""
CLASSIFIER = "ForSequenceClassification"
_NEUTRAL = """
model_type transformers_version _name_or_path architectures auto_map id2label label2id num_labels problem_type
return_dict return_dict_in_generate output_attentions output_hidden_states output_scores output_past use_cache
torchscript tokenizer_class task_specific_params finetuning_task prefix is_encoder_decoder is_decoder bos_token_id
eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id bos_token eos_token initializer_range
initializer_factor initializer_cutoff_factor chunk_size_feed_forward pretraining_tp ep_size rope_scaling
rope_local_base_freq rope_interleave rope_theta rope_parameters rotary_emb_base original_max_position_embeddings
max_sequence_length n_ctx attention_dropout hidden_dropout classifier_dropout dropout_rate embd_pdrop resid_pdrop
attn_pdrop embedding_dropout residual_dropout summary_activation summary_first_dropout summary_proj_to_labels
summary_type summary_use_proj router_aux_loss_coef router_jitter_noise router_z_loss_coef output_router_logits
aux_loss_alpha seq_aux n_group topk_group topk_method scoring_func gradient_checkpointing skip_bias_add
skip_bias_add_qkv slow_but_exact reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights
attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion unk_token offset_alibi cache_implementation
dense_act_fn is_gated_act qk_head_dim num_logits_to_keep min_length max_length do_sample early_stopping num_beams
num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
forced_eos_token_id remove_invalid_values suppress_tokens begin_suppress_tokens exponential_decay_length_penalty
use_bfloat16 attention_multiplier embedding_multiplier logits_scaling residual_multiplier no_rope_layers
no_rope_layer_interval eod_token_id moe_norm_min moe_layer_end_index tf_legacy_loss _attn_implementation
attn_implementation tie_word_embeddings torch_dtype dtype time_step_min time_step_max time_step_limit time_step_floor
time_step_rank rescale_prenorm_residual use_mamba_kernels expand mamba_hidden_act mamba_ssm_cache_dtype mamba_ssm_dtype
moe_shared_expert_overlap mtp_layers_block_type mtp_hybrid_override_pattern output_gate_type attn_output_gate
image_token_id video_token_id audio_token_id image_token_index video_token_index vision_start_token_id
vision_end_token_id vision_token_id ignore_index pruned_heads add_cross_attention cross_attention_hidden_size
tie_encoder_decoder is_training swiglu_limit swiglu_limits swiglu_limits_shared swiglu_alpha attention_value_scale
swa_rope_theta compress_rope_theta per_layer_config indexer_rope_interleave initial_context_length experts_per_token
use_routing_bias use_mtp num_nextn_predict_layers num_mtp_modules mtp_num_hidden_layers mtp_transformer_layers
mtp_use_dedicated_embeddings mtp_layer_types mtp_mlp_layer_types qk_norm_type use_gemma_norm use_moe_router_bias
attn_temperature_tuning attn_scale floor_scale
vocab_size_per_layer_input use_bidirectional_attention clip_qkv rope_type rope_mode head_dim layerdrop init_std
input_jitter_noise moe_layers sep_token logit_scale scale_attention_softmax_in_fp32 enable_moe_fp32_combine
index_local_blocks enable_moe_block use_qk_norm mamba_proj_bias residual_in_fp32 use_expert_bias scale_embedding
mamba_expand qa_dropout seq_classif_dropout summary_last_dropout dropout encoder_layerdrop decoder_layerdrop
classifier_pooling classifier_activation sparse_pred_ignore_index decoder_vocab_size classifier_proj_size mask_time_prob
mask_time_length mask_time_min_masks mask_feature_length mask_feature_prob median_filter_width max_position_embeddings
encoder_stride pooler_output_size pooler_act layerscale_value layer_norm_eps apply_layernorm reshape_hidden_states
stage_names out_features out_indices lm_head_multiplier mlp_multipliers key_multiplier attention_out_multiplier
attention_in_multiplier ssm_multipliers ssm_in_multiplier ssm_out_multiplier mamba_norm_before_gate mamba_d_ssm
mamba_use_mlp z_loss_coefficient time_step_init_scheme time_step_scale use_mambapy use_associative_scan mixer_rms_eps
emb_pdrop moe_jitter_eps moe_loss_weight moe_normalize_expert_weights ffn_act_fn embedding_fraction init_device
norm_type learned_pos_emb attn_impl prefix_lm attn_uses_sequence_id alibi_bias_max softmax_scale
attention_types hc_eps hc_sinkhorn_iters num_hash_layers mlp_layer_types expert_dtype qk_rope_head_dim
"""
GROUPS = ("sparse_attention_config", "attn_config", "ffn_config", "compress_rates")
"""Keys of groups of keys, which are read in their place."""
UNPRICED = {
    "deberta-v2": "scores of tables of relative positions",
    "gemma3n_text": "embeddings of each layer, and low-rank residual streams side by side",
    "mllama_text_model": "layers that attend to images",
    "nemotron-nas": "layers of different shapes",
    "recurrent_gemma": "gated linear recurrences",
    "rwkv": "time mixing",
    "zamba2": "blocks that share one attention",
}
"""Value of model_type → what such models have that no closed form here says."""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Keys that change neither shapes nor costs of a training step, or are of no use where the family does not read them.

Dropout that a family does not model is among them: it costs next to nothing beside the products.
"""
_OFF: tuple[object, ...] = (None, False, 0, "", [], {}, "absolute")
"""Values of keys that ask for nothing; the last one is BERT's usual position_embedding_type."""


def config_notes(values: Mapping[str, Any], family: str) -> Iterator[str]:
    """Sentences on what the file's values say and nothing prices."""
    entry = family_named(family)
    kind = values.get("model_type")
    if kind != family:
        named = family_of(kind, values.get("architectures")) == family
        reason = "the family that its architectures name" if named else "the family whose keys are those of this file"
        yield f"model_type {kind} is read as {family}, {reason}"
    if quantized := values.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        of_type = f" {method}" if method else ""
        yield f"quantization_config is left out: the file's{of_type} weights are for inference, and training is priced"
    for name in values.get("architectures") or ():
        if not str(name).endswith(HEADS) and not (str(name).endswith(CLASSIFIER) and entry.classifies):
            columns = "classes" if entry.record == "image" else "the vocabulary"
            yield f"{name} is priced with an output matrix of {columns}, which it may not have"
    read = NEUTRAL | keys_of(entry) | {"quantization_config", "vision_config", *GROUPS}
    others = [key for key, value in values.items() if key not in read and value not in _OFF]
    if others:
        listed = ", ".join(others[:12]) + (f" and {len(others) - 12} more" if len(others) > 12 else "")
        yield f"not read, though they may change the model's size or time: {listed}"


def left_out(document: Mapping[str, Any], images: bool) -> Iterator[str]:
    """What a file has beside what is priced, in sentences; `images` says whether its tower of images is."""
    for key in ("vision_config", "audio_config"):
        if document.get(key) and not (images and key == "vision_config"):
            yield f"{key} is left out, with its tower's time and parameters: the language model alone is priced"


def keys_of(family: Family) -> set[str]:
    """The keys that a family reads."""
    return set(family.schema().__struct_fields__)


def family_of(kind: object, architectures: object) -> str | None:
    """The family of a file: its model_type, or the one whose class it names; None where neither is known.

    Models that are one of another family in all but their name say so in `architectures`: Kimi K2's is DeepSeek V3's.
    """
    if isinstance(kind, str) and kind in MODEL_TYPES:
        return kind
    if not isinstance(architectures, list) or not architectures:
        return None
    name = str(architectures[0]).removesuffix("ForCausalLM").lower()
    return next((family for family in MODEL_TYPES if family.replace("_", "") == name), None)


def nearest_family(values: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The family that reads all keys of a file, and has all that it needs there: llama, or the smallest.

    Recurrences are read by their name alone: the keys of Mamba are read by Mamba-2, too, and mean another layer. So are
    attention to compressed tokens and models that compare texts with images, which need few keys.

    Returns:
        the family; where there is none, None and the keys that are not read by the one that reads most.
    """
    by_name = {"state", "few", "outputs"}
    keys = {key for key, value in values.items() if value not in _OFF} - NEUTRAL - {"quantization_config"}
    unread = {
        name: keys - keys_of(family)
        for name, family in families().items()
        if family.record == "decoder" and not by_name & {*family.keys} and family.is_complete(values)
    }
    if not unread:
        return None, []
    best = min(unread, key=lambda name: (len(unread[name]), name != "llama", len(families()[name].keys), name))
    return (None, sorted(unread[best])) if unread[best] else (best, [])
