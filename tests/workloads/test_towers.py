"""Towers of images against transformers' models, and where strategies have them against counts by hand."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from strategy_problems import DEVICE, estimated

from automap_models.core.cluster import Cluster
from automap_models.core.model_work import ModelWork, TowerLayers
from automap_models.core.strategy import Strategy
from automap_models.core.tuning import FULL, Training
from automap_models.cost.layer_times import model_flop
from automap_models.errors import BadInput
from automap_models.export.targets import training_limits
from automap_models.workloads.config_json import ConfiguredModel, decode_config
from automap_models.workloads.registry import configured
from automap_models.workloads.sizes import DecoderConfig, Tower

TEXT = {
    **{"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 8192, "pad_token_id": 0},
    **{"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False},
}
HEADS = {**TEXT, "head_dim": 8}
ROPE = {**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
QWEN = {"depth": 4, "num_heads": 2, "patch_size": 21, "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32}
CLIP = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2},
    **{"image_size": 16, "patch_size": 4},
}
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA = {**TEXT, "model_type": "llama"}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VL", ROPE, {"depth": 4, "num_heads": 2, "embed_dim": 16, "hidden_size": 32}, {}),
    "qwen2_5_vl": ("Qwen2_5_VL", ROPE, {**QWEN, "window_size": 84, "fullatt_block_indexes": [1]}, {}),
    "qwen3_vl": ("Qwen3VL", HEADS, {**QWEN, "num_position_embeddings": 64, "deepstack_visual_indexes": [1, 2]}, {}),
    "glm4v": ("Glm4v", {**HEADS, **ROPE, "head_dim": 8}, {**QWEN, "image_size": 84}, {}),
    "kimi_k25": (
        "Kimi_K25",
        {**HEADS, "model_type": "llama"},
        {**CLIP, "pos_emb_height": 8, "pos_emb_width": 8, "patch_size": 21, "image_size": None},
        {"projection_hidden_size": 16},
    ),
    "internvl": ("InternVL", {**HEADS, "model_type": "qwen2"}, {**CLIP, "attention_bias": True}, {}),
    "llama4": (
        "Llama4",
        {**HEADS, "num_local_experts": 2, "intermediate_size_mlp": 36},
        {
            **{**CLIP, "intermediate_size": 64, "projector_input_dim": 20, "projector_output_dim": 20},
            "vision_output_dim": 20,
        },
        {},
    ),
    "llava": ("Llava", LLAMA, {**CLIP, "model_type": "clip_vision_model"}, {"vision_feature_layer": -1}),
    "llava_next": ("LlavaNext", LLAMA, {**CLIP, "model_type": "clip_vision_model"}, {}),
    "llava_onevision": ("LlavaOnevision", {**TEXT, "model_type": "qwen2"}, SIGLIP, {}),
    "gemma3": ("Gemma3", {**HEADS, "tie_word_embeddings": True}, SIGLIP, {"mm_tokens_per_image": 4}),
    "paligemma": (
        "PaliGemma",
        {**HEADS, "tie_word_embeddings": True, "model_type": "gemma"},
        SIGLIP,
        {"projection_dim": 32},
    ),
    "mistral3": ("Mistral3", {**HEADS, "model_type": "mistral"}, {**CLIP, "model_type": "pixtral"}, {}),
    "idefics3": ("Idefics3", LLAMA, CLIP, {"scale_factor": 2, "pad_token_id": 0}),
    "smolvlm": ("SmolVLM", LLAMA, CLIP, {"scale_factor": 2, "pad_token_id": 0}),
}
"""model_type → name of transformers' classes, sizes of the text, of the tower, and beside both."""


def configuration(model_type: str, factors: Mapping[str, int] | None = None) -> Any:
    """Of a small model whose tower has some sizes so many times as large."""
    hf = importlib.import_module("transformers")
    name, text, vision, outer = MODELS[model_type]
    outer = {"tie_word_embeddings": text["tie_word_embeddings"], **outer}
    times = factors or {}
    given = {key: value for key, value in vision.items() if value is not None}
    vision = {key: times[key] * value if key in times else value for key, value in given.items()}
    return getattr(hf, f"{name}Config")(text_config=text, vision_config=vision, **outer)


