"""All targets by name; nothing here imports numpy, since help lists them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

if TYPE_CHECKING:
    from automap_models.core.framework import Limits
    from automap_models.export.target import Target

TARGETS: Mapping[str, str] = {
    "torch-csv": "torch.distributed.pipelining: the schedule, a row a rank",
    "torch-split-spec": "torch.distributed.pipelining: a Python program that cuts the model and runs the stages",
    "torchtitan": "torchtitan: its parallelism, training and recomputation configs",
    "megatron": "Megatron-LM: arguments, with the layout of its stages",
    "megatron-bridge": "Megatron-Bridge and NeMo: overrides of a recipe, with the layout of its stages",
    "deepspeed": "DeepSpeed: a PipelineModule with the plan's stages, and its configuration",
    "accelerate": "Accelerate, and with it Trainer and TRL: FSDP2 or DDP, and context parallelism",
    "galvatron": "Hetu-Galvatron: the parallelism of every layer",
    "jax": "JAX: meshes, and a PartitionSpec for every parameter",
    "hf": "Hugging Face transformers: tensor and pipeline parallel plans",
}
"""Name of a target → what is written; its module has the name with underscores and a TARGET."""

LAUNCHES = ("slurm", "skypilot", "jobset")
"""What starts programs on a cluster that `export.launch` writes for."""
PLANNED_FOR = ("torch-split-spec", "megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "galvatron")
"""Those that restrict where a model is cut or how devices are shared out, of equals the preferred ones first."""


def training_limits() -> dict[str, Limits]:
    """Name of each target that takes strategies → what it can express of them."""
    targets = ((name, target_by_name(name)) for name in PLANNED_FOR)
    return {name: target.limits for name, target in targets if target.takes_strategies and target.limits is not None}


def strategy_limits(name: str) -> Limits:
    """What a target can express of strategies.

    Raises:
        BadInput: there is none of that name, or it takes no strategies.
    """
    target_by_name(name)
    if name not in (limits := training_limits()):
        raise BadInput(f"{name} takes no strategies", where="`target`", do="leave it out, or take another framework")
    return limits[name]


def target_by_name(name: str) -> Target:
    """A target.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in TARGETS:
        raise BadInput(f"unknown target {name!r}", where="`target`", do=f"choose from {', '.join(TARGETS)}")
    target: Target = import_module(f"automap_models.export.{name.replace('-', '_')}").TARGET
    return target
