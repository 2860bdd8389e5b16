"""Hugging Face Accelerate: the YAML of `accelerate config`, with FSDP, ParallelismConfig, DeepSpeed or Megatron-LM.

Batches are the program's own: `--micro-batch` and `--global-batch` say them. Checked against Accelerate 1.12
(utils/dataclasses.py, parallelism_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    zeros=(0, 2, 3),
    recompute=("none", "full"),
    precisions=("fp32", "fp16", "bf16"),
    undivided=("ep",),
    any_training=True,
)
"""Of FSDP and ParallelismConfig."""
SHARDED = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
"""Word of FSDP 1, or its number from 1 on in this order → the stage of ZeRO."""
_PARALLEL, _MEGATRON, _DEEPSPEED = "parallelism_config", "megatron_lm_config", "deepspeed_config"
_OFFLOAD = (_DEEPSPEED, "offload_optimizer_device")
_STRATEGY, _RESHARD = ("fsdp_config", "fsdp_sharding_strategy"), ("fsdp_config", "fsdp_reshard_after_forward")
_RECOMPUTE = ("fsdp_config", "fsdp_activation_checkpointing")
_COPIES, _SHARDS = ((_PARALLEL, f"{_PARALLEL}_dp_{kind}_size") for kind in ("replicate", "shard"))
FIELDS: Mapping[str, Mapping[str, Path]] = {
    "FSDP": {"tp": (_PARALLEL, f"{_PARALLEL}_tp_size"), "cp": (_PARALLEL, f"{_PARALLEL}_cp_size")},
    "DEEPSPEED": {
        "zero": (_DEEPSPEED, "zero_stage"),
        "micro_batches": (_DEEPSPEED, "gradient_accumulation_steps"),
    },
    "MEGATRON_LM": {
        "tp": (_MEGATRON, "megatron_lm_tp_degree"),
        "pp": (_MEGATRON, "megatron_lm_pp_degree"),
        "micro_batches": (_MEGATRON, "megatron_lm_num_micro_batches"),
        "zero": (_MEGATRON, "megatron_lm_use_distributed_optimizer"),
        "sequence_parallel": (_MEGATRON, "megatron_lm_sequence_parallelism"),
        "recompute": (_MEGATRON, "megatron_lm_recompute_activations"),
    },
    "MULTI_GPU": {},
    "NO": {},
}
"""Way of training → field of a strategy → where it stands."""
RUNTIMES = {"DEEPSPEED": ("deepspeed", DEEPSPEED), "MEGATRON_LM": ("megatron", MEGATRON)}
BATCHES = {"micro_batch", "micro_batches", "dp"}


def read(values: Values, text: str, ending: str) -> Setting:
    """What a configuration says.

    Raises:
        BadInput: it contradicts itself, or names a way of training that is none of these.
    """
    kind = str(value_at(values, "distributed_type") or "NO").upper()
    if kind not in FIELDS:
        raise BadInput(f"is {kind}", where="distributed_type", do=f"give one of {', '.join(FIELDS)}")
    if value_at(values, _DEEPSPEED, "deepspeed_config_file") is not None:
        where = f"{_DEEPSPEED}.deepspeed_config_file"
        raise BadInput("is in a file of its own", where=where, do="give that file in place of this one")
    precision = str(value_at(values, "mixed_precision") or "no").lower()
    fields: dict[str, Any] = {"zero": 0, "precision": {"no": "fp32"}.get(precision, precision)}
    fields |= {name: value for name, path in FIELDS[kind].items() if (value := _number(values, path)) is not None}
    if kind == "MEGATRON_LM":
        fields["recompute"] = "selective" if fields.get("recompute") else "none"
        fields["sequence_parallel"] = bool(fields.get("sequence_parallel")) and fields.get("tp", 1) > 1
    elif kind == "FSDP":
        fields |= _fsdp(values)
    left_out, notes = unread(values, "accelerate", text)
    if kind == "DEEPSPEED" and value_at(values, *_OFFLOAD) == "cpu":
        fields["offload"] = "optimizer"
        del left_out[".".join(_OFFLOAD)]
    notes += ["batches are the program's own: with another setting it is to take the micro-batches that are named"]
    nodes, processes = count_at(values, "num_machines") or 1, count_at(values, "num_processes")
    runtime, limits = RUNTIMES.get(kind, ("fsdp", FSDP))
    is_divided = kind != "FSDP" or _PARALLEL in values
    searched = {*(FIELDS[kind] if is_divided else ()), *BATCHES, *(("zero", "recompute") if kind == "FSDP" else ())}
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


def _number(values: Values, path: Path) -> int | None:
    """A whole number, where words for true and false are 1 and 0."""
    value = value_at(values, *path)
    truth = {"true": 1, "false": 0}.get(str(value).lower())
    return count_at(values, *path) if truth is None else truth


def _fsdp(values: Values) -> dict[str, Any]:
    """ZeRO, which FSDP 2 says by whether weights are given back, recomputation, and dp where it is said."""
    reshard, word = _number(values, _RESHARD), str(value_at(values, *_STRATEGY) or "FULL_SHARD").upper()
    if word.isdigit() and 1 <= int(word) <= len(SHARDED):
        word = [*SHARDED][int(word) - 1]
    if word not in SHARDED:
        raise BadInput(f"is {word}", where=".".join(_STRATEGY), do=f"take one of {', '.join(SHARDED)}")
    zero = SHARDED[word] if reshard is None else 2 + reshard
    shards = count_at(values, *_SHARDS)
    dp = {} if shards is None or shards < 1 else {"dp": (count_at(values, *_COPIES) or 1) * shards}
    return {"zero": zero, "recompute": "full" if _number(values, _RECOMPUTE) else "none", **dp}


def _words(values: Values, kind: str, strategy: Strategy) -> dict[Path, Any]:
    """The values that say another strategy."""
    s, fields = strategy, FIELDS[kind]
    new: dict[Path, Any] = {path: getattr(s, name) for name, path in fields.items()}
    if kind == "MEGATRON_LM":
        new |= {fields["zero"]: s.zero > 0, fields["recompute"]: s.recompute != "none"}
    if kind != "FSDP":
        return new
    if value_at(values, "fsdp_config", "fsdp_version") == 2:
        new[_RESHARD] = s.zero == 3
    else:
        new[_STRATEGY] = next(word for word, zero in SHARDED.items() if zero == s.zero)
    new[_RECOMPUTE] = s.recompute == "full"
    copies, shards = (1, s.dp) if s.zero else (s.dp, 1)
    return (
        new | {_COPIES: copies, _SHARDS: shards}
        if _PARALLEL in values
        else {p: new[p] for p in new if p[0] != _PARALLEL}
    )
