"""Recomputation by module: what Megatron is told of it and says of it, and what others have in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drawn_plans import strategy_source
from export_readers import megatron_arguments

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.snap import snapped_strategy
from automap_models.export.targets import strategy_limits, target_by_name
from automap_models.importing.reader import read_setting

PLAIN = Strategy(micro_batch=1, global_batch=16, dp=4, zero=1, layers=(4,), recompute="layernorm+moe_act")
SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 \\
    --seq-length 512 --micro-batch-size 1 --global-batch-size 64 --bf16 \\
    --recompute-granularity selective \\
    --recompute-modules mla_up_proj moe_act \\
    --use-distributed-optimizer
"""


def test_megatron_is_told_the_modules_and_for_fp8_a_recipe_that_has_them() -> None:
    """Its TransformerConfig refuses layernorm and moe_act with the recipe `delayed`, which is what nobody says."""
    read = megatron_arguments(target_by_name("megatron").write(strategy_source(PLAIN), Path("out")).text)
    assert read["--recompute-granularity"] == ["selective"]
    assert read["--recompute-modules"] == ["layernorm", "moe_act"]
    assert "--fp8-recipe" not in read
    narrow = replace(PLAIN, precision="fp8")
    read = megatron_arguments(target_by_name("megatron").write(strategy_source(narrow), Path("out")).text)
    assert read["--fp8-recipe"] == ["tensorwise"]


def test_the_nearest_plan_of_others_recomputes_whole_blocks() -> None:
    for name in ("torchtitan", "galvatron", "deepspeed"):
        objection = strategy_limits(name).recompute_objection(PLAIN.recompute_kinds[0])
        assert objection is not None
        assert snapped_strategy(PLAIN, strategy_limits(name))[0].recompute == "full"
    assert snapped_strategy(PLAIN, strategy_limits("megatron"))[0].recompute == "layernorm+moe_act"


def test_a_script_s_modules_are_read_and_changed_where_they_stand() -> None:
    setting = read_setting(SCRIPT, {}, None)
    assert setting.fields["recompute"] == "mla_up_proj+moe_act"
    fields = {"micro_batch": 1, "global_batch": 64, "dp": 8, "zero": 1}
    text = setting.rewrite(Strategy(**fields, recompute="moe"))
    assert "--recompute-modules moe \\\n    --use-distributed-optimizer" in text
    text = setting.rewrite(Strategy(**fields, recompute="none"))
    assert "recompute" not in text
    assert "moe_act" not in text


def test_a_script_with_the_delayed_recipe_is_refused_as_megatron_refuses_it() -> None:
    text = SCRIPT.replace("--bf16", "--bf16 --fp8-format hybrid")
    assert any("moe_act needs another `--fp8-recipe`" in refusal for refusal in read_setting(text, {}, None).refusals)


def test_no_strategy_recomputes_an_unknown_module() -> None:
    with pytest.raises(BadInput, match="layernorm\\+logits"):
        replace(PLAIN, recompute="layernorm+logits")
