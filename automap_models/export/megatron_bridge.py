"""Megatron-Bridge and NeMo: a YAML of overrides of the model's recipe, whose keys are fields of its ConfigContainer.

Stages are Megatron's layout (megatron.py). All that a strategy says is written, also where it is as usual, since the
recipe may say otherwise. Checked against the configuration files of Megatron-Bridge 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from automap_models.core.framework import Divided
from automap_models.core.strategy import ONCE_A_NODE, Precision, modules_of
from automap_models.export import megatron
from automap_models.export.model_blocks import BlockPlan, block_target
from automap_models.export.target import Written

NAME = "megatron-bridge"
PRECISIONS: Mapping[Precision, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Precision → the name of its recipe (training/mixed_precision.py)."""


def images_over_cp(divided: Divided) -> bool:
    """Images are divided among cp (`vision_dp_when_cp`)."""
    return divided.tower_tp == divided.tp


def images_apart(divided: Divided) -> bool:
    """They are, or a tower has degrees of its own on the devices of a model without a pipeline and cp (MIMO)."""
    return images_over_cp(divided) or divided.pp * divided.cp == 1


LIMITS = replace(megatron.LIMITS, name=NAME, precisions=tuple(PRECISIONS), images_apart=images_apart)


def write(plan: BlockPlan, path: Path) -> Written:
    """The overrides."""
    document: dict[str, Any] = {}
    for keys, value in overrides(plan).items():
        group = document
        for key in keys[:-1]:
            group = group.setdefault(key, {})
        group[keys[-1]] = value
    line = f"# {plan.model} for Megatron-Bridge, written by automap export: overrides of the recipe of this model\n"
    shape = plan.facts.shape
    notes = [] if shape is None else [f"the recipe's seq_length, of the model and of the dataset, is {shape.sequence}"]
    if plan.strategy.image_groups > 1 and not images_over_cp(plan.strategy):
        notes.append(MIMO.format(plan.strategy.tower_tp, plan.strategy.dp * plan.strategy.image_groups))
    return Written(line + yaml.safe_dump(document, sort_keys=False, width=10_000), notes=tuple(notes))


def overrides(plan: BlockPlan) -> dict[tuple[str, ...], Any]:
    """Section and key → value; None where the strategy has nothing of the kind."""
    s, kind = plan.strategy, plan.recompute(NAME)
    degrees = {argument: s.expert_tensor if name == "etp" else getattr(s, name) for name, argument in COUNTS.items()}
    full, modules, hosts = kind == "full", [*modules_of(kind)], s.offload == "optimizer"
    once = s.dispatcher if s.dispatcher in ONCE_A_NODE else None
    mtp = (plan.facts.shape is not None and plan.facts.shape.mtp_layers) or 0
    model = {
        **degrees,
        "virtual_pipeline_model_parallel_size": s.vp if s.vp > 1 else None,
        "pipeline_model_parallel_layout": megatron.layout_text(plan.layers, mtp) if s.stages > 1 else None,
        "sequence_parallel": s.sequence_parallel and s.tp > 1,
        "recompute_granularity": "selective" if modules else kind if kind in ("selective", "full") else None,
        "recompute_modules": modules or None,
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
    }
    reads_images = plan.facts.shape is not None and plan.facts.shape.images
    if s.cp > 1 and (reads_images or s.image_groups > 1):
        model |= {"vision_dp_when_cp": s.image_groups > 1}
    if plan.offloaded:
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": plan.offloaded}
    if s.dispatcher is not None and s.ep > 1:
        model |= {"moe_token_dispatcher_type": "flex" if once else s.dispatcher, "moe_flex_dispatcher_backend": once}
    optimizer: dict[str, Any] = {"use_distributed_optimizer": s.zero > 0 or hosts, "optimizer_cpu_offload": hosts}
    if hosts:
        optimizer |= {"optimizer_offload_fraction": 1.0, "use_precision_aware_optimizer": True}
        optimizer |= {"overlap_cpu_optimizer_d2h_h2d": True}
    sections: Mapping[str, Mapping[str, Any]] = {
        "model": model,
        "train": {"micro_batch_size": s.micro_batch, "global_batch_size": s.global_batch},
        "ddp": {"use_distributed_optimizer": optimizer["use_distributed_optimizer"], INSTANCES: s.dp_replicate},
        "optimizer": optimizer,
    }
    written: dict[tuple[str, ...], Any] = {
        (section, key): value for section, group in sections.items() for key, value in group.items()
    }
    return written | {("mixed_precision",): PRECISIONS.get(s.precision)}


MIMO = (
    "the recipe has one tp: a MegatronMIMOParallelismConfig gives the tower tensor_model_parallel_size {} and "
    "data_parallel_size {} on all ranks"
)
INSTANCES = "num_distributed_optimizer_instances"
COUNTS = {
    name: argument[2:].replace("-", "_")
    for name, argument in megatron.COUNTS.items()
    if "batch" not in name and name != "dp_replicate"
}
"""Degree of a strategy → its key."""


def check(plan: BlockPlan, path: Path) -> None:
    """Megatron's TransformerConfig takes the values of the file, and reads the stages of the plan in its layout."""
    document = yaml.safe_load(path.read_text("utf-8"))
    values = {**document["model"], **document["train"], "num_layers": sum(plan.layers)}
    megatron.check_arguments(
        plan, {f"--{key.replace('_', '-')}": _text(value) for key, value in values.items() if value}
    )


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else "" if value is True else str(value)


TARGET = block_target(LIMITS, megatron.DISTRIBUTION, ".yaml", write, check)
