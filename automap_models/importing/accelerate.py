"""Hugging Face Accelerate: the YAML of `accelerate config`, with FSDP, ParallelismConfig, DeepSpeed or Megatron-LM.

Batches are the program's own: `--micro-batch` and `--global-batch` say them. Checked against Accelerate 1.12
(utils/dataclasses.py, parallelism_config.py).
"""

from __future__ import annotations

from typing import Any

from automap_models.core.framework import Limits
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.deepspeed import LIMITS as DEEPSPEED
from automap_models.export.megatron import LIMITS as MEGATRON
from automap_models.importing.documents import Path, Values, changed, count_at, dump, unread, value_at
from automap_models.importing.setting import Setting

FSDP = Limits(
    name="accelerate",
    schedules={"1f1b": "none"},
    recurrent=True,
    zeros=(0, 2, 3),
    recompute=("none", "full"),
    precisions=("fp32", "fp16", "bf16"),
    undivided=("ep",),
    any_training=True,
)
"""Of FSDP and ParallelismConfig."""
DEGREES = {"tp": "tp_size", "cp": "cp_size"}
SHARDED = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
"""Word of FSDP 1, or its number from 1 on in this order → the stage of ZeRO."""
_PARALLEL, _FSDP, _MEGATRON, _DEEPSPEED = "parallelism_config", "fsdp_config", "megatron_lm_config", "deepspeed_config"
_COUNTS = {"tp": "tp_degree", "pp": "pp_degree"}


def read(values: Values, text: str, ending: str) -> Setting:
    """What a configuration says.

    Raises:
        BadInput: it contradicts itself, or names a way of training that is none of these.
    """
    kind = str(value_at(values, "distributed_type") or "NO").upper()
    fields: dict[str, Any] = {
        "precision": {"no": "fp32"}.get(word := str(value_at(values, "mixed_precision") or "no"), word)
    }
    runtime, limits, searched = "fsdp", FSDP, {"dp", "zero", "micro_batch"}
    if kind == "MEGATRON_LM":
        runtime, limits = "megatron", MEGATRON
        fields |= _megatron(values)
        searched |= {"tp", "pp", "sequence_parallel"}
    elif kind == "DEEPSPEED":
        runtime, limits = "deepspeed", DEEPSPEED
        if value_at(values, _DEEPSPEED, "deepspeed_config_file") is not None:
            do = "give that file in place of this one"
            raise BadInput("is in a file of its own", where=f"{_DEEPSPEED}.deepspeed_config_file", do=do)
        fields |= {"zero": count_at(values, _DEEPSPEED, "zero_stage") or 0}
        fields |= {"micro_batches": count_at(values, _DEEPSPEED, "gradient_accumulation_steps") or 1}
    elif kind in ("FSDP", "MULTI_GPU", "MULTI_CPU", "NO"):
        fields |= _fsdp(values, kind) | _parallel(values)
        searched |= {"recompute"} if kind == "FSDP" else set()
        searched |= {*DEGREES} if _PARALLEL in values else set()
    else:
        raise BadInput(f"is {kind}", where="distributed_type", do="give FSDP, DEEPSPEED, MEGATRON_LM or MULTI_GPU")
    left_out, notes = unread(values, "accelerate", lambda path: False, text)
    nodes, processes = count_at(values, "num_machines") or 1, count_at(values, "num_processes")
    return Setting(
        limits=limits,
        runtime=runtime,
        fields=fields,
        searched=frozenset(searched),
        text=dump(values, ending),
        rewrite=lambda strategy: dump(changed(values, _words(values, kind, strategy)), ending),
        lacking=("the model",),
        nodes=nodes if processes else None,
        per_node=processes // nodes if processes else None,
        unread=left_out,
        notes=tuple(notes),
    )


