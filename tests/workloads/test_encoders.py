"""Encoders, encoder-decoders and models of sound and images: their products, and what strategies divide."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.core.sublayer_sizes import Window
from automap_models.cost.layer_times import model_flop
from automap_models.errors import BadInput
from automap_models.export.megatron import LIMITS as MEGATRON
from automap_models.export.torchtitan import LIMITS as TORCHTITAN
from automap_models.workloads.config_json import ConfiguredModel, decode_config
from automap_models.workloads.registry import configured
from automap_models.workloads.sublayers import keys_read
from automap_models.workloads.training import jax_model

from .hugging_face import configuration, model_of

TOKENS, SOURCE = 10, 12
KINDS = ("roberta", "distilbert", "electra", "nomic_bert", "bart", "pegasus", "whisper", "vit", "dinov2")


def decoded(config: Any, **options: Any) -> ConfiguredModel:
    return decode_config(json.dumps(config.to_dict(), default=str).encode(), "m", where="config.json", **options)


def work_of(model_type: str, **changes: Any) -> ModelWork:
    model = decoded(configuration(model_type, **changes))
    return configured(model, sequence=TOKENS if model.sequence else None, dtype="float32").work()


def inputs_of(model_type: str) -> dict[str, Any]:
    """What a step of transformers' model reads, of one sample."""
    torch = pytest.importorskip("torch")
    ids = torch.ones((1, TOKENS), dtype=torch.int64)
    match model_type:
        case "whisper":
            return {"input_features": torch.ones(1, 5, 2 * SOURCE), "decoder_input_ids": ids}
        case "vit" | "dinov2":
            return {"pixel_values": torch.ones(1, 3, 12, 12)}
        case "bart" | "pegasus":
            return {"input_ids": ids, "decoder_input_ids": ids}
    return {"input_ids": ids}


@pytest.mark.parametrize("model_type", KINDS)
def test_the_products_have_the_flop_that_torch_counts(model_type: str) -> None:
    """Of both passes, but for gradients of pixels and of sound, which torch leaves out of convolutions as well."""
    pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    model = model_of(configuration(model_type), attn_implementation="eager")
    with counter.FlopCounterMode(display=False) as counted:
        model(**inputs_of(model_type)).logits.sum().backward()
    work = work_of(model_type)
    flop = sum(model_flop(work.layers[k].kernels) for k in work.order)
    assert flop == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_a_decoder_reads_as_many_frames_of_sound_as_the_encoder_makes() -> None:
    """Whisper: blocks of the encoder hand on 12 rows, those of the decoder 10 rows and these again, of 16 numbers."""
    work = work_of("whisper")
    boundaries = [work.layers[k].boundary.values.tolist() for k in work.order]
    assert boundaries == [[4 * SOURCE * 16]] * 4 + [[4 * TOKENS * 16, 4 * SOURCE * 16], [4 * TOKENS * 16], []]
    assert [work.layers[k].causal for k in work.order[1:-1]] == [False] * 3 + [True] * 2
    (shared,) = work.shared
    assert (shared.parameters, shared.places) == (40 * 16, (4, 6))  # the decoder's first block, and the logits


def test_a_table_of_three_places_is_summed_over_those_that_hold_it() -> None:
    """BART's tokens are embedded before both stacks, and read as the output matrix."""
    (shared,) = work_of("bart").shared
    assert (shared.parameters, shared.places) == (40 * 16, (0, 4, 6))


@pytest.mark.parametrize("tokens", [5, 24, 100])
def test_half_a_window_lies_on_either_side_of_a_query_of_an_encoder(tokens: int) -> None:
    """ModernBERT's local attention of 8 reads 4 keys before a query and 4 after it, fewer at the ends."""
    read = [min(i + 4, tokens - 1) - max(i - 4, 0) + 1 for i in range(tokens)]
    assert tokens * keys_read(tokens, Window(tokens=8), causal=False) == pytest.approx(sum(read))


def test_layers_with_windows_of_modernbert_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    config = configuration("modernbert", num_hidden_layers=22)
    values = config.to_dict()
    listed, counted = values.pop("layer_types"), {**values, "global_attn_every_n_layers": 3}
    model = decode_config(json.dumps(counted).encode(), "m", where="config.json").architecture
    assert ["w" in block for block in model.sublayers] == [kind == "sliding_attention" for kind in listed]  # type: ignore[union-attr]


def test_frameworks_that_have_no_encoders_refuse_them_by_name() -> None:
    """torchtitan trains decoders; Megatron has other programs for encoders than for decoders."""
    strategy = Strategy(micro_batch=1, global_batch=8, dp=8)
    for model_type in ("roberta", "bart", "vit"):
        facts = work_of(model_type).facts
        objection = TORCHTITAN.degrees_objection(strategy, facts)
        assert objection is not None and objection.what == "torchtitan has no encoders, and this model has some"
        assert MEGATRON.degrees_objection(strategy, facts) is None


def test_a_model_of_images_takes_no_sequence_and_is_not_traced() -> None:
    pytest.importorskip("transformers")
    model = decoded(configuration("vit"))
    with pytest.raises(BadInput, match="reads images"):
        configured(model, sequence=64)
    with pytest.raises(BadInput, match="the encoder of images of this model are priced by strategies, and not traced"):
        jax_model(model.architecture, "float32")


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "electra"])
def test_relatives_of_bert_are_traced_with_the_parameters_of_the_closed_forms(model_type: str) -> None:
    pytest.importorskip("flax")
    import numpy as np

    step = configured(decoded(configuration(model_type)), sequence=TOKENS, dtype="float32").step()
    traced = sum(int(np.prod(shape.shape)) for shape in step.arguments[0].values() for shape in _leaves(shape))
    work = work_of(model_type)
    assert traced == round(sum(work.layers[k].parameters.values.sum() for k in work.order))


def _leaves(tree: Any) -> list[Any]:
    return [leaf for value in tree.values() for leaf in _leaves(value)] if isinstance(tree, dict) else [tree]
