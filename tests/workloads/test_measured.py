"""The built-in model of a measured step: its sizes, and its work kept between runs."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpt_work import gpt_work
from observations import measured_step

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import TransformerShape
from automap_models.cost.measured import MeasuredPasses
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, decode_record, encode_record
from automap_models.formats.hardware_yaml import read_device
from automap_models.workloads import measured
from automap_models.workloads.measured import MeasuredWorks, architecture_of, measured_passes, with_layers
from automap_models.workloads.source import Source, SourceKind, profile_source

pytest.importorskip("flax")

from automap_models.hlo import measure
from automap_models.hlo.measure import Measured

PACKAGE = Path(measured.__file__).parents[1]
TRACING = ("workloads/training.py", "workloads/bert.py", "workloads/decoder.py")
"""What `MeasuredWorks` imports to trace a model."""
DESCRIBING = """
core/cluster core/dag core/device core/framework core/passes core/profile core/schedules core/strategy core/units
errors formats/schema resources
"""
"""Modules that these import and in which no work is made."""
SHAPE = TransformerShape(
    name="small", layers=6, hidden=64, heads=4, kv_heads=2, ffn=96, sequence=32, vocabulary=128, experts=None
)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_an_architecture_has_the_sizes_that_were_measured(family: str) -> None:
    architecture = architecture_of(family, SHAPE, tied=False, dropout=False)  # type: ignore[arg-type]
    assert architecture.shape("small", 32) == SHAPE  # type: ignore[attr-defined]


def test_bert_has_as_many_heads_of_keys_as_of_queries() -> None:
    architecture = architecture_of("bert", SHAPE, tied=True, dropout=True)
    assert architecture.shape("small", 32) == replace(SHAPE, kv_heads=4)  # type: ignore[attr-defined]


def test_a_mixture_has_its_experts() -> None:
    shape = replace(SHAPE, experts=4)
    architecture = architecture_of("llama", shape, tied=False, dropout=False, experts_per_token=2)
    assert architecture.shape("small", 32) == shape  # type: ignore[attr-defined]


def parameters(work: ModelWork) -> float:
    return float(sum(work.layers[layer].parameters.values.sum() for layer in work.order))


def test_work_is_traced_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPT of 6 layers: 12h² + 13h parameters a block, (V + s)·h in embeddings, 2h in the last norm."""
    step = replace(measured_step("a", "b", 4, 1024, micro_batch=1)[0], shape=replace(SHAPE, kv_heads=4, ffn=256))
    work = MeasuredWorks(Cache(tmp_path)).of(step)
    assert work.shape == step.shape
    assert parameters(work) == 6 * (12 * 64**2 + 13 * 64) + (128 + 32) * 64 + 2 * 64
    monkeypatch.setattr("automap_models.workloads.measured._traced", None)
    deeper = MeasuredWorks(Cache(tmp_path)).of(replace(step, shape=replace(step.shape, layers=9)))
    assert parameters(deeper) - parameters(work) == 3 * (12 * 64**2 + 13 * 64)


def test_fewer_layers_than_were_traced_are_the_first_ones() -> None:
    work = gpt_work(4, 256, 4, 32, 128)
    shallow = with_layers(work, replace(work.shape, layers=2))
    assert (shallow.order, shallow.shape.layers) == ((0, 1, 1, 2), 2)


def test_work_comes_back_from_json_as_it_was() -> None:
    work = gpt_work(4, 256, 4, 32, 128)
    again = decode_record(encode_record(work), ModelWork)
    assert (again.shape, again.order, again.dtype, again.tied) == (work.shape, work.order, work.dtype, work.tied)
    for one, other in zip(again.layers, work.layers, strict=True):
        np.testing.assert_array_equal(one.kernels.sizes, other.kernels.sizes)
        np.testing.assert_array_equal(one.kept.values, other.kept.values)
        assert one.kernels.size_marks.dtype == other.kernels.size_marks.dtype == np.int8
        assert one.exchanged.values.shape == (0,)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"shape": 3}'])
def test_what_is_no_work_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match="is no ModelWork of this version"):
        decode_record(content, ModelWork)


TINY = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
ONCE = {"repeats": 1, "warmup": 0}


def _measured(source: Source) -> MeasuredPasses:
    profile = profile_source(source, None, read_device("cpu"), ONCE, lambda _: None, lambda *_: None)
    return measured_passes(profile, "tiny")


def _microseconds(module: object, graph: InstructionGraph, **_: object) -> Measured:
    """In place of a clock, which takes a minute to compile every operation."""
    ends_s = {phase: float((graph.phases <= phase).sum()) * 1e-6 for phase in Phase}
    return Measured(np.full(len(graph), 1e-6), ends_s, ends_s, 0.0, {}, 1, 0, unsteady=0.0)


@pytest.mark.slow
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
    works = MeasuredWorks(Cache(tmp_path))
    parameters = []
    for passes in (jax, _measured(Source("tiny", SourceKind.FACTORY, model=model))):
        assert (passes.sequence, passes.micro_batch, passes.precision) == (16, 2, "fp32")
        assert min(passes.parts_s) > 0
        assert len(passes.parts_s) == 3
        work = works.of_passes(passes)
        parameters.append(sum(float(work.layers[i].parameters.values.sum()) for i in work.order))
    assert parameters == [parameters[0]] * 2
    assert jax.flash is False


def _imported(path: Path) -> set[Path]:
    """Modules of the package that a module imports, in its functions, too, but not for types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    ]
    files = [Path(*name.split(".")[1:]).with_suffix(".py") for name in names if name.startswith("automap_models.")]
    return {PACKAGE / file for file in files if (PACKAGE / file).exists()}


def test_all_the_code_that_traces_a_measured_model_is_part_of_its_key() -> None:
    reached: set[Path] = set()
    new = {PACKAGE / name for name in TRACING}
    while new:
        reached |= new
        new = {other for path in new for other in _imported(path)} - reached
    traced = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in reached} - set(DESCRIBING.split())
    named = [name.removesuffix(".py") for name in measured._TRACERS]
    assert not [name for name in traced if name not in named and name.partition("/")[0] not in named]
    assert all((PACKAGE / name).exists() for name in measured._TRACERS)