def decoded(values: dict[str, Any], **options: Any) -> ConfiguredModel:
    return decode_config(json.dumps(values, default=str).encode(), "m", where="config.json", **options)


def work_of(values: dict[str, Any], training: Training = FULL, **options: Any) -> ModelWork:
    return configured(decoded(values, **options), dtype="float32").work(training)


def parameters(parts: tuple[TowerLayers, ...]) -> int:
    return round(sum(part.copies * part.layer.parameters.values.sum() for part in parts))


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_a_model_of_images_has_the_parameters_of_transformers_model(model_type: str) -> None:
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = configuration(model_type)
    with torch.device("meta"):
        model = getattr(hf, f"{MODELS[model_type][0]}ForConditionalGeneration")(config)
    work = work_of(config.to_dict())
    text = round(sum(work.layers[k].parameters.values.sum() for k in work.order))
    assert text + parameters(work.tower) == sum(parameter.numel() for parameter in model.parameters())


def tower_of(config: Any) -> Tower:
    architecture = decoded(config.to_dict()).architecture
    assert isinstance(architecture, DecoderConfig) and architecture.tower is not None
    return architecture.tower


def image(config: Any) -> dict[str, Any]:
    """What a tower reads of one image: zeros."""
    torch, tower = importlib.import_module("torch"), tower_of(config)
    if config.model_type not in ("glm4v", "qwen2_5_vl", "qwen3_vl"):
        sizes = {"image_sizes": torch.tensor([[tower.side, tower.side]])} if config.model_type == "mistral3" else {}
        return {"pixel_values": torch.zeros(1, 3, tower.side, tower.side), **sizes}
    side = tower.side // config.vision_config.patch_size
    pixels = torch.zeros(tower.patches, tower.patch_numbers)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]])}


@pytest.mark.parametrize("model_type", ["gemma3", "glm4v", "internvl", "llava", "qwen2_5_vl", "qwen3_vl"])
def test_the_products_of_a_tower_have_the_flop_that_torch_counts(model_type: str) -> None:
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    config = configuration(model_type)
    name = MODELS[model_type][0]
    config._attn_implementation = "eager"
    model = getattr(hf, f"{name}ForConditionalGeneration")._from_config(config, attn_implementation="eager").model
    with counter.FlopCounterMode(display=False) as counted:
        features = model.get_image_features(**image(config)).pooler_output
        (features if torch.is_tensor(features) else torch.cat(list(features))).sum().backward()
    priced = work_of(config.to_dict()).tower
    flop = sum(part.copies * model_flop(part.layer.kernels) for part in priced)
    assert flop == pytest.approx(counted.get_total_flops(), rel=0.02)


VALUES = {"model_type": "llava", "text_config": LLAMA, "vision_config": {**CLIP, "model_type": "clip_vision_model"}}
CLUSTER = Cluster(1, 4, 1e11, 1e10, 80e9)
WIDTH, PATCHES, IMAGES = 16, 16, 3
ROWS = IMAGES * (PATCHES + 1)
PLAIN = Strategy(micro_batch=1, global_batch=4, dp=2, pp=2, layers=(1, 1))


def saved_by_tower(strategy: Strategy) -> float:
    """Bytes that images add to the activations of the first rank; of the last one they add none."""
    with_images, text = (
        estimated(work_of(VALUES, images=images), strategy, CLUSTER, DEVICE).memory for images in (IMAGES, 0)
    )
    assert with_images[1] == text[1]
    return with_images[0].activations - text[0].activations


def test_a_tower_lies_on_the_first_rank_and_saves_no_less_with_context_and_sequence_parallelism() -> None:
    """Megatron's tower runs whole on every device of cp, and without sequence parallelism."""
    expected = saved_by_tower(PLAIN)
    assert expected > 0
    assert saved_by_tower(replace(PLAIN, dp=1, cp=2)) == pytest.approx(expected)
    divided = replace(PLAIN, dp=1, tp=2)
    assert saved_by_tower(replace(divided, sequence_parallel=True)) == pytest.approx(saved_by_tower(divided))
    assert 0.5 * expected < saved_by_tower(divided) < expected


