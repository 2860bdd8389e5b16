"""Plans with equal replicas on torch.distributed.pipelining: its stages and schedules, DDP or FSDP2 inside a stage.

Processes make a mesh of replicas and ranks; each row is a pipeline, each column the replicas of a rank:

    mesh (dp, pp)     rank 0    rank 1    rank 2
    replica 0            0 ───────2 ───────4
    replica 1            1 ───────3 ───────5

A plan's stages read inputs and targets where they need them, which torch's stages do not: what goes through the
schedule in their place is the number of the micro-batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from automap_models.core.passes import Schedule
from automap_models.run.layout import Layout
from automap_models.run.torch_clock import Clock
from automap_models.run.torch_sharding import shard
from automap_models.run.torch_stages import CutModel, Loss, Seeds, Value, loss_of

SINGLE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
"""Schedules of one stage a rank that torch has a class for."""
MULTIPLE = {"interleaved": "Interleaved1F1B"}
"""Schedules of several; all others are loaded as an order of our own. Those that split backward passes: `why_not`."""
CARRIER = "micro_batch"
"""Argument by which a stage is told which micro-batch it works on."""


def why_not(layout: Layout, holders: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why torch's classes cannot run a plan; None where they can.

    Args:
        holders: parameter → the stages that read it.
    """
    schedule = layout.schedule
    if schedule.splits_backward:  # torch 2.13: DDP and FSDP2 lose part of them, and gloo sends no tensor with gaps
        return f"{schedule.name} splits backward passes, whose gradients torch's stages do not reduce over replicas"
    if not layout.is_even:
        return "its stages have unequal replicas, or these unequal parts of a micro-batch"
    if schedule.stages == 1:
        return "it has one stage"
    if schedule.name == "1f1b" and schedule.micro_batches < schedule.stages:
        return f"torch's 1F1B needs a micro-batch for each of the {schedule.stages} stages"
    if len(layout.processes[0]) > 1:
        for name, stages in holders.items():
            ranks = [schedule.rank_of[stage] for stage in stages]
            if len(set(ranks)) < len(ranks):
                return f"two stages of one rank share {name}, which DDP would reduce twice"
    return None


class ScheduleExecutor:
    """The rank of one process under a schedule of torch; arguments as those of `torch_executor.StageExecutor`."""

    def __init__(
        self,
        cut: CutModel,
        layout: Layout,
        process: int,
        loss: Loss | None,
        device: torch.device,
        seeds: Seeds | None = None,
        zero: int = 0,
    ) -> None:
        self.cut, self.layout, self.loss, self.device, self.zero = cut, layout, loss, device, zero
        self.local_stages, self.replica = layout.stages_of(process), layout.replica(process)
        self.inputs: Callable[[int, int], Mapping[str, Any]] = lambda _s, _m: {}
        self.targets: Callable[[int], Any] = lambda _m: None
        self.losses: list[Tensor] = []
        self.clock = Clock(device, self.replica)
        schedule = layout.schedule
        mesh = DeviceMesh(
            device.type,
            [[layout.processes[rank][r] for rank in range(schedule.ranks)] for r in range(len(layout.processes[0]))],
            mesh_dim_names=("dp", "pp"),
        )
        stages = [self._stage(s, mesh.get_group("pp"), mesh["dp"], seeds) for s in self.local_stages]
        self.schedule = _torch_schedule(schedule, stages, lambda output, _target: output[0])

    def _stage(self, s: int, pipeline: dist.ProcessGroup, replicas: DeviceMesh, seeds: Seeds | None) -> PipelineStage:
        module: nn.Module = _StageModule(self, s, seeds)
        if replicas.size() > 1 and self.cut.stages[s].parameters:
            if self.zero:
                shard(module, replicas, self.zero)
            else:
                module = DistributedDataParallel(module, process_group=replicas.get_group(), broadcast_buffers=False)
        cut_stage = self.cut.stages[s]
        scalar = Value("loss", (), torch.float32, True)
        sent = cut_stage.sent if s < self.layout.schedule.stages - 1 else (scalar,)
        received, given = (tuple(_example(value) for value in values) for values in (cut_stage.received, sent))
        stage = PipelineStage(module, s, self.layout.schedule.stages, self.device, received, given, group=pipeline)
        for name, kind in (("forward_one_chunk", "F"), ("backward_one_chunk", "B")):
            setattr(stage, name, self._timed(s, kind, getattr(stage, name)))
        return stage

    def _timed(self, s: int, kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            with self.clock.timing(kind, s, micro_batch):
                return method(micro_batch, *args, **kwargs)

        return run

    def run(
        self, inputs: Callable[[int, int], Mapping[str, Any]], targets: Callable[[int], Any], clock: Clock
    ) -> Tensor:
        """See `torch_executor.StageExecutor.run`."""
        self.inputs, self.targets, self.clock = inputs, targets, clock
        self.losses = [torch.zeros((), device=self.device)]
        numbers = torch.arange(self.layout.schedule.micro_batches)
        is_last = self.layout.schedule.stages - 1 in self.local_stages
        self.schedule.step(target=numbers if is_last else None, return_outputs=False, **{CARRIER: numbers})
        return torch.stack(self.losses).sum()

    def loss_part(self, outputs: list[Any], micro_batch: int) -> Tensor:
        """What the backward pass starts from: DDP takes the mean over replicas, so that only M is divided by."""
        samples = self.layout.samples // len(self.layout.processes[0])
        returned = pytree.tree_unflatten(outputs, self.cut.out_spec)
        part = loss_of(returned, self.loss, self.targets(micro_batch), samples) / self.layout.schedule.micro_batches
        self.losses.append(part.detach() / len(self.layout.processes[0]))
        return part


class _StageModule(nn.Module):
    """A stage as torch's: received values in order, and the number of the micro-batch."""

    def __init__(self, executor: ScheduleExecutor, s: int, seeds: Seeds | None) -> None:
        super().__init__()
        self.executor, self.s, self.seeds = executor, s, seeds
        self.stage = executor.cut.stages[s].module

    def forward(self, *received: Tensor, micro_batch: Tensor) -> tuple[Tensor, ...]:
        """The values that are sent, or of the last stage the loss."""
        executor, m = self.executor, int(micro_batch)
        if self.seeds is not None:
            self.seeds(self.s, m)
        given = executor.inputs(self.s, m)
        outputs = self.stage(*received, *(given[name] for name in executor.cut.stages[self.s].inputs))
        if self.s == executor.layout.schedule.stages - 1:
            return (executor.loss_part(list(outputs), m),)
        return tuple(outputs)


def _torch_schedule(schedule: Schedule, stages: list[PipelineStage], loss: Callable[..., Tensor]) -> Any:
    options: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
    if schedule.name in SINGLE:
        return SINGLE[schedule.name](stages[0], schedule.micro_batches, **options)
    if schedule.name in MULTIPLE:
        return get_schedule_class(MULTIPLE[schedule.name])(stages, schedule.micro_batches, **options)
    runtime = _PipelineScheduleRuntime(stages, schedule.micro_batches, **options)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(str(schedule))
        runtime._load_csv(str(path), format="compute_only")
    return runtime


def _example(value: Value) -> Tensor:
    """The shape of a value, without its values."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta", requires_grad=value.differentiable)
