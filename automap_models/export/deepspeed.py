"""DeepSpeed: a Python module with a PipelineModule whose stages are the plan's, and the configuration beside it.

DeepSpeed balances stages itself and takes no list of them, so that the module overrides `_partition_layers`, where
`parts` says with which of its layers each stage begins. Its layers are the embedding, the blocks and the head:

    layers   embedding   block 0   block 1   block 2   block 3   head
    parts    0                               3                        6      two stages of two blocks each

Without a pipeline the configuration is enough: a file that ends in .json has nothing else.

Its pipeline runs 1F1B, and shares the optimiser's state at most (ZeRO-1). Checked against DeepSpeed 0.19
(runtime/pipe/module.py, runtime/pipe/schedule.py, runtime/config.py).
"""

from __future__ import annotations

import json
import runpy
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from automap_models.core.framework import Limits, Objection
from automap_models.core.strategy import Strategy
from automap_models.export.model_blocks import BlockPlan, block_target, require_none
from automap_models.export.target import Written, parser_module, require_same
from automap_models.formats.atomic import json_text
from automap_models.resources import template

NAME = "deepspeed"
DISTRIBUTION = "deepspeed"
LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "TrainSchedule"},
    pipeline_zeros=(0, 1),
    recompute=("none", "full"),
    precisions=("fp32", "fp16", "bf16"),
    offloads=("none", "optimizer"),
    pipeline_offloads=False,
    undivided=("cp", "ep"),
    any_training=True,
)
_PRECISION: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": {"enabled": True}},
    "bf16": {"bf16": {"enabled": True}},
}
_HEADER = '''\
"""{model} for DeepSpeed, written by automap export: engine, *_ = initialize(…)."""

import deepspeed
{imports}
CONFIG = {config}

'''
_IMPORTS = """\
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
"""


def write(plan: BlockPlan, path: Path) -> Written:
    """The module; of a file that ends in .json the configuration alone.

    Raises:
        Inexpressible: that has no words for a pipeline.
    """
    s, is_json = plan.strategy, path.suffix == ".json"
    notes = []
    if is_json and s.pp > 1:
        require_none(Objection("a JSON of deepspeed has no pipelines", "write a .py"), plan.where)
    if s.pp == 1:
        body = template("deepspeed_whole")
        if plan.recompute(NAME) == "full":
            notes.append("without a pipeline the model has to checkpoint its blocks itself")
    else:
        numbers = {"pp": s.pp, "tp": s.tp, "dp": s.dp, "blocks": sum(plan.layers)}
        body = template("deepspeed_pipeline").format(
            parts=parts(plan.layers), interval=int(plan.recompute(NAME) == "full"), **numbers
        )
    if s.tp > 1:
        notes.append(f"the {s.tp} devices of a replica share operators as its layers do: DeepSpeed divides none itself")
    if is_json:
        return Written(json_text(config(s)) + "\n", notes=tuple(notes))
    header = _HEADER.format(model=plan.model, imports=_IMPORTS if s.pp > 1 else "", config=repr(config(s)))
    return Written(header + body, notes=tuple(notes))


def config(s: Strategy) -> dict[str, Any]:
    """DeepSpeed's configuration."""
    batches = {"train_batch_size": s.global_batch, "train_micro_batch_size_per_gpu": s.micro_batch}
    zero: dict[str, Any] = {"stage": s.zero}
    if s.offload == "optimizer":  # alone, a device has all that ZeRO divides
        zero = {"stage": s.zero or 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    batches["gradient_accumulation_steps"] = s.micro_batches
    return {**batches, "zero_optimization": zero, **_PRECISION[s.precision]}


def parts(layers: tuple[int, ...]) -> list[int]:
    """[S+1] the layer with which each stage begins; the embedding is a layer, and so is the head."""
    counts = list(layers)
    counts[0] += 1
    counts[-1] += 1
    return list(accumulate(counts, initial=0))


def check(plan: BlockPlan, path: Path) -> None:
    """DeepSpeed builds the bounds of the plan's stages from the module, and its batches agree."""
    s = plan.strategy
    settings = parser_module("deepspeed.runtime.config", DISTRIBUTION)
    topologies = parser_module("deepspeed.runtime.pipe.topology", DISTRIBUTION)
    parser_module("deepspeed.pipe", DISTRIBUTION)
    is_json = path.suffix == ".json"
    read = {"CONFIG": json.loads(path.read_text("utf-8"))} if is_json else runpy.run_path(str(path))
    ranks = SimpleNamespace(get_data_parallel_world_size=lambda: s.dp)
    from unittest.mock import patch  # with what it imports a twentieth of a second, for a check alone

    with patch.object(settings.dist, "get_rank", return_value=0):  # no process group is open here
        batches = settings.DeepSpeedConfig(read["CONFIG"], mpu=ranks)
    require_same("batch", batches.gradient_accumulation_steps, s.micro_batches)
    require_same("ZeRO stage", int(batches.zero_config.stage), config(s)["zero_optimization"]["stage"])
    offloaded = batches.zero_config.offload_optimizer is not None
    require_same("optimizer on hosts", offloaded, s.offload == "optimizer")
    precisions = (batches.float16_config.enabled, batches.bfloat16_config.enabled)
    require_same("precision", precisions, (s.precision == "fp16", s.precision == "bf16"))
    if s.pp > 1:
        topology = topologies.PipeModelDataParallelTopology(num_pp=s.pp, num_mp=s.tp, num_dp=s.dp)
        bounds = [_bounds(read["PlannedPipeline"], topology, rank, plan) for rank in range(topology.world_size())]
        layer_parts = parts(plan.layers)
        stages = [topology.get_coord(rank).pipe for rank in range(topology.world_size())]
        require_same("bounds", bounds, [(layer_parts[stage], layer_parts[stage + 1]) for stage in stages])


def _bounds(module: Any, topology: Any, rank: int, plan: BlockPlan) -> tuple[int, int]:
    """First layer and end of the stage that DeepSpeed builds on a rank."""
    built = module.__new__(module)
    object.__setattr__(built, "__dict__", {"_topo": topology, "global_rank": rank, "num_stages": plan.strategy.pp})
    built.__dict__["_layer_specs"] = [None] * (sum(plan.layers) + 2)
    built._partition_layers()
    return built._local_start, built._local_stop


TARGET = block_target(LIMITS, DISTRIBUTION, ".py", write, check)
