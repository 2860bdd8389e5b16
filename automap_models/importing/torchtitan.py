"""torchtitan: its TOML up to 0.2, or the Python that `export.torchtitan` writes, with that module's words.

Keys of older files stand in other sections; what a file does not say is as in torchtitan 0.2 (config/job_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path as File
from typing import Any

from automap_models.core.passes import build_schedule
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.torchtitan import (
    BY_ROWS,
    COUNTS,
    LIMITS,
    PRECISIONS,
    RESHARD,
    ROWS_ENDING,
    SCHEDULE,
    module_names,
    parallelism,
    training,
)
from automap_models.importing.documents import Document, Path, Values, count_at, tables, text_of, unread, value_at
from automap_models.importing.setting import Setting
from automap_models.importing.table import answers
from automap_models.workloads.catalogue import canonical

SECTIONS = ("parallelism", "training", "experimental")
"""That a key may stand in, the newest first."""
STAGES = "module_fqns_per_model_part"
FLAVORS = {
    "deepseek_v3-671B": "deepseek-v3",
    "deepseek_v3-16B": "deepseek-v2-lite",
    "llama4-17bx16e": "llama4-scout",
    "llama4-17bx128e": "llama4-maverick",
}
SEARCHED = frozenset(
    {
        "tp",
        "pp",
        "vp",
        "dp",
        "dp_replicate",
        "cp",
        "ep",
        "etp",
        "micro_batch",
        "recompute",
        "zero",
        "sequence_parallel",
        "schedule",
        "layers",
    }
)


def read(document: Document, ending: str, file: File) -> Setting:
    """What a configuration says.

    Raises:
        BadInput: it contradicts itself, or is of a schedule that is not known.
    """
    values = document.values
    numbers = {name: _first(values, key) for name, key in COUNTS.items()}
    fields: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    pp = fields.get("pp", 1)
    fields |= {"etp": 1} if fields.get("ep", 1) > 1 else {}
    fields |= _batches(values, fields.get("micro_batch", 1), pp) | _data_parallel(values, fields)
    fields |= {"recompute": _recomputation(values), "schedule": "1f1b"}
    shared = _value(values, "enable_sequence_parallel")
    fields["sequence_parallel"] = fields.get("tp", 1) > 1 and shared is not False
    fields["precision"] = {word: name for name, word in PRECISIONS.items()}[
        str(_value(values, "mixed_precision_param") or "bfloat16")
    ]
    if pp > 1:
        fields |= _stages(values, pp, fields, file)
    left_out, notes = unread(document, "torchtitan", answers(document, tables()["torchtitan"]["training"])[1])
    name = f"{value_at(values, 'model', 'name')}-{value_at(values, 'model', 'flavor')}"
    return Setting(
        limits=LIMITS,
        runtime="torchtitan",
        fields=fields,
        searched=SEARCHED,
        text=document.text,
        rewrite=lambda strategy: document.edited(_words(values, fields, strategy)),
        split=split,
        name=canonical(FLAVORS.get(name, name)) or "",
        lacking=("the model",),
        sequence=_first(values, "seq_len") or (2048 if ending == ".toml" else None),
        unread=left_out,
        notes=tuple(notes),
    )


def _value(values: Values, key: str) -> Any:
    return next((value for section in SECTIONS if (value := value_at(values, section, key)) is not None), None)


def _first(values: Values, key: str) -> int | None:
    return count_at({"": _value(values, key)}, "")


def _batches(values: Values, micro_batch: int, pp: int) -> dict[str, Any]:
    """Without a pipeline micro-batches are steps of gradient accumulation."""
    local = _first(values, "local_batch_size") or _first(values, "batch_size") or 8
    total = _first(values, "global_batch_size")
    fields = {
        "micro_batch": micro_batch if pp > 1 else local,
        "micro_batches": max(1, local // micro_batch) if pp > 1 else 1,
    }
    return fields | ({"global_batch": total} if total is not None and total > 0 else {})


def _data_parallel(values: Values, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`dp` where it is said, and ZeRO: weights are gathered again for the backward pass, but for pipelines."""
    copies, shards = (_first(values, f"data_parallel_{kind}_degree") for kind in ("replicate", "shard"))
    shards = -1 if shards is None else shards
    reshard = {word: zero for zero, word in RESHARD.items()}.get(str(_value(values, "fsdp_reshard_after_forward")))
    divides = shards != 1 or (reshard is not None and (copies or 1) == 1)
    dp = {} if shards < 0 else {"dp": (copies or 1) * shards}
    dp |= {"dp_replicate": copies or 1} if divides else {}
    return {**dp, "zero": (reshard or (2 if fields.get("pp", 1) > 1 else 3)) if divides else 0}


