"""Models by name have the parameters that their cards and papers say, in the digits that are printed there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from workloads.test_config_json import parameters

from automap_models.errors import BadInput
from automap_models.infer.app import main
from automap_models.requests import ModelsRequest, solve
from automap_models.workloads.catalogue import MODEL_TYPES, WORKLOADS
from automap_models.workloads.registry import sized
from automap_models.workloads.sizes import DecoderConfig

ROUNDED = [name for name, workload in WORKLOADS.items() if workload.published]
MIXTURES = [name for name, workload in WORKLOADS.items() if workload.active]
GLM_TABLES = 2 * 151552
"""Rows of GLM-4.5's tables, which its report does not count (arXiv 2508.06471, table 1)."""
GLM_FURTHER = 161 * 3 * 5120 * 1536 + 2 * 5120 * (12288 + 1024) + 2 * 5120**2
"""Its layer that predicts further tokens, which the report counts: experts, attention, the product of two inputs."""
SCOUT_IMAGES = 34 * (4 * 1408**2 + 2 * 1408 * 5632) + 5632 * 4096 + 4096**2 + 4096 * 5120
"""Matrices of Llama 4's encoder of images and of what leads from it to the text, by the file's vision_config."""
COUNTED = {
    "glm-4.5": GLM_FURTHER - GLM_TABLES * 5120,
    "glm-4.6": GLM_FURTHER - GLM_TABLES * 5120,
    "llama4-scout": SCOUT_IMAGES,
    "whisper-large-v3": 1500 * 1280,  # sines for positions of sound, which are not trained
}
"""Name → parameters that the source counts and the model here has not, less those that it leaves out."""
UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


def agrees(count: float, published: str) -> bool:
    """Whether a number is the printed one within half of its last digit, or 0.5 %."""
    digits, _, unit = published.partition(" ")
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2]) * UNITS.get(unit, 0.0)
    return abs(count - float(digits) * UNITS.get(unit, 1.0)) <= max(half, 0.005 * count)


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_those_that_the_card_says(name: str) -> None:
    count = parameters(sized(name).architecture)
    assert count == WORKLOADS[name].parameters
    assert agrees(count + COUNTED.get(name, 0), WORKLOADS[name].published)


@pytest.mark.parametrize("name", MIXTURES)
def test_active_parameters_are_those_that_the_card_says(name: str) -> None:
    """Cards count all that a token passes, or leave out the first table, or both; a router counts as it is."""
    model = sized(name).architecture
    assert isinstance(model, DecoderConfig)
    assert model.mixture is not None
    mixture, total = model.mixture, WORKLOADS[name].parameters
    layers = sum("E" in block for block in model.blocks) if model.blocks else model.layers - model.dense_layers
    router = layers * (model.width + mixture.bias)
    experts = total - parameters(replace(model, mixture=replace(mixture, experts=mixture.experts - 1))) - router
    active = total - (mixture.experts - mixture.per_token) * experts
    tables = (0, 1, 2)
    assert any(agrees(active - n * model.vocabulary * model.width, WORKLOADS[name].active) for n in tables)


def test_a_word_of_the_name_or_of_the_family_chooses_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert [model.name for model in solve(ModelsRequest("llama2"))] == ["llama2-7b", "llama2-13b", "llama2-70b"]
    assert {model.model_type for model in solve(ModelsRequest("gpt_oss"))} == {"gpt_oss"}
    assert main(["models", "llama3-70b", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["layers"], model["hidden"], model["parameters"]) == (80, 8192, 70_553_706_496)
    assert "arXiv 2407.21783" in model["source"]


def test_a_model_of_images_has_the_layers_of_its_text_and_all_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of the published weights, to the last one, of four towers and projectors."""
    published = {
        "qwen2-vl-7b": (28, 3584, 8_291_375_616),
        "qwen2.5-vl-72b": (80, 8192, 73_410_777_344),
        "qwen3-vl-8b": (36, 4096, 8_767_123_696),
        "qwen3-vl-30b-a3b": (48, 2048, 31_070_754_032),
        "llava-1.5-7b": (32, 4096, 7_063_427_072),
        "paligemma-3b": (18, 2048, 2_923_466_480),
    }
    for name, sizes in published.items():
        assert main(["models", name, "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert (model["layers"], model["hidden"], model["parameters"]) == sizes


def test_a_name_of_the_hub_is_found() -> None:
    """`automap models Qwen/Qwen3-8B` was in no name, while `automap plan` took it."""
    assert [model.name for model in solve(ModelsRequest("Qwen/Qwen3-8B"))] == ["qwen3-8b"]


def test_all_models_and_all_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [model.name for model in solve(ModelsRequest())] == list(WORKLOADS)
    assert main(["models", "--families"]) == 0
    assert tuple(capsys.readouterr().out.split()) == MODEL_TYPES
    assert main(["models"]) == 0
    assert all(name in capsys.readouterr().out for name in ("vgg19",))


def test_a_word_of_no_name_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(BadInput, match=r"^lhama3-8b: is in no name and no family; did you mean llama3-8b, .*"):
        solve(ModelsRequest("lhama3-8b"))
