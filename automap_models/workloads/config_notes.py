"""What a config.json says of a model and nothing prices: windows of attention, layers for further tokens, other heads.

Every key is either read by its family, of no consequence for shapes and costs (`NEUTRAL`), or named in a sentence, so
that no key that changes a model is read over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from automap_models.formats.schema import decode_json
from automap_models.workloads.config_families import FAMILIES

HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration")
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
use_bfloat16 tf_legacy_loss _attn_implementation attn_implementation tie_word_embeddings torch_dtype dtype
"""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Keys that change neither shapes nor costs of a training step, or are of no use where the family does not read them.

Dropout that a family does not model is among them: it costs next to nothing beside the products.
"""
_WINDOWS = frozenset(
    {
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "layer_types",
        "attention_chunk_size",
    }
)
_FURTHER = frozenset({"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"})
_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Families of which every so-many-th layer has no window, unless the file says otherwise."""
_SHOWN = 12
_OFF: tuple[object, ...] = (None, False, 0, "", [], {}, "absolute")
"""Values of keys that ask for nothing; the last one is BERT's usual position_embedding_type."""


def config_notes(content: bytes, family: str, *, where: str, sequence: int) -> tuple[str, ...]:
    """Sentences on what the file says and nothing prices.

    Args:
        content: of a config.json.
        family: that it is read as, a known value of model_type.
        where: what messages call it.
        sequence: tokens of a sample.

    Raises:
        BadInput: it is no JSON mapping.
    """
    values: dict[str, Any] = decode_json(content, dict[str, Any], where=where)
    return tuple(_notes(values, family, sequence))


def _notes(values: Mapping[str, Any], family: str, sequence: int) -> Iterator[str]:
    kind, known = values.get("model_type"), FAMILIES[family]
    if kind != family:
        yield f"model_type {kind} is read as {family}, the family that its architectures name"
    window, layers = values.get("sliding_window"), _layers_with_windows(values)
    if layers and isinstance(window, int) and window < sequence:
        count = values.get("num_hidden_layers")
        yield (
            f"{layers} of {count} layers attend to windows of {window:,} tokens; they are priced as if they attended "
            f"to all {sequence:,}, which takes more time and FLOP than the model does"
        )
    for key in sorted(_FURTHER & values.keys()):
        if number := values[key]:
            yield (
                f"{key} is {number}: the layers that predict further tokens are left out, with their time and their "
                "parameters (as many as a block's and more), which would lie on the last pipeline rank"
            )
    for name in values.get("architectures") or ():
        if not str(name).endswith(HEADS) and not (str(name).endswith(CLASSIFIER) and known.classifies):
            yield f"{name} is priced with an output matrix of the vocabulary, which it may not have"
    read = NEUTRAL | _WINDOWS | _FURTHER | set(known.__struct_fields__)
    others = [key for key, value in values.items() if key not in read and value not in _OFF]
    if others:
        listed = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        yield f"not read, though they may change the model's size or time: {listed}"


def _layers_with_windows(values: Mapping[str, Any]) -> int:
    """How many layers attend to a window alone, by the rules of transformers' configurations."""
    layers, kind = values.get("num_hidden_layers"), values.get("model_type")
    if not isinstance(layers, int) or values.get("use_sliding_window") is False or not values.get("sliding_window"):
        return 0
    types = values.get("layer_types")
    if isinstance(types, list):
        return sum(of_layer == "sliding_attention" for of_layer in types)
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern", _EVERY.get(str(kind))))
    if isinstance(every, int) and every > 0:
        return layers - layers // every
    first = values.get("max_window_layers") if kind in ("qwen2", "qwen3", "qwen3_moe") else 0
    return max(layers - first, 0) if isinstance(first, int) else layers