def _recomputation(values: Values) -> str:
    group = values.get("activation_checkpoint")
    if isinstance(group, dict) and "function" in group:
        return "full" if "Full" in group["function"] else "selective"
    if "activation_checkpoint" in values and group is None:
        return "none"
    mode = str(value_at(values, "activation_checkpoint", "mode") or "selective")
    every = value_at(values, "activation_checkpoint", "selective_ac_option")
    if mode not in LIMITS.recompute or (mode == "selective" and str(every).isdigit() and str(every) != "1"):
        what = f"recomputes {mode} {every if mode == 'selective' else ''}".rstrip()
        do = 'write mode = "none", "selective" with selective_ac_option = "op", or "full"'
        raise BadInput(f"{what}, which is not priced", where="activation_checkpoint", do=do)
    return "full" if mode == "selective" and str(every) == "1" else mode


def _stages(values: Values, pp: int, fields: Mapping[str, Any], file: File) -> dict[str, Any]:
    """`schedule`, `vp` and `layers`; a schedule in rows is the one that has the rows of the file beside this one."""
    word, parts = str(_value(values, SCHEDULE) or "1F1B"), _value(values, STAGES)
    named = [name for name, titan in LIMITS.schedules.items() if titan.lower() == word.lower()]
    vp = len(parts) // pp if parts else 1 if word.lower() in ("1f1b", "gpipe") else 2
    layers = [sum(str(part).startswith("layers.") for part in stage) for stage in parts] if parts else None
    if word == BY_ROWS:
        rows, count = file.with_suffix(ROWS_ENDING), fields.get("micro_batches", 1)
        written = text_of(rows) if rows.is_file() else ""
        named = [name for name in named if _rows(name, pp, count, vp) == written]
    if not named:
        raise BadInput(f"{word} is not known", where=SCHEDULE, do=f"take one of {', '.join(LIMITS.schedules.values())}")
    return {"schedule": named[0], "vp": vp} | ({"layers": tuple(layers)} if layers else {})


def _rows(schedule: str, pp: int, micro_batches: int, vp: int) -> str:
    """The rows of a schedule; none of one that does not run so many micro-batches."""
    with suppress(BadInput):
        return str(build_schedule(schedule, pp, micro_batches, vp))
    return "none"


def split(layers: int, stages: int) -> tuple[int, ...]:
    """[stages] layers as torchtitan divides them, where the embedding and the head count as one each."""
    share, more = divmod(layers + 2, stages)
    counts = [share + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def _words(values: Values, fields: Mapping[str, Any], strategy: Strategy) -> dict[Path, Any]:
    """The values that say another strategy, of those keys that a file has or that are not as without them."""
    usual: dict[str, Any] = {
        **dict.fromkeys(COUNTS.values(), 1),
        "data_parallel_replicate_degree": 1,
        "global_batch_size": None,
    }
    usual |= {"enable_sequence_parallel": strategy.tp > 1 and strategy.sequence_parallel, "disable_cuda_graphs": True}
    usual |= {"data_parallel_shard_degree": strategy.dp // strategy.dp_replicate if strategy.zero else None}
    usual |= {"fsdp_reshard_after_forward": RESHARD.get(2 if strategy.pp > 1 else 3)}
    new: dict[Path, Any] = {}
    keys = chain(parallelism(strategy).items(), training(strategy).items())
    for key, value in keys:
        section = next((s for s in SECTIONS if key in values.get(s, {})), None)
        is_rest = key == "data_parallel_shard_degree" and _first(values, key) in (None, -1) and strategy.zero
        if is_rest or (section is None and usual.get(key, value) == value):
            continue
        new[section or ("training" if "batch_size" in key and "micro" not in key else "parallelism"), key] = value
    if strategy.stages > 1 and strategy.schedule != fields.get("schedule"):
        new["parallelism", SCHEDULE] = LIMITS.schedules[strategy.schedule]
    layers = strategy.layers
    if layers is not None:
        is_usual = layers == split(sum(layers), strategy.stages) or strategy.stages == 1
        new["parallelism", STAGES] = None if is_usual else list(module_names(layers))
    if strategy.recompute != fields["recompute"]:
        new["activation_checkpoint", "mode"] = strategy.recompute
    return new
