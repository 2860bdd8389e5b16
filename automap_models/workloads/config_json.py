"""A Hugging Face config.json as a model: the sizes in it, in the words of its family.

Only the file is read. What changes neither shapes nor costs is ignored: initialisation, the scaling of rotary positions
to longer sequences, how a router limits and balances the experts it chooses. What does and is not priced, such as
windows of attention, is named: every key is either read by its family, of no consequence (`NEUTRAL`), or named in a
sentence, so that no key that changes a model is read over. Dropout of BERT and GPT-2 is left out unless it is asked
for: few models are trained with it any more, whatever their files say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET, UnsetType

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, decode_json, read_bytes, wrong
from automap_models.workloads.catalogue import FACTORY, HAVE_DROPOUT, MODEL_TYPES, Dtype

if TYPE_CHECKING:
    from automap_models.workloads.sizes import Transformer

LARGEST_CONFIG_BYTES = 1 << 20
_DO = f"give the config.json of a model that is known: model_type {', '.join(MODEL_TYPES)}"
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
use_bfloat16 attention_multiplier embedding_multiplier logits_scaling residual_multiplier no_rope_layers
no_rope_layer_interval eod_token_id moe_norm_min moe_layer_end_index tf_legacy_loss _attn_implementation
attn_implementation tie_word_embeddings torch_dtype dtype time_step_min time_step_max time_step_limit time_step_floor
time_step_rank rescale_prenorm_residual use_mamba_kernels expand mamba_hidden_act mamba_ssm_cache_dtype mamba_ssm_dtype
moe_shared_expert_overlap mtp_layers_block_type mtp_hybrid_override_pattern output_gate_type attn_output_gate
"""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Keys that change neither shapes nor costs of a training step, or are of no use where the family does not read them.

Dropout that a family does not model is among them: it costs next to nothing beside the products.
"""
_WINDOWS = {
    *("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern"),
    *("_sliding_window_pattern", "layer_types", "attention_chunk_size"),
}
_FURTHER = frozenset({"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"})
_OFF: tuple[object, ...] = (None, False, 0, "", [], {}, "absolute")
"""Values of keys that ask for nothing; the last one is BERT's usual position_embedding_type."""


class ConfiguredModel(NamedTuple):
    """A model of a config.json.

    Attributes:
        name: the name of its folder, or of the file where that is not config.json.
        architecture: its sizes.
        sequence: tokens of a sample unless another number is asked for: as many as the model has positions for, at most
            8192, or 512 where it has no limit.
        longest: tokens that the model has learned positions for; None: any number.
        dtype: that it is published in.
        notes: on what the file says and nothing prices, for samples of `sequence` tokens.
    """

    name: str
    architecture: Transformer
    sequence: int
    longest: int | None
    dtype: Dtype
    notes: tuple[str, ...]


