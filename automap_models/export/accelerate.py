"""Accelerate: the YAML of `accelerate launch --config_file`, which Trainer, TRL and one's own loop run as FSDP2 or DDP.

What ZeRO divides is FSDP's: 2 keeps the weights of a block after its forward pass, 3 frees them; without it there is
DDP. Context parallelism is a `ParallelismConfig`, and shares the weights among all devices. Batches are arguments of
the program. Checked against Accelerate 1.15 (commands/config/config_args.py, parallelism_config.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from automap_models.core.framework import Limits, both_halves
from automap_models.export.model_blocks import BlockPlan, block_target
from automap_models.export.target import Written, parser_module, require_same

NAME = "accelerate"
DISTRIBUTION = "accelerate"


LIMITS = Limits(
    name=NAME,
    runtime="fsdp",
    schedules={"1f1b": "none"},
    zeros=(0, 2, 3),
    replicates=True,
    sharded_context=True,
    recompute=("none", "full"),
    precisions=("fp32", "fp16", "bf16"),
    undivided=("tp", "pp", "ep"),
    sequence=both_halves,
    any_training=True,
)


def write(plan: BlockPlan, path: Path) -> Written:
    """The configuration."""
    s, notes = plan.strategy, []
    batches = f"per_device_train_batch_size={s.micro_batch}, gradient_accumulation_steps={s.micro_batches}"
    notes.append(f"batches are the program's: in Trainer's words {batches}")
    if plan.recompute(NAME) == "full" and not s.zero:
        notes.append("without FSDP the program recomputes: gradient_checkpointing=True")
    head = f"# {plan.model} for Accelerate, written by automap export: the config_file of accelerate launch\n"
    return Written(head + yaml.safe_dump(config(plan), sort_keys=False), notes=tuple(notes))


def config(plan: BlockPlan) -> dict[str, Any]:
    """Accelerate's configuration; of several machines, how many there are and which one this is the command says."""
    s = plan.strategy
    alone = "NO" if s.devices == 1 else "MULTI_GPU"
    common: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if s.zero else alone,
        "mixed_precision": "no" if s.precision == "fp32" else s.precision,
        "num_processes": s.devices,
    }
    if not s.zero:
        return common
    common["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": s.zero == 3,
        "fsdp_activation_checkpointing": plan.recompute(NAME) == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }
    if s.cp * s.dp_replicate > 1:
        common["parallelism_config"] = {
            **({"parallelism_config_dp_replicate_size": s.dp_replicate} if s.dp_replicate > 1 else {}),
            "parallelism_config_dp_shard_size": s.dp // s.dp_replicate,
            "parallelism_config_cp_size": s.cp,
        }
    return common


def check(plan: BlockPlan, path: Path) -> None:
    """Accelerate reads the file, and its meshes have the plan's devices."""
    s = plan.strategy
    read = parser_module("accelerate.commands.config.config_args", DISTRIBUTION).load_config_from_file(str(path))
    require_same("kind", read.distributed_type.value, config(plan)["distributed_type"])
    require_same("devices", read.num_processes, s.devices)
    require_same("precision", read.mixed_precision, "no" if s.precision == "fp32" else s.precision)
    require_same("FSDP", bool(read.fsdp_config), bool(s.zero))
    if s.zero:
        frees, recomputes = (
            read.fsdp_config[f"fsdp_{name}"] for name in ("reshard_after_forward", "activation_checkpointing")
        )
        require_same("ZeRO", 3 if frees else 2, s.zero)
        require_same("recomputation", recomputes, plan.recompute(NAME) == "full")
    if s.cp * s.dp_replicate > 1:
        sizes = {name.removeprefix("parallelism_config_"): n for name, n in read.parallelism_config.items()}
        meshes = parser_module("accelerate.parallelism_config", DISTRIBUTION).ParallelismConfig(**sizes)
        require_same("devices of the meshes", meshes.total_size, s.devices)


TARGET = block_target(LIMITS, DISTRIBUTION, ".yaml", write, check)
