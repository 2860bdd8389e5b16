"""Galvatron (Hetu-Galvatron): the JSON of `--galvatron_config_path`, in which every layer has its own parallelism.

Lists are texts with commas, one number a layer: devices that share its operators (`tp_sizes_enc`), whether its weights
are shared among replicas (`dp_types_enc`, 1 is ZeRO-3), whether it is recomputed (`checkpoint`). `pp_division` has one
number a stage, its layers. Stages of a hybrid may divide their operators each by its own number of devices.

Checked against Hetu-Galvatron 2.4.1 (utils/config_utils.py, core/runtime/hybrid_parallel_config.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from automap_models.core.framework import Limits
from automap_models.export.model_blocks import BlockPlan, block_target
from automap_models.export.target import Written, parser_module, require_same
from automap_models.formats.atomic import json_text

NAME = "galvatron"
DISTRIBUTION = "hetu-galvatron"
LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "pipedream_flush", "gpipe": "gpipe"},
    own_code=False,
    recurrent=False,
    tower=None,
    mtp=False,
    cuts="inner blocks",
    sharding="by stage",
    power_of_two=True,
    zeros=(0, 2, 3),
    recompute=("none", "full"),
    recompute_alike=False,
    precisions=("fp32", "fp16", "bf16"),
    undivided=("cp", "ep"),
    rare=True,
)
EMBEDDING = ("embed_sdp", "vocab_sdp")
"""Whether the embedding and the head are divided, too: its name in 2.4.0, and since 2.4.1."""
ZEROS = {0: "ddp", 2: "zero2", 3: "zero3"}
"""Stage of ZeRO → what it is called."""


def write(plan: BlockPlan, path: Path) -> Written:
    """The document."""
    note = f"run Galvatron with --mixed_precision {plan.strategy.precision}, which its file does not hold"
    return Written(json_text(document(plan)) + "\n", notes=(note,))


def document(plan: BlockPlan) -> dict[str, Any]:
    """Galvatron's document of a plan."""
    s, layers = plan.strategy, plan.layers

    def by_layer(of_stages: tuple[int, ...]) -> str:
        return _text([number for number, count in zip(of_stages, layers, strict=True) for _ in range(count)])

    def alike(number: int) -> str:
        return by_layer((number,) * len(layers))

    return {
        "pp_deg": s.pp,
        "tp_sizes_enc": by_layer(plan.tensor),
        "tp_consecutive_flags": alike(1),
        "dp_types_enc": alike(int(s.zero == 3)),
        "use_sp": alike(0),
        "checkpoint": _text(recomputed_layers(plan)),
        "global_bsz": s.global_batch,
        "chunks": s.micro_batches,
        "pp_division": _text(layers),
        "pipeline_type": LIMITS.schedules[s.schedule],
        "default_dp_type": ZEROS[s.zero],
        "vtp": min(plan.tensor),
        "vsp": 0,
        **dict.fromkeys(EMBEDDING, int(s.zero == 3)),
    }


def recomputed_layers(plan: BlockPlan) -> list[int]:
    """[layers] 1 for each that is recomputed: the first ones of a stage."""
    stages = zip(plan.recomputed, plan.layers, strict=True)
    return [int(kind == "full" and i < blocks) for (kind, blocks), count in stages for i in range(count)]


def _text(numbers: Any) -> str:
    return ",".join(map(str, numbers))


def check(plan: BlockPlan, path: Path) -> None:
    """Galvatron's reader of strategies reads the plan's stages and degrees."""
    s = plan.strategy
    reader = parser_module("galvatron.utils.config_utils", DISTRIBUTION)
    written = json.loads(path.read_text("utf-8"))
    strategy = reader.config2strategy(written)
    if len(strategy) == 9:  # since 2.4.1 context parallelism of the layers is the third, of the vocabulary the last
        strategy = (*strategy[:2], *strategy[3:8])
    pp, tensor, _, dp_types, _, vocabulary, _ = strategy
    of_layers = [t for t, count in zip(plan.tensor, plan.layers, strict=True) for _ in range(count)]
    require_same("stages", (pp, tuple(reader.str2array(written["pp_division"]))), (s.pp, plan.layers))
    require_same("tensor parallelism", (tensor, vocabulary), (of_layers, min(plan.tensor)))
    require_same("ZeRO-3", set(dp_types), {int(s.zero == 3)})
    require_same("recomputed layers", reader.str2array(written["checkpoint"]), recomputed_layers(plan))
    require_same("batch", (written["global_bsz"], written["chunks"]), (s.global_batch, s.micro_batches))


TARGET = block_target(LIMITS, DISTRIBUTION, ".json", write, check)
