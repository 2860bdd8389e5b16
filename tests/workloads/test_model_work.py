"""The work of built-in models and of config.json files: parameters as published, and what has no work by layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automap_models.core.model_work import ModelWork
from automap_models.errors import BadInput
from automap_models.workloads.catalogue import WORKLOADS
from automap_models.workloads.source import read_model_work

TINY = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def _parameters(work: ModelWork) -> float:
    return float(sum(work.layers[k].parameters.values.sum() for k in work.order))


@pytest.mark.parametrize("name", ["bert48", "t5_11b", "gpt3_13b", "moe"])
def test_all_layers_together_have_the_published_parameters(name: str) -> None:
    work = read_model_work(name, sequence=64)
    assert _parameters(work) == WORKLOADS[name].parameters
    assert len(work.order) == work.shape.layers + 2
    assert work.dtype == "float32"


def test_a_config_is_a_model_with_its_own_sizes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    work = read_model_work(str(path), sequence=16)
    shape = work.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn) == (9, 32, 4, 2, 48)
    assert (shape.sequence, shape.vocabulary, shape.experts) == (16, 96, None)
    assert work.order == (0, *[1] * 9, 2) and work.dtype == "bfloat16"
    matrices = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    assert _parameters(work) == 2 * 96 * 32 + 9 * (matrices + 2 * 32) + 32


@pytest.mark.parametrize(
    ("what", "reason"),
    [("resnet50", "has no layers that a strategy can divide"), ("examples/vgg19_v100.npz", "is a profile")],
)
def test_what_is_no_transformer_is_refused(what: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_model_work(what)


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(BadInput, match="512 positions"):
        read_model_work("bert48", sequence=1024)
