"""What each target has no words for is refused in one sentence that says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn_plans import draw_sharding, strategy_source

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.exporter import export_plan
from automap_models.export.layout import Inexpressible
from automap_models.export.sources import ShardingSource
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
        (
            "deepspeed",
            {"recompute": "selective"},
            "deepspeed has no selective recomputation",
        ),
        ("deepspeed", {"cp": 2}, "deepspeed has no context parallelism; take cp 1"),
        ("deepspeed", {"schedule": "gpipe"}, "does not run schedule gpipe"),
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
    source = ShardingSource("drawn", draw_sharding(np.random.default_rng(0)))
    with pytest.raises(BadInput, match="`snap`: moves plans of stages and strategies"):
        export_plan(source, target_by_name("jax"), tmp_path / "out", snap=True)


@pytest.mark.parametrize("target", ["jax", "hf", "torch-split-spec"])
def test_a_strategy_without_a_model_has_no_words_where_parameters_or_modules_count(target: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"a strategy has no words in {target}"):
        export_plan(strategy_source(PLAIN), target_by_name(target), tmp_path / "out")


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown target 'tensorflow'"):
        target_by_name("tensorflow")