def test_a_tower_recomputes_with_the_first_block() -> None:
    """Of each block its input is saved, 2 bytes a number, and twice on the first of two ranks."""
    none, full = (saved_by_tower(replace(PLAIN, recompute=kind)) for kind in ("none", "full"))
    blocks = [part.layer for part in work_of(VALUES, images=IMAGES).tower if part.recomputes]
    saved = sum(float(layer.saved.values.sum()) for layer in blocks) / 2 * CLIP["num_hidden_layers"]  # of float32
    assert none - full == pytest.approx(2 * (saved - 2 * CLIP["num_hidden_layers"] * ROWS * WIDTH))


def test_a_frozen_tower_has_no_backward_pass_and_its_projector_trains_through_frozen_text() -> None:
    frozen = work_of(VALUES, Training(freeze=("vision",)))
    *before, projector = frozen.tower
    assert parameters(tuple(before)) == 0 and not any(part.layer.backward for part in before)
    assert parameters((projector,)) == 32 * 16 + 32 + 32 * 32 + 32
    aligned = work_of(VALUES, Training(freeze=("vision", "embedding", "block_*", "head")))
    assert parameters(aligned.tower) == parameters((projector,))
    assert all(aligned.layers[k].backward and not aligned.layers[k].parameters.values.any() for k in aligned.order[1:])


def test_adapters_leave_a_tower_frozen() -> None:
    work = work_of(VALUES, Training(rank=4))
    assert parameters(work.tower) == 0 and not any(part.layer.backward for part in work.tower)


@pytest.mark.parametrize("images", [1, 5])
def test_images_are_encoded_one_by_one(images: int) -> None:
    one, several = (
        sum(part.copies * model_flop(part.layer.kernels) for part in work_of(VALUES, images=number).tower)
        for number in (1, images)
    )
    assert several == pytest.approx(images * one)


