"""Plans of transformers: its own styles for its own models, and gathered where a plan divides in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draw_counts import counts
from drawn_plans import LLAMA_WEIGHTS, draw_llama, llama_plan

from automap_models.export.hf import TARGET, even_layers, tp_styles
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.target import Source


def document(source: Source) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(TARGET.write(source, Path("plan.json")).text)
    return read


def test_megatrons_plan_of_llama_is_the_one_that_transformers_ships() -> None:
    """transformers.models.llama.configuration_llama.LlamaConfig.base_model_tp_plan."""
    config = pytest.importorskip("transformers").LlamaConfig
    read = document(llama_plan(LLAMA_WEIGHTS, {"model.embed_tokens": -1, "lm_head": 0}))
    assert read["base_model_tp_plan"] == config.base_model_tp_plan
    assert read["tp_plan"] == {"lm_head": "colwise_gather_output"}
    assert read["tp_size"] == 2


def test_a_layer_divided_in_part_gathers_what_it_makes_and_splits_what_it_takes() -> None:
    read = document(llama_plan(LLAMA_WEIGHTS | {"self_attn.k_proj": -1, "mlp.up_proj": -1}, {"model.embed_tokens": 1}))
    assert read["base_model_tp_plan"] == {
        "embed_tokens": "embedding_colwise",
        "layers.*.self_attn.q_proj": "colwise_gather_output",
        "layers.*.self_attn.v_proj": "colwise_gather_output",
        "layers.*.self_attn.o_proj": "rowwise_split_input",
        "layers.*.mlp.gate_proj": "colwise_gather_output",
        "layers.*.mlp.down_proj": "rowwise_split_input",
    }


@pytest.mark.parametrize(
    ("name", "shape", "dim", "sentence"),
    [
        ("params/block_0/kernel", (8, 8), 1, "no weight of a torch module"),
        ("conv.weight", (8, 8, 3, 3), 2, "dimension 2 of conv.weight"),
        ("norm.weight", (8,), 0, "dimension 0 of norm.weight"),
    ],
)
def test_what_transformers_has_no_style_for_is_refused(
    name: str, shape: tuple[int, ...], dim: int, sentence: str
) -> None:
    with pytest.raises(Inexpressible, match=sentence):
        tp_styles({name: (shape, dim)}, "model")


def test_layers_partitioned_in_different_ways_are_refused() -> None:
    weights = {"layers.0.up.weight": ((8, 8), 0), "layers.1.up.weight": ((8, 8), 1)}
    with pytest.raises(Inexpressible, match="different ways in different layers"):
        tp_styles(weights, "model")


@pytest.mark.parametrize("layers", range(1, 40))
def test_stages_are_those_of_transformers_own_pipeline(layers: int) -> None:
    pytest.importorskip("transformers")
    from transformers.distributed.pipeline_parallel import PipelineStage

    for stages in range(1, min(8, layers) + 1):
        stage = object.__new__(PipelineStage)
        stage.pp_size = stages
        own = [stage.layer_range_for_rank(rank, layers) for rank in range(stages)]
        assert even_layers(layers, stages) == tuple(stop - begin for begin, stop in own)


@pytest.mark.parametrize("draws", counts(20, 60, 1000))
def test_transformers_takes_random_plans_for_its_llama(draws: int, tmp_path: Path) -> None:
    """Its setter of `tp_plan` validates styles and names; every module that the plan divides gets its rule."""
    pytest.importorskip("transformers")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    modules = {name for name, _ in model.named_modules()}
    rng, path = np.random.default_rng(4), tmp_path / "plan.json"
    for _ in range(draws):
        dims, around = draw_llama(rng)
        source = llama_plan(dims, around)
        path.write_text(TARGET.write(source, path).text, encoding="utf-8")
        assert TARGET.check(source, path).startswith("transformers ")
        read = document(source)
        whole = {f"model.{name}": style for name, style in read["base_model_tp_plan"].items()} | read["tp_plan"]
        model.tp_plan = whole
        divided = {f"model.layers.*.{name}": dim for name, dim in dims.items()} | around
        expected = {name: "row" if dim else "col" for name, dim in divided.items() if dim >= 0}
        if (at := expected.get("model.embed_tokens")) is not None:  # words are rows of an embedding's weight
            expected["model.embed_tokens"] = {"col": "row", "row": "col"}[at]
        assert {name: style.removeprefix("embedding_")[:3] for name, style in model.tp_plan.items()} == expected
        assert {name.replace("*", "0") for name in whole} <= modules
