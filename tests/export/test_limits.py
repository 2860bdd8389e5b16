"""What each target has no words for is refused in one sentence that says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn_plans import block_end, cut_plan, draw_sharding, profile, sharding_source, staged_source, strategy_source

from automap_models.core.cluster import Cluster
from automap_models.core.framework import UNKNOWN, ModelFacts
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.export.exporter import export_plan
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.targets import target_by_name

PLAIN = Strategy(micro_batch=1, global_batch=16, pp=2, dp=2, layers=(2, 2))


@pytest.mark.parametrize(
    ("target", "change", "sentence"),
    [
        ("megatron", {"zero": 3}, "megatron has no ZeRO-3; take zero 0 or 1"),
        ("megatron", {"schedule": "gpipe"}, "megatron does not run schedule gpipe; plan for one of 1f1b, interleaved"),
        ("torchtitan", {"zero": 1}, "torchtitan has no ZeRO-1; take zero 0 or 2 or 3"),
        ("torchtitan", {"precision": "fp16"}, "torchtitan has no precision fp16; take fp32 or bf16"),
        ("deepspeed", {"zero": 2}, "deepspeed has no ZeRO-2 beside a pipeline; take zero 0 or 1"),
        ("deepspeed", {"recompute": "selective"}, "deepspeed has no selective recomputation"),
        ("deepspeed", {"cp": 2}, "deepspeed has no context parallelism; take cp 1"),
        ("deepspeed", {"schedule": "gpipe"}, "does not run schedule gpipe"),
        ("deepspeed", {"ep": 2, "dispatcher": "deepep"}, "deepspeed has no"),
        ("torchtitan", {"zero": 2, "ep": 2, "dispatcher": "allgather"}, "torchtitan has no allgather for the tokens"),
        ("galvatron", {"zero": 1}, "galvatron has no ZeRO-1"),
        ("galvatron", {"recompute": "selective"}, "galvatron has no selective recomputation"),
        ("galvatron", {"layers": (0, 4)}, "gives every stage a block, and stage 0 has none"),
        ("galvatron", {"pp": 3, "layers": (1, 2, 1)}, "1, 2, 4, 8, … stages, not 3"),
        ("galvatron", {"precision": "fp8"}, "fp8"),
    ],
)
def test_a_strategy_that_a_target_cannot_express_is_refused(
    target: str, change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    source = strategy_source(replace(PLAIN, **change))  # type: ignore[arg-type]
    with pytest.raises(Inexpressible, match=sentence) as refusal:
        export_plan(source, target_by_name(target), tmp_path / "out")
    assert refusal.value.do
    export_plan(strategy_source(PLAIN), target_by_name(target), tmp_path / "out")


def model(**changes: object) -> TransformerShape:
    sizes = {"layers": 4, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 256, "sequence": 32, "vocabulary": 100}
    return TransformerShape(name="small", **{**sizes, **changes})  # type: ignore[arg-type]


REFUSED = [
    # torchtitan 0.3.0, models/common/decoder.py:141 and 156, trainer.py:307, distributed/parallel_dims.py
    ("torchtitan", {}, ModelFacts(model(), tied=True), "whose stages share a weight, and the word embedding is one"),
    ("torchtitan", {"tp": 8}, ModelFacts(model()), "has 4 of them for tp 8; take a tp that divides 4"),
    ("torchtitan", {"cp": 2}, ModelFacts(model(sequence=30)), "a multiple of 4 tokens with cp 2, not 30"),
    ("torchtitan", {"tp": 4, "cp": 4, "sequence_parallel": True}, ModelFacts(model(sequence=16)), "multiple of 32"),
    ("torchtitan", {"dp": 4, "ep": 4}, ModelFacts(model(experts=8)), "no ZeRO-0 beside ep 4; take zero 2 or 3"),
    ("torchtitan", {"tp": 4, "dp": 4, "ep": 4, "zero": 2}, ModelFacts(model(experts=8)), "tp 4 × ep 4 does not divide"),
    # torch 2.13, distributed/pipelining/schedules.py: Schedule1F1B
    ("torchtitan", {"pp": 4, "global_batch": 6, "layers": (1, 1, 1, 1)}, UNKNOWN, "3 on 4 stages are too few"),
    # Megatron-Core 0.16.1, transformer/moe/moe_layer.py:379 and utils.py: get_batch_on_this_cp_rank
    ("megatron", {"tp": 2}, ModelFacts(model(experts=8)), "experts with tp 2 without sequence parallelism"),
    ("megatron", {"tp": 2, "dp": 4, "ep": 4}, UNKNOWN, "experts with tp 2 without sequence parallelism"),
    ("megatron", {"cp": 4}, ModelFacts(model(sequence=36)), "a multiple of 8 tokens with cp 4, not 36"),
]
"""Target, what of PLAIN is other, the model, and what the framework itself refuses."""


@pytest.mark.parametrize(("target", "change", "facts", "sentence"), REFUSED)
def test_what_a_framework_refuses_to_train_is_not_written_for_it(
    target: str, change: dict[str, object], facts: ModelFacts, sentence: str, tmp_path: Path
) -> None:
    """All of these were written, and the framework's own sentence came on the cluster."""
    source = strategy_source(replace(PLAIN, **change), facts)  # type: ignore[arg-type]
    with pytest.raises(Inexpressible, match=sentence):
        export_plan(source, target_by_name(target), tmp_path / "out")


