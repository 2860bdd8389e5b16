"""Keys of a config.json that change a model are priced or named; transformers says what they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automap_models.errors import BadInput
from automap_models.infer.commands import plan, profile, search
from automap_models.workloads.config_families import families
from automap_models.workloads.config_json import ConfiguredModel, config_notes, decode_config

from .hugging_face import FAMILIES, configuration
from .test_config_json import parameters

UNCLASSIFIED = (
    "bert cwm dots1 ernie4_5 ernie4_5_moe glm4_moe granite granitemoe minimax_m2 mt5 nemotron_h olmo2 olmoe "
    "qwen3_5_moe_text t5"
)
CLASSIFIERS = sorted(set(FAMILIES) - set(UNCLASSIFIED.split()))
"""Families whose models that classify are known; transformers has none of OLMo 2's."""


def decoded(values: dict[str, Any], **options: Any) -> ConfiguredModel:
    return decode_config(json.dumps(values).encode(), "m", where="config.json", **options)


def notes(values: dict[str, Any], sequence: int = 16) -> tuple[str, ...]:
    return tuple(config_notes(values, values["model_type"], sequence))


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("model_type", CLASSIFIERS)
def test_a_model_that_classifies_has_the_parameters_of_transformers_model(model_type: str, labels: int) -> None:
    """A reward model of Llama's counted 8.030 B parameters in place of 7.505: the vocabulary's output matrix."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = configuration(model_type, num_labels=labels)
    base = FAMILIES[model_type][1].removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    name = f"{'Gemma3Text' if base == 'Gemma3' else base}ForSequenceClassification"
    with torch.device("meta"):
        model = getattr(hf, name)(config)
    values = {**config.to_dict(), "architectures": [name]}
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(decoded(values).architecture) == expected
    assert not any("output matrix" in note for note in notes(values))


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_published_file_of_a_family_s_own_keys_gets_no_note(model_type: str) -> None:
    pytest.importorskip("transformers")
    values = configuration(model_type).to_dict()
    assert notes({**values, "architectures": [FAMILIES[model_type][1]], "num_nextn_predict_layers": 0}) == ()


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gemma2", {}),
        ("gemma3_text", {}),
        ("mistral", {}),
        ("mixtral", {"sliding_window": 4096}),
        ("phi3", {"sliding_window": 4096}),
        ("starcoder2", {"sliding_window": 4096}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 40}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 40}),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_layers_with_windows_are_those_of_transformers(model_type: str, changes: dict[str, Any], listed: bool) -> None:
    pytest.importorskip("transformers")
    values = configuration(model_type, num_hidden_layers=62, **changes).to_dict()
    types = values.get("layer_types")
    expected = 62 if types is None else types.count("sliding_attention")
    if not listed:  # as files before transformers 4.53 are
        values.pop("layer_types", None)
    assert 0 < expected <= 62
    (note,) = notes(values, sequence=8192)
    assert note.startswith(f"{expected} of 62 layers attend to windows of 4,096 tokens")
    assert notes(values, sequence=4096) == ()


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@pytest.mark.parametrize("key", ["index_topk", "quantization_config", "share_expert_dim", "vision_config"])
def test_what_no_family_knows_is_named(model_type: str, key: str) -> None:
    for value in (7, {"width": 3}):
        assert notes({"model_type": model_type, key: value}) == (
            f"not read, though they may change the model's size or time: {key}",
        )
    assert notes({"model_type": model_type, key: None}) == ()


@pytest.mark.parametrize("dense", [0, 1, 2])
def test_a_mixture_whose_first_layers_are_dense_has_the_parameters_of_transformers_model(dense: int) -> None:
    """Qwen3's files with `mlp_only_layers` were to be "written again", as if something were wrong with them."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = configuration("qwen3_moe", num_hidden_layers=3, mlp_only_layers=list(range(dense)))
    with torch.device("meta"):
        model = hf.Qwen3MoeForCausalLM(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(decoded(config.to_dict()).architecture) == expected


def test_a_model_that_names_the_class_of_a_known_family_is_read_as_one() -> None:
    """Kimi K2 is DeepSeek V3 in all but its model_type; others are offered a factory, which works for any model."""
    pytest.importorskip("transformers")
    values = {**configuration("deepseek_v3").to_dict(), "num_nextn_predict_layers": 0}
    named = {**values, "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    assert decoded(named).architecture == decoded(values).architecture
    assert decoded(named).notes == (
        "model_type kimi_k2 is read as deepseek_v3, the family that its architectures name",
    )
    with pytest.raises(BadInput, match=r"\$\.model_type is 'kimi_k2', not one of bert, .*, or a factory of your own"):
        decoded({**values, "model_type": "kimi_k2"})


def test_the_help_of_every_command_that_reads_configs_lists_all_families() -> None:
    for module in (plan, profile, search):
        listed = module.EPILOG.split("Known values of model_type:")[1].split("a factory")[0]
        assert listed.replace(",", " ").split() == list(families())


def test_layers_for_further_tokens_and_heads_of_other_kinds_are_named() -> None:
    (further,) = notes({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    assert "num_nextn_predict_layers is 1" in further
    (head,) = notes({"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    assert (
        head == "BertForSequenceClassification is priced with an output matrix of the vocabulary, which it may not have"
    )