def _fsdp(values: Values, kind: str) -> dict[str, Any]:
    """ZeRO and recomputation; FSDP 2 says the former by whether weights are given back."""
    if kind != "FSDP":
        return {"zero": 0}
    group = values.get(_FSDP) or {}
    full = "full" if value_at(group, "fsdp_activation_checkpointing") is True else "none"
    kept, word = group.get("fsdp_reshard_after_forward"), str(group.get("fsdp_sharding_strategy", "FULL_SHARD"))
    if word.isdigit() and 1 <= int(word) <= len(SHARDED):
        word = [*SHARDED][int(word) - 1]
    zero = SHARDED.get(str(kept if isinstance(kept, str) and kept.isupper() else word).upper())
    if str(kept).lower() in ("true", "false"):
        zero = 3 if str(kept).lower() == "true" else 2
    if zero is None:
        raise BadInput(f"is {word}", where=f"{_FSDP}.fsdp_sharding_strategy", do=f"take one of {', '.join(SHARDED)}")
    return {"zero": zero, "recompute": full}


def _parallel(values: Values) -> dict[str, Any]:
    """Degrees of a ParallelismConfig; shards are left to what the others leave."""
    group = {key.removeprefix(f"{_PARALLEL}_"): value for key, value in (values.get(_PARALLEL) or {}).items()}
    fields = {name: count for name, key in DEGREES.items() if (count := count_at(group, key)) is not None}
    copies, shards = count_at(group, "dp_replicate_size") or 1, count_at(group, "dp_shard_size")
    return fields | ({"dp": copies * shards} if shards is not None and shards > 0 else {})


def _megatron(values: Values) -> dict[str, Any]:
    group = {key.removeprefix("megatron_lm_"): value for key, value in (values.get(_MEGATRON) or {}).items()}
    fields = {name: count for name, key in _COUNTS.items() if (count := count_at(group, key)) is not None}
    fields |= {"micro_batches": count_at(group, "num_micro_batches") or 1}
    fields |= {"zero": int(str(group.get("use_distributed_optimizer")).lower() == "true")}
    shared = str(group.get("sequence_parallelism")).lower() == "true" and fields.get("tp", 1) > 1
    selective = str(group.get("recompute_activations")).lower() == "true"
    return fields | {"sequence_parallel": shared, "recompute": "selective" if selective else "none"}


def _words(values: Values, kind: str, strategy: Strategy) -> dict[Path, Any]:
    """The values that say another strategy."""
    s, m = strategy, "megatron_lm_"
    if kind == "MEGATRON_LM":
        words = {f"{m}{key}": getattr(s, name) for name, key in _COUNTS.items()}
        words |= {f"{m}num_micro_batches": s.micro_batches, f"{m}use_distributed_optimizer": s.zero > 0}
        words |= {f"{m}sequence_parallelism": s.sequence_parallel and s.tp > 1}
        return {(_MEGATRON, key): value for key, value in words.items()}
    if kind == "DEEPSPEED":
        said = {"zero_stage": s.zero, "gradient_accumulation_steps": s.micro_batches}
        return {(_DEEPSPEED, key): value for key, value in said.items()}
    new: dict[Path, Any] = {}
    if kind == "FSDP":
        group = values.get(_FSDP) or {}
        if group.get("fsdp_version") == 2:
            new[_FSDP, "fsdp_reshard_after_forward"] = s.zero == 3
        else:
            new[_FSDP, "fsdp_sharding_strategy"] = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}[s.zero]
        new[_FSDP, "fsdp_activation_checkpointing"] = s.recompute == "full"
    if _PARALLEL in values:
        sizes = {**{key: getattr(s, name) for name, key in DEGREES.items()}}
        sizes |= (
            {"dp_shard_size": s.dp, "dp_replicate_size": 1}
            if s.zero
            else {"dp_shard_size": 1, "dp_replicate_size": s.dp}
        )
        new |= {(_PARALLEL, f"{_PARALLEL}_{key}"): value for key, value in sizes.items()}
    return new