@pytest.mark.parametrize(
    ("target", "change", "facts"),
    [
        ("torchtitan", {"pp": 1, "layers": (4,)}, ModelFacts(model(), tied=True)),
        ("torchtitan", {"tp": 4, "sequence_parallel": True}, ModelFacts(model())),
        ("torchtitan", {"tp": 4, "cp": 4}, ModelFacts(model(sequence=16))),
        ("torchtitan", {"cp": 2, "ep": 2}, ModelFacts(model(experts=8))),
        ("torchtitan", {"pp": 4, "global_batch": 8, "layers": (1, 1, 1, 1)}, UNKNOWN),
        ("torchtitan", {"pp": 4, "global_batch": 6, "schedule": "gpipe", "layers": (1, 1, 1, 1)}, UNKNOWN),
        ("megatron", {}, ModelFacts(model(), tied=True)),
        ("megatron", {"tp": 8}, ModelFacts(model())),
        ("megatron", {"tp": 2, "sequence_parallel": True}, ModelFacts(model(experts=8))),
        ("megatron", {"cp": 4}, ModelFacts(model(sequence=40))),
    ],
)
def test_its_neighbour_that_the_framework_trains_is_written(
    target: str, change: dict[str, object], facts: ModelFacts, tmp_path: Path
) -> None:
    source = strategy_source(replace(PLAIN, **change), facts)  # type: ignore[arg-type]
    assert export_plan(source, target_by_name(target), tmp_path / "out").written.text


def test_torchtitans_experts_are_shared_by_the_devices_of_tensor_parallelism_too(tmp_path: Path) -> None:
    """It has no tensor parallelism of experts: ep 2 left half of them on a device, where the price has an eighth."""
    strategy = replace(PLAIN, tp=4, ep=2, zero=2)
    source = strategy_source(strategy, ModelFacts(model(experts=8)))
    assert "expert_parallel_degree=8," in export_plan(source, target_by_name("torchtitan"), tmp_path / "x").written.text
    whole = strategy_source(replace(strategy, ep=1), ModelFacts(model(experts=8)))
    assert "expert_parallel_degree=1," in export_plan(whole, target_by_name("torchtitan"), tmp_path / "x").written.text


def test_a_plan_of_stages_that_share_a_weight_is_not_written_for_torchtitan(tmp_path: Path) -> None:
    drawn = profile(4)
    shared = [SharedParameter("words", float(drawn.W[0]), (0, len(drawn) - 2))]
    tied = Profile.create(
        C=drawn.C,
        A=drawn.A,
        W=drawn.W,
        names=drawn.names,
        layers=drawn.layers,
        meta=drawn.meta,
        shared_parameters=shared,
    )
    problem, plan = cut_plan(tied, Cluster(1, 2, 1e11, 1e10, 1e12, "pair"), (block_end(1),), (1,))
    source = staged_source(problem, plan, tmp_path)
    with pytest.raises(Inexpressible, match="whose stages share a weight, and words is one"):
        export_plan(source, target_by_name("torchtitan"), tmp_path / "out")
    assert export_plan(source, target_by_name("megatron"), tmp_path / "out").written.text


def test_a_file_without_the_models_sizes_says_that_they_are_unchecked(tmp_path: Path) -> None:
    unknown, known = (
        export_plan(strategy_source(PLAIN, facts), target_by_name("megatron"), tmp_path / "out").written.notes
        for facts in (UNKNOWN, ModelFacts(model()))
    )
    assert "price the strategy again" in unknown[-1] and "price" not in " ".join(known)


@pytest.mark.parametrize("change", [{"recompute": ("full", "none")}, {"recompute": "full", "recompute_blocks": (1, 2)}])
def test_stages_that_recompute_differently_have_words_in_galvatron_alone(
    change: dict[str, object], tmp_path: Path
) -> None:
    source = strategy_source(replace(PLAIN, **change))  # type: ignore[arg-type]
    for target in ("megatron", "torchtitan", "deepspeed"):
        with pytest.raises(Inexpressible, match=f"{target} recomputes alike in all stages"):
            export_plan(source, target_by_name(target), tmp_path / "out")
    text = export_plan(source, target_by_name("galvatron"), tmp_path / "out").written.text
    expected = {"full": "1,1,0,0"} if "recompute_blocks" not in change else {"full": "1,0,1,1"}
    assert json.loads(text)["checkpoint"] == expected["full"]


