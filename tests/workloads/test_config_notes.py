"""Keys of a config.json that change a model are priced or named; transformers says what they mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automap_models.errors import BadInput
from automap_models.infer import app
from automap_models.infer.commands import plan, profile, search
from automap_models.workloads.config_families import families
from automap_models.workloads.config_json import ConfiguredModel, decode_config
from automap_models.workloads.config_notes import config_notes
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.source import Source, SourceKind, notes_of

from .hugging_face import FAMILIES, configuration
from .test_config_json import parameters

UNCLASSIFIED = (
    "cohere cohere2 cwm deepseek_v32 dots1 ernie4_5 ernie4_5_moe exaone_moe gemma4_text glm4_moe glm4_moe_lite "
    "glm_moe_dsa granite granitemoe granitemoeshared hy_v3 llama4_text mamba2 mimo_v2_flash minimax_m2 "
    "minimax_m3_vl_text nemotron_h olmo2 olmoe solar_open "
    "qwen3_5_moe_text xglm granitemoehybrid codegen"
)
CLASSIFIERS = sorted({name for name in FAMILIES if families()[name].classifies} - set(UNCLASSIFIED.split()))
"""Families whose models that classify are known; transformers has none of OLMo 2's."""


def decoded(values: dict[str, Any], **options: Any) -> ConfiguredModel:
    return decode_config(json.dumps(values).encode(), "m", where="config.json", **options)


def notes(values: dict[str, Any]) -> tuple[str, ...]:
    return tuple(config_notes(values, values["model_type"]))


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
    model = decoded(values, sequence=8192).architecture
    assert isinstance(model, DecoderConfig)
    assert model.windowed_blocks(8192) == expected
    assert model.windowed_blocks(4096) == 0


def test_a_trace_has_no_windows_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configuration("gemma2", sliding_window=8).to_dict()))
    source = Source(str(path), SourceKind.CONFIG, sequence=16)
    (note,) = notes_of(source)
    assert note.startswith("1 layers attend to windows and are traced as if to all 16 tokens")
    assert notes_of(source, traced=False) == ()


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@pytest.mark.parametrize("key", ["mixer_of_my_own", "expert_capacity"])
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
    alone = decoded({**values, "model_type": "kimi_k2"})
    assert parameters(alone.architecture) == parameters(decoded(values).architecture)
    assert alone.notes[0].startswith("model_type kimi_k2 is read as deepseek_v2, the family whose keys")
    with pytest.raises(BadInput, match=r"'kimi_k9', not one of arcee, .* and no family reads my_mixer.*or a factory"):
        decoded({**values, "model_type": "kimi_k9", "my_mixer": "rwkv"})


@pytest.mark.parametrize("model_type", ["rwkv", "zamba2", "nemotron-nas"])
def test_models_with_layers_that_nothing_prices_are_refused_by_what_they_have(model_type: str) -> None:
    """Their keys were listed as unread, behind the names of all families."""
    with pytest.raises(
        BadInput, match=f"^config.json: .*model_type: models of {model_type} have .*, which nothing pri"
    ):
        decoded({"model_type": model_type, "vocab_size": 40})


def test_the_help_of_every_command_that_reads_configs_says_what_lists_all_families(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It listed them itself, in 17 lines."""
    assert all("(automap models --families)" in module.EPILOG for module in (plan, profile, search))
    assert app.main(["models", "--families"]) == 0
    assert capsys.readouterr().out.split() == list(families())


def test_layers_for_further_tokens_are_priced_and_heads_of_other_kinds_named() -> None:
    """DeepSeek-V3 has 11.6 B parameters of its own in the layer, and trains 682.6 B (arXiv 2412.19437, section 2.2)."""
    pytest.importorskip("transformers")
    values = {**configuration("deepseek_v3").to_dict(), "num_nextn_predict_layers": 1}
    (further,) = decoded(values).notes
    assert further.startswith("1 layer of multi-token prediction on the last rank, as the file says")
    assert decoded(values, mtp=0).notes == ()
    sizes = [decoded(values, mtp=number).architecture for number in (0, 1, 3)]
    none, one, three = map(parameters, sizes)
    width = configuration("deepseek_v3").hidden_size
    deeper = decoded({**values, "num_hidden_layers": 3}, mtp=0).architecture
    assert one - none == parameters(deeper) - none + 2 * width * width + 3 * width  # a block, a product, three norms
    assert three - none == 3 * (one - none)
    (head,) = notes({"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    assert (
        head == "BertForSequenceClassification is priced with an output matrix of the vocabulary, which it may not have"
    )


def test_of_a_file_with_an_unknown_tower_the_language_model_is_read_and_the_tower_named() -> None:
    pytest.importorskip("transformers")
    text = {**configuration("qwen3").to_dict(), "model_type": "qwen3_vl_text"}
    model = decoded({"model_type": "vl_of_my_own", "text_config": text, "vision_config": {"depth": 2}})
    assert model.architecture == decoded(text).architecture
    assert model.notes[0].startswith("vision_config is left out, with its tower's time and parameters")


def test_infinity_of_pythons_json_is_read() -> None:
    pytest.importorskip("transformers")
    values = {**configuration("llama").to_dict(), "time_step_limit": [0.0, float("inf")]}
    assert parameters(decoded(values).architecture) == parameters(
        decoded(configuration("llama").to_dict()).architecture
    )


def test_a_deep_model_with_windows_is_traced_from_a_few_of_its_blocks() -> None:
    """The few have the letters of all: they were taken for layers in an order of their own, and refused."""
    pytest.importorskip("transformers")
    model = decoded(configuration("gemma2", num_hidden_layers=62).to_dict()).architecture
    assert isinstance(model, DecoderConfig)
    assert model.windowed_blocks(8192) == 31
    assert replace(model, layers=4).untraced is None


def test_an_unknown_type_is_read_as_llama_where_that_reads_all_of_it() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    content = json.dumps({"model_type": "new_name", "vocab_size": 96, "max_position_embeddings": 64, **sizes})
    note = decode_config(content.encode(), "new", where="config.json").notes[0]
    assert note.startswith("model_type new_name is read as llama, the family whose keys")


def test_a_recurrence_of_another_name_is_no_mamba_2() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "conv_kernel": 4, "expand": 2}
    content = json.dumps({"model_type": "mamba9", "vocab_size": 96, "time_step_rank": 48, **sizes})
    with pytest.raises(BadInput, match="model_type is 'mamba9'"):
        decode_config(content.encode(), "old", where="config.json")
