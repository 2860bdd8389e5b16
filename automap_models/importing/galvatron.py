"""Galvatron: the JSON of `--galvatron_config_path`, which `export.galvatron` explains."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.galvatron import LIMITS, ZEROS, document
from automap_models.export.model_blocks import BlockPlan
from automap_models.importing.documents import Document, count_at, unread
from automap_models.importing.setting import Setting

NOTE = "Galvatron's command line says the precision and sequence parallelism: priced in bf16, and without"
SEARCHED = frozenset({"tp", "pp", "dp", "micro_batch", "recompute", "recompute_blocks", "zero", "schedule", "layers"})
SHARED = {"use_sp": "0", "cp_sizes_enc": "1"}
"""How layers may share sequences → the number of one that does not."""


def read(file: Document) -> Setting:
    """What a configuration says.

    Raises:
        BadInput: it contradicts itself, or its layers differ in what a strategy has one of.
    """
    values, layers = file.values, _numbers(file, "pp_division")
    tensor, sharded, flags = (
        _numbers(file, key, sum(layers)) for key in ("tp_sizes_enc", "dp_types_enc", "checkpoint")
    )
    for key, numbers in (("tp_sizes_enc", tensor), ("dp_types_enc", sharded)):
        if len({*numbers}) > 1:
            where, which = f"{key} ({file.line((key,))})", ", ".join(map(str, sorted({*numbers})))
            raise BadInput(f"is {which}, and is priced alike in all layers alone", where=where, do="give all the same")
    schedule = next((name for name, word in LIMITS.schedules.items() if word == values.get("pipeline_type")), None)
    zeros = (stage for stage, word in ZEROS.items() if word == values.get("default_dp_type"))
    zero = 3 if sharded[0] else next(zeros, None)
    if schedule is None or zero is None or len(layers) != count_at(values, "pp_deg"):
        do = "give pp_division pp_deg stages, and pipeline_type and default_dp_type words of Galvatron"
        raise BadInput("is no strategy of Galvatron", do=do)
    recomputed = tuple(sum(flags[first:last]) for first, last in pairwise(accumulate(layers, initial=0)))
    fields: dict[str, Any] = {"tp": tensor[0], "pp": len(layers), "layers": layers, "schedule": schedule, "zero": zero}
    fields |= {"recompute": "full" if any(recomputed) else "none", "precision": "bf16", "sequence_parallel": False}
    fields |= {"recompute_blocks": None if recomputed in (layers, (0,) * len(layers)) else recomputed}
    fields |= {"global_batch": count_at(values, "global_bsz"), "micro_batches": count_at(values, "chunks")}
    left_out, notes = unread(file, "galvatron")
    shared = (key for key, alone in SHARED.items() if {*str(values.get(key, alone)).split(",")} != {alone})
    left_out |= {key: file.line((key,)) for key in shared}

    def rewrite(strategy: Strategy) -> str:
        equal = (sum(layers) // strategy.stages,) * strategy.stages
        plan = BlockPlan("", replace(strategy, layers=strategy.layers or equal), (strategy.tp,) * strategy.pp)
        return file.edited({(key,): new for key, new in document(plan).items() if values.get(key, new) != new})

    parts: dict[str, Any] = {"fields": fields, "searched": SEARCHED, "rewrite": rewrite, "unread": left_out}
    return Setting(
        limits=LIMITS, runtime="general", text=file.text, lacking=("the model",), notes=(NOTE, *notes), **parts
    )


def _numbers(file: Document, key: str, count: int | None = None) -> tuple[int, ...]:
    """The whole numbers of a text with commas, as many as there are layers."""
    words = str(file.values.get(key)).split(",")
    if not all(word.isdecimal() and len(word) < 10 for word in words) or count not in (None, len(words)):
        what = "is no text of whole numbers" if count is None else f"is no text of {count} whole numbers, one a layer"
        raise BadInput(what, where=f"{key} ({file.line((key,))})", do="write such as 2,2,4,4")
    return tuple(map(int, words))