def test_what_is_priced_of_images_is_said() -> None:
    model = decoded(VALUES, images=IMAGES)
    assert model.notes[0] == (
        "a sample has 3 images of 16 x 16 pixels (`images`): 16 patches each in a tower of 3 layers on the first rank, "
        "48 of the 8,192 tokens"
    )
    assert decoded(VALUES, images=0).notes[0].startswith("vision_config is left out")
    assert decoded(VALUES, sequence=8).notes[0] == (
        "no image is priced: 1 image of 16 x 16 pixels are 16 tokens, and a sample has 8"
    )


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        (VALUES, {"images": 600}, "600 images of 16 x 16 pixels are 9,600 tokens, and a sample has 8,192"),
        (LLAMA, {"images": 1}, "has no tower of images"),
        ({**VALUES, "model_type": "mine"}, {"images": 1}, "has a tower that is not known"),
        (VALUES, {"images": -1}, "must be 0 to 10000"),
        (VALUES, {"mtp": 17}, "must be 0 to 16"),
    ],
)
def test_images_that_a_model_cannot_have_are_refused(
    values: dict[str, Any], options: dict[str, int], reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        decoded(values, **options)


def test_images_of_any_size_have_as_many_tokens_as_they_are_said_to() -> None:
    """Of Qwen2.5-VL four patches are a token; 24 × 24 are those of 1,008 pixels a side and patches of 21."""
    values = {"model_type": "qwen2_5_vl", "text_config": ROPE, "vision_config": {**QWEN, "fullatt_block_indexes": [1]}}
    usual, same, small = (decoded(values, images=2, image_tokens=n) for n in (None, 576, 100))
    assert usual.architecture == same.architecture
    assert isinstance(small.architecture, DecoderConfig) and small.architecture.tower is not None
    assert (small.architecture.tower.patches, small.architecture.tower.image_tokens) == (400, 100)
    assert small.notes[0].endswith("400 patches each in a tower of 4 layers on the first rank, 200 of the 8,192 tokens")


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        (VALUES, {"image_tokens": 5}, "`image_tokens`: all images have as many tokens"),
        (VALUES, {"images": 0, "image_tokens": 5}, "`image_tokens`: is of images, and there are none"),
        (LLAMA, {"image_tokens": 5}, "has no tower of images; leave `image_tokens` out"),
        (VALUES, {"image_tokens": 0}, "must be 1 to 100000"),
        (
            {**VALUES, "vision_config": {**CLIP, "model_type": "clip_vision_model", "patch_size": []}},
            {"images": 1},
            r"patch_size is \[\]",
        ),
        ({**LLAMA, "model_type": "mixtral", "num_experts_per_tok": []}, {}, r"num_experts_per_tok is \[\]"),
    ],
)
def test_sizes_that_images_cannot_have_are_refused(
    values: dict[str, Any], options: dict[str, int], reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        decoded(values, **options)


def test_tensor_parallelism_divides_the_heads_of_the_tower() -> None:
    shape = work_of(VALUES).shape
    assert shape.tower_heads == 2
    with pytest.raises(BadInput, match="4 does not divide the 2 heads of the tower"):
        Strategy(micro_batch=1, global_batch=4, tp=4).require_model(replace(shape, heads=4, kv_heads=4))


# --- texts against images


_DUAL = {
    **{"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 32, "patch_size": 4},
}
_TEXT = {
    **{"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 28},
    **{"max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
}
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": (
        "CLIP",
        {
            **{"text_config": {**_TEXT, "projection_dim": 12}, "projection_dim": 12},
            **{"vision_config": {**_DUAL, "hidden_size": 24, "projection_dim": 12}},
        },
    ),
    "siglip": ("Siglip", {"text_config": _TEXT, "vision_config": {**_DUAL, "hidden_size": 16}}),
}
"""model_type → part of its classes' names, sizes. SigLIP's towers are as wide as each other."""


@pytest.mark.parametrize("model_type", sorted(PAIRS))
def test_two_towers_have_the_parameters_and_the_products_of_transformers_model(model_type: str) -> None:
    """But for the scores of texts against images, of which one text has one: CLIP multiplies 12 numbers."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    name, sizes = PAIRS[model_type]
    config = getattr(hf, f"{name}Config")(**sizes)
    model = getattr(hf, f"{name}Model")._from_config(config, attn_implementation="eager")
    work = work_of(config.to_dict())
    layers = [(work.layers[k], 1) for k in work.order] + [(part.layer, part.copies) for part in work.tower]
    count = round(sum(copies * layer.parameters.values.sum() for layer, copies in layers))
    assert count == sum(parameter.numel() for parameter in model.parameters())
    with counter.FlopCounterMode(display=False) as counted:
        given = {"input_ids": torch.ones((1, 16), dtype=torch.long), "pixel_values": torch.zeros(1, 3, 32, 32)}
        model(**given).logits_per_text.sum().backward()
    flop = sum(copies * model_flop(layer.kernels) for layer, copies in layers)
    assert flop == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_what_compares_texts_with_images_is_refused_by_programs_that_have_no_such_model() -> None:
    pytest.importorskip("transformers")
    values = configuration_of_pair("clip")
    read = decoded(values)
    assert read.notes[0].startswith("the scores of all texts of a step against all its images are left out")
    with pytest.raises(BadInput, match="is of a decoder"):
        work_of(values, Training(loss="dpo"))
    facts = work_of(values).facts
    limits = training_limits()
    strategy = Strategy(micro_batch=1, global_batch=1)
    assert {name for name, one in limits.items() if one.objection(strategy, facts) is None} == {
        "deepspeed",
        "accelerate",
    }


def configuration_of_pair(model_type: str) -> dict[str, Any]:
    hf = pytest.importorskip("transformers")
    name, sizes = PAIRS[model_type]
    values: dict[str, Any] = getattr(hf, f"{name}Config")(**sizes).to_dict()
    return values