def test_a_sharding_plan_has_nothing_to_move(tmp_path: Path) -> None:
    source = sharding_source(draw_sharding(np.random.default_rng(0)))
    with pytest.raises(BadInput, match="`snap`: moves plans of stages and strategies"):
        export_plan(source, target_by_name("jax"), tmp_path / "out", snap=True)


@pytest.mark.parametrize("target", ["jax", "hf", "torch-split-spec"])
def test_a_strategy_without_a_model_has_no_words_where_parameters_or_modules_count(target: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"a strategy has no words in {target}"):
        export_plan(strategy_source(PLAIN), target_by_name(target), tmp_path / "out")


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown target 'tensorflow'"):
        target_by_name("tensorflow")


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "galvatron"])
def test_a_module_of_ones_own_is_not_written_for_a_framework_that_lacks_its_code(target: str, tmp_path: Path) -> None:
    """Megatron got `--num-layers 4` without any size, torchtitan a `tok_embeddings` that the module does not have."""
    pair, drawn = Cluster(1, 2, 1e11, 1e10, 1e12, "pair"), profile(4)
    module = replace(drawn, meta={**drawn.meta, "framework": "torch"})
    staged, own = (staged_source(*cut_plan(of, pair, (block_end(1),), (1,)), tmp_path) for of in (drawn, module))
    for source in (own, strategy_source(PLAIN, ModelFacts(own_code=True))):
        with pytest.raises(Inexpressible, match=f"{target} trains models that it has the code of.*deepspeed"):
            export_plan(source, target_by_name(target), tmp_path / "out")
        assert export_plan(source, target_by_name("deepspeed"), tmp_path / "out").written.text
    assert export_plan(staged, target_by_name(target), tmp_path / "out").written.text


def test_recurrent_layers_are_not_written_as_attention(tmp_path: Path) -> None:
    """Nemotron-H was written for pretrain_gpt.py, with sizes of a model of attention."""
    source = strategy_source(PLAIN, ModelFacts(recurrent=True))
    for target in ("torchtitan", "galvatron"):
        with pytest.raises(Inexpressible, match=f"{target} has no recurrent layers.*megatron or deepspeed"):
            export_plan(source, target_by_name(target), tmp_path / "out")
    written = export_plan(source, target_by_name("megatron"), tmp_path / "out").written
    assert written.program.startswith("pretrain_mamba.py ")
    assert "--hidden-size" not in written.text
    assert "does not build recurrent layers" in written.notes[0]


def test_encoders_are_not_written_as_decoders(tmp_path: Path) -> None:
    """A vision transformer was written for pretrain_gpt.py without a word."""
    source = strategy_source(PLAIN, ModelFacts(encodes=True))
    with pytest.raises(Inexpressible, match=r"torchtitan has no encoders.*megatron or deepspeed"):
        export_plan(source, target_by_name("torchtitan"), tmp_path / "out")
    written = export_plan(source, target_by_name("megatron"), tmp_path / "out").written
    assert "pretrain_gpt.py builds no encoders" in written.notes[0]


def test_towers_of_images_and_further_tokens_are_refused_or_said(tmp_path: Path) -> None:
    """torchtitan's models of images have no tensor parallelism; Megatron's layout has m for a further token."""
    shape = TransformerShape(
        **{"name": "m", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 64, "sequence": 64},
        **{"vocabulary": 64, "tower_heads": 4, "mtp_layers": 1},
    )
    images = ModelFacts(replace(shape, mtp_layers=None))
    strategy = replace(PLAIN, zero=0)
    for target in ("torchtitan", "galvatron"):
        with pytest.raises(Inexpressible, match=f"{target} has no layers of multi-token prediction.*`mtp` 0"):
            export_plan(strategy_source(strategy, ModelFacts(shape)), target_by_name(target), tmp_path / "out")
    with pytest.raises(Inexpressible, match=r"galvatron has no models with a tower of images.*`images` 0"):
        export_plan(strategy_source(strategy, images), target_by_name("galvatron"), tmp_path / "out")
    written = export_plan(strategy_source(strategy, ModelFacts(shape)), target_by_name("megatron"), tmp_path / "out")
    assert "--mtp-num-layers 1" in written.written.text
    assert any("builds no tower of images" in note for note in written.written.notes)
