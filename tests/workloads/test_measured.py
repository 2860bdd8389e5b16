"""The built-in model of a measured step, and its work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from observations import measured_step

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.model_work import LayerWork, ModelWork
from automap_models.core.strategy import TransformerShape
from automap_models.core.sublayer_sizes import Latent, Mixture, Rotary
from automap_models.cost.measured_step import MeasuredModel, MeasuredPasses
from automap_models.formats.hardware_yaml import read_device
from automap_models.workloads.measured import architecture_of, measured_passes, passes_work, step_work
from automap_models.workloads.sizes import transformer_shape
from automap_models.workloads.source import Source, SourceKind, profile_source

pytest.importorskip("flax")

from automap_models.hlo import measure

SHAPE = TransformerShape(
    name="small", layers=6, hidden=64, heads=4, kv_heads=2, ffn=96, sequence=32, vocabulary=128, experts=None
)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_an_architecture_has_the_sizes_that_were_measured(family: str) -> None:
    architecture = architecture_of(MeasuredModel(family=family, shape=SHAPE, tied=False, dropout=False))  # type: ignore[arg-type]
    assert transformer_shape(architecture, "small", 32) == SHAPE


def test_bert_has_as_many_heads_of_keys_as_of_queries() -> None:
    architecture = architecture_of(MeasuredModel(family="bert", shape=SHAPE, tied=True, dropout=True))
    assert transformer_shape(architecture, "small", 32) == replace(SHAPE, kv_heads=4)


def test_a_mixture_has_its_experts() -> None:
    shape = replace(SHAPE, experts=4)
    model = MeasuredModel(family="llama", shape=shape, tied=False, dropout=False, mixture=Mixture(4, 2, 96))
    architecture = architecture_of(model)
    assert transformer_shape(architecture, "small", 32) == shape


def parameters(work: ModelWork) -> float:
    return float(sum(work.layers[layer].parameters.values.sum() for layer in work.order))


@pytest.mark.parametrize("layers", [2, 6])
def test_the_work_of_a_measured_gpt_has_its_parameters(layers: int) -> None:
    """12h² + 13h parameters a block, (V + s)·h in embeddings, 2h in the last norm."""
    shape = replace(SHAPE, kv_heads=4, ffn=256, layers=layers)
    step, _ = measured_step("a", "b", 4, 1024, micro_batch=1)
    work = step_work(replace(step, model=replace(step.model, shape=shape)))
    assert work.shape == shape
    assert parameters(work) == layers * (12 * 64**2 + 13 * 64) + (128 + 32) * 64 + 2 * 64


DEEPSEEK_V3 = MeasuredModel(
    family="llama",
    shape=TransformerShape(
        **{"name": "DeepSeek-V3", "layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 2048},
        **{"sequence": 4096, "vocabulary": 129_280, "experts": 256},
    ),
    tied=False,
    dropout=False,
    head_width=128,
    mixture=Mixture(256, 8, 2048, 2048),
    dense_layers=3,
    dense_width=18_432,
    latent=Latent(query_rank=1536, rank=512, plain_width=128, rotary=Rotary(64), value_width=128),
)
"""As its config.json has it; its card counts 671 billion parameters, and 685 with the layer that predicts one more."""


@pytest.mark.parametrize(("predicting", "billions"), [(0, 671.0), (1, 682.5)])
def test_a_mixture_with_latent_attention_has_its_published_parameters(predicting: int, billions: float) -> None:
    """The predicting layer is a block of 11.5 billion; the card counts its embedding and head, too."""
    step, _ = measured_step("a", "b", 4, 1024, micro_batch=1)
    work = step_work(replace(step, model=replace(DEEPSEEK_V3, predicting_layers=predicting)))
    assert parameters(work) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_window_leaves_out_the_keys_before_it() -> None:
    """Of 32 tokens a window of 8: 1 + … + 8 and 24 times 8 scores, where causal attention has half of 32 × 32."""
    step, _ = measured_step("a", "b", 4, 1024, micro_batch=1)
    model = MeasuredModel(family="llama", shape=SHAPE, tied=False, dropout=False, windowed_layers=3)
    of_window, of_all = (step_work(replace(step, model=replace(model, window=window))) for window in (8, None))
    kinds = [of_window.layers[i] for i in of_window.order[1:-1]]
    assert [kind is kinds[0] for kind in kinds] == [True, False] * 3

    def core_flop(layer: LayerWork) -> float:
        core = layer.kernels.core
        return float(layer.kernels.sizes[core].prod(axis=1)[layer.kernels.kinds[core] == 0].sum())

    whole = core_flop(of_all.layers[of_all.order[1]])
    assert core_flop(kinds[1]) == whole
    assert core_flop(kinds[0]) / whole == pytest.approx((8 * 8 / 2 + 24 * 8) / (32 * 32 / 2))


TINY = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
ONCE = {"repeats": 1, "warmup": 0}


def _measured(source: Source) -> MeasuredPasses:
    profile = profile_source(source, read_device("cpu"), ONCE, lambda _: None, lambda *_: None)
    return measured_passes(profile, "tiny")


def _microseconds(module: object, graph: InstructionGraph, **_: object) -> tuple[np.ndarray, dict[str, object]]:
    """In place of a clock, which takes a minute to compile every operation."""
    return np.full(len(graph), 1e-6), {"times": "measured per instruction"}


def test_a_measured_profile_says_which_transformer_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of JAX and of PyTorch: both lead to the same parameters, and to the times of the profile."""
    monkeypatch.setattr(measure, "measure_times", _microseconds)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    jax = _measured(Source(str(path), SourceKind.CONFIG, batch=2, sequence=16))
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    sizes = {key: value for key, value in TINY.items() if key != "model_type"}
    config = transformers.GPT2Config(**sizes, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    config.use_cache = False
    ids = torch.ones(2, 16, dtype=torch.int64)
    inputs = {"input_ids": ids, "labels": ids}
    model = (transformers.GPT2LMHeadModel(config), inputs)
    parameters = []
    for passes in (jax, _measured(Source("tiny", SourceKind.FACTORY, model=model))):
        assert (passes.sequence, passes.micro_batch, passes.precision) == (16, 2, "fp32")
        assert min(passes.parts_s) > 0
        assert len(passes.parts_s) == 3
        work = passes_work(passes)
        parameters.append(sum(float(work.layers[i].parameters.values.sum()) for i in work.order))
    assert parameters == [parameters[0]] * 2
    assert jax.flash is False
