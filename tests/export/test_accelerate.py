"""What Accelerate is told: FSDP2 or DDP, context parallelism, and nothing that its configuration has no words for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from drawn_plans import strategy_source

from automap_models.core.strategy import Strategy
from automap_models.export.accelerate import LIMITS, TARGET
from automap_models.export.model_blocks import Inexpressible
from automap_models.infer.app import plan as main

SHARDED = Strategy(dp=8, micro_batch=2, global_batch=64, zero=3, recompute="full", precision="bf16", layers=(4,))


def written(strategy: Strategy) -> tuple[dict[str, object], str]:
    """The configuration, and the notes."""
    exported = TARGET.write(strategy_source(strategy), Path("plan.yaml"))
    return yaml.safe_load(exported.text), " ".join(exported.notes)


def test_zero_is_fsdp_s_and_batches_are_the_program_s() -> None:
    """ZeRO-3 frees the weights of a block after its forward pass, ZeRO-2 does not; without either there is DDP."""
    config, notes = written(SHARDED)
    assert (config["distributed_type"], config["mixed_precision"], config["num_processes"]) == ("FSDP", "bf16", 8)
    fsdp = config["fsdp_config"]
    assert isinstance(fsdp, dict)
    assert (fsdp["fsdp_version"], fsdp["fsdp_reshard_after_forward"], fsdp["fsdp_activation_checkpointing"]) == (
        2,
        True,
        True,
    )
    assert "per_device_train_batch_size=2, gradient_accumulation_steps=4" in notes
    config, _ = written(replace(SHARDED, zero=2, recompute="none", precision="fp32"))
    assert config["mixed_precision"] == "no"
    fsdp = config["fsdp_config"]
    assert isinstance(fsdp, dict)
    assert (fsdp["fsdp_reshard_after_forward"], fsdp["fsdp_activation_checkpointing"]) == (False, False)
    config, notes = written(replace(SHARDED, zero=0))
    assert config["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in config
    assert "gradient_checkpointing=True" in notes
    config, _ = written(replace(SHARDED, zero=0, dp=1, global_batch=8))
    assert (config["distributed_type"], config["num_processes"]) == ("NO", 1)


def test_context_parallelism_shares_weights_among_all_devices() -> None:
    config, _ = written(replace(SHARDED, dp=2, cp=4, global_batch=16))
    assert config["num_processes"] == 8
    assert config["parallelism_config"] == {"parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 4}
    with pytest.raises(Inexpressible, match="accelerate has no ZeRO-0 beside cp 4"):
        written(replace(SHARDED, dp=2, cp=4, global_batch=16, zero=0))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tp": 2}, "accelerate has no tensor parallelism"),
        ({"pp": 2, "layers": (2, 2)}, "accelerate has no pipelines"),
        ({"zero": 1}, "accelerate has no ZeRO-1"),
        ({"precision": "fp8"}, "fp8"),
    ],
)
def test_what_it_has_no_words_for_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(Inexpressible, match=sentence):
        written(replace(SHARDED, **fields))  # type: ignore[arg-type]


def test_a_plan_for_it_is_one_that_it_runs_by_the_clock_of_fsdp(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["llama3.2-1b", "--gpus", "8xh100", "--for", "accelerate", "--global-batch", "64", "--sequence", "4096"])
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "by the clock of h100 for fsdp" in out
    assert "automap export strategy.json --to accelerate" in out
    assert LIMITS.zeros == (0, 2, 3)