def is_config(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a Hugging Face config: by its name, or as a small JSON mapping with the key model_type.

    Raises:
        BadInput: the file cannot be read.
    """
    if Path(path).name == "config.json":
        return True
    if Path(path).suffix != ".json" or Path(path).stat().st_size > LARGEST_CONFIG_BYTES:
        return False
    try:
        return not isinstance(decode_json(read_bytes(path), _Family, where=str(path)).model_type, UnsetType)
    except BadInput:
        return False


def read_config(path: str | os.PathLike[str], *, dropout: bool = False, sequence: int | None = None) -> ConfiguredModel:
    """The model of a config.json.

    Args:
        dropout: whether the model has the dropout that the file says, which bert and gpt2 can have.
        sequence: tokens of a sample; None: see `ConfiguredModel`.

    Raises:
        BadInput: the file cannot be read, is no JSON, names an unknown family, lacks a key of its family, or holds a
            size that cannot be meant; dropout is asked for of another family.
    """
    file = Path(path)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    content = read_bytes(path, LARGEST_CONFIG_BYTES)
    return decode_config(content, name, where=str(path), dropout=dropout, sequence=sequence)


def decode_config(
    content: bytes, name: str, *, where: str, dropout: bool = False, sequence: int | None = None
) -> ConfiguredModel:
    """The model of a config.json's content.

    Args:
        name: of the model; empty: that of its family.
        where: what messages call the content.
        dropout, sequence: see `read_config`.

    Raises:
        BadInput: see `read_config`.
    """
    named = decode_json(content, _Family, where=where, do=_DO)
    kind = named.model_type
    if isinstance(kind, UnsetType):
        raise BadInput("$.model_type is missing", where=where, do=_DO)
    family = _family_of(kind, named.architectures)
    if family is None:
        do = f"give the config.json of a model of these, or {FACTORY}"
        raise wrong("$.model_type", kind, f"one of {', '.join(MODEL_TYPES)}", where, do)
    from automap_models.workloads.config_families import families, read_family

    if dropout and family not in HAVE_DROPOUT:
        do = "leave it out, or give a model of bert or gpt2"
        raise BadInput(f"is not known for models of {family}", where="`dropout`", do=do)
    config = read_family(families()[family], content, where, dropout=dropout)
    values = decode_json(content, dict[str, Any], where=where)
    tokens = sequence or min(config.context or 512, 8192)
    return ConfiguredModel(
        name=name or family,
        architecture=config.architecture,
        sequence=tokens,
        longest=config.context if config.learned else None,
        dtype=config.dtype,
        notes=tuple(config_notes(values, family, tokens)),
    )


def config_notes(values: Mapping[str, Any], family: str, sequence: int) -> Iterator[str]:
    """Sentences on what the file's values say and nothing prices, for samples of so many tokens."""
    from automap_models.workloads.config_families import families

    entry = families()[family]
    kind = values.get("model_type")
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
        if not str(name).endswith(HEADS) and not (str(name).endswith(CLASSIFIER) and entry.classifies):
            yield f"{name} is priced with an output matrix of the vocabulary, which it may not have"
    read = NEUTRAL | _WINDOWS | _FURTHER | set(entry.schema().__struct_fields__)
    others = [key for key, value in values.items() if key not in read and value not in _OFF]
    if others:
        listed = ", ".join(others[:12]) + (f" and {len(others) - 12} more" if len(others) > 12 else "")
        yield f"not read, though they may change the model's size or time: {listed}"


def _layers_with_windows(values: Mapping[str, Any]) -> int:
    """How many layers attend to a window alone, by the rules of transformers' configurations."""
    layers, kind = values.get("num_hidden_layers"), values.get("model_type")
    if not isinstance(layers, int) or values.get("use_sliding_window") is False or not values.get("sliding_window"):
        return 0
    types = values.get("layer_types")
    if isinstance(types, list):
        return sum(of_layer == "sliding_attention" for of_layer in types)
    every = {"gemma2": 2, "gemma3_text": 6}.get(str(kind))  # of how many layers one has no window
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern", every))
    if isinstance(every, int) and every > 0:
        return layers - layers // every
    first = values.get("max_window_layers") if kind in ("qwen2", "qwen3", "qwen3_moe") else 0
    return max(layers - first, 0) if isinstance(first, int) else layers


def described_config(config: object) -> str | None:
    """The text of a config object of transformers as config.json; None for what is none, or of an unknown family."""
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        return None
    values = to_dict()
    if not isinstance(values, dict) or _family_of(values.get("model_type"), None) is None:
        return None
    return json.dumps({key: value for key, value in values.items() if _is_plain(value)}, sort_keys=True)


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


class _Family(Foreign):
    """What tells the families apart."""

    model_type: object | UnsetType = UNSET
    architectures: object = None


def _family_of(kind: object, architectures: object) -> str | None:
    """The family of a file: its model_type, or the one whose class it names; None where neither is known.

    Models that are one of another family in all but their name say so in `architectures`: Kimi K2's is DeepSeek V3's.
    """
    if isinstance(kind, str) and kind in MODEL_TYPES:
        return kind
    if not isinstance(architectures, list) or not architectures:
        return None
    name = str(architectures[0]).removesuffix("ForCausalLM").lower()
    return next((family for family in MODEL_TYPES if family.replace("_", "") == name), None)
