"""What the JAX backend needs to know of a plan, whatever its kind: the cuts, and each stage's devices and shardings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.written_plan import WrittenPlan
from automap_models.errors import BadInput
from automap_models.run.base import processes_of

DATA, MODEL = "data", "model"
"""Axes of a stage's mesh: replicas that each take samples of a micro-batch, and devices that share operators."""


@dataclass(frozen=True)
class StageLayout:
    """Where a stage runs.

    Attributes:
        devices: positions of its d·t devices, numbered along `model` first.
        data: replicas d, which share the samples of a micro-batch.
        model: devices t of a replica, which share operators.
        dims: along `model`, the dimension of each variable that is partitioned; others are replicated.
        data_dims: along `data` likewise; None for the samples of every input, which replicas of a stage share.
    """

    devices: tuple[int, ...]
    data: int = 1
    model: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    data_dims: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.devices) != self.data * self.model:
            what = f"{self.data} replicas of {self.model} devices each on {len(self.devices)} devices"
            raise BadInput(what, where="a stage", do="give each stage as many devices as its replicas have")


@dataclass(frozen=True)
class Layout:
    """A plan as the JAX backend runs it.

    Attributes:
        cuts: [S-1] last forward instruction of each stage but the last.
        stages: [S] where each runs.
        schedule: the order of passes; its virtual stages are the stages.
        where: the file that the plan comes from.
    """

    cuts: tuple[int, ...]
    stages: tuple[StageLayout, ...]
    schedule: Schedule
    where: str = "the plan"

    @property
    def devices(self) -> int:
        """How many devices there have to be."""
        return 1 + max(device for stage in self.stages for device in stage.devices)

    @property
    def micro_batches(self) -> int:
        """M."""
        return self.schedule.micro_batches


def layout_of(plan: WrittenPlan, schedule: Schedule) -> Layout:
    """The layout of a plan whose stages run in a schedule's order."""
    data_dims = None
    if plan.arguments:
        dims = {name: argument.data_dim for name, argument in plan.arguments.items()}
        data_dims = {name: dim for name, dim in dims.items() if dim != REPLICATED}
    stages = tuple(
        StageLayout(devices, stage.replicas, stage.tensor, _dims(plan, stage.sharding), data_dims)
        for stage, devices in zip(plan.stages, processes_of(plan, schedule), strict=True)
    )
    return Layout(tuple(stage.last for stage in plan.stages[:-1]), stages, schedule, plan.where)


def on_one_device(micro_batches: int) -> Layout:
    """One stage on one device, which runs micro-batch after micro-batch: what every plan has to agree with."""
    return Layout((), (StageLayout((0,)),), build_schedule(None, 1, micro_batches))


def _dims(plan: WrittenPlan, sharding: str | None) -> Mapping[str, int]:
    if sharding is None:
        return {}
    if sharding not in plan.shardings:
        what = f"a stage is sharded by {sharding!r}, which the plan does not describe"
        raise BadInput(what, where=plan.where, do="plan again for this profile and cluster")
    return plan.shardings[sharding][1]
