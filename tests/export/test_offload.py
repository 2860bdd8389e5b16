"""An optimiser on hosts: what frameworks are told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawn_plans import strategy_source
from export_readers import megatron_arguments

from automap_models.core.strategy import Strategy
from automap_models.export.deepspeed import config
from automap_models.export.snap import snapped_strategy
from automap_models.export.targets import strategy_limits, target_by_name

PLAIN = Strategy(micro_batch=1, global_batch=16, dp=4, zero=1, layers=(4,), offload="optimizer")
ON_HOST = {"device": "cpu", "pin_memory": True}


def test_megatron_is_told_all_that_it_asks_for() -> None:
    """Its training/arguments.py takes --optimizer-cpu-offload together with a precision-aware, distributed optimizer
    alone; without a fraction a configuration offloads nothing."""
    for strategy in (PLAIN, replace(PLAIN, dp=1, zero=0)):
        read = megatron_arguments(target_by_name("megatron").write(strategy_source(strategy), Path("out")).text)
        assert read["--optimizer-cpu-offload"] == []
        assert read["--use-distributed-optimizer"] == []
        assert read["--use-precision-aware-optimizer"] == []
        assert read["--optimizer-offload-fraction"] == ["1.0"]


@pytest.mark.parametrize(("fields", "stage"), [({}, 1), ({"zero": 3}, 3), ({"dp": 1, "zero": 0}, 2)])
def test_deepspeed_is_told_a_stage_of_zero_beside_it(fields: dict[str, Any], stage: int) -> None:
    """Of one device all stages are alike; gradients leave it with stage 2."""
    assert config(replace(PLAIN, **fields))["zero_optimization"] == {"stage": stage, "offload_optimizer": ON_HOST}
    assert config(replace(PLAIN, offload="none"))["zero_optimization"] == {"stage": 1}


def test_the_nearest_plan_of_others_keeps_it_on_devices() -> None:
    for name, offload in (("megatron", "optimizer"), ("torchtitan", "none"), ("galvatron", "none")):
        limits = strategy_limits(name)
        objection = limits.field_objection("offload", "optimizer")
        assert (objection is None) is (offload == "optimizer")
        assert objection is None or "no optimizer on hosts" in objection.what
        assert snapped_strategy(PLAIN, limits)[0].offload == offload
    objection = strategy_limits("megatron").objection(replace(PLAIN, zero=0))
    assert objection is not None
    assert "ZeRO" in objection.what
    objection = strategy_limits("deepspeed").objection(replace(PLAIN, dp=2, pp=2, layers=(2, 2)))
    assert objection is not None
    assert "beside a pipeline" in objection.what
