"""A plan in the words of torch.distributed.pipelining, run by it on this machine's CPUs, and what each stage took.

One process runs a stage. It is what the step-time model (cost.staged) is held against: passes, their order and their
processor time are real. Wall time is not read, as the processes share the machine's cores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline
from torch.multiprocessing.spawn import spawn
from torch.utils import _pytree as pytree

from automap_models.core.profile import Profile
from automap_models.core.schedules import Action, ActionKind
from automap_models.errors import BadInput
from automap_models.torch_export.capture import copy_model, training_outputs
from automap_models.torch_export.cuts import BEFORE
from automap_models.torch_export.measure import with_values
from automap_models.torch_export.profile import FRAMEWORK
from automap_models.user_code import user_code


def split_spec(profile: Profile, cuts: Sequence[int]) -> dict[str, SplitPoint]:
    """What `torch.distributed.pipelining.pipeline(model, mb_args, split_spec=…)` takes.

    Args:
        profile: of a torch model, made by automap-profile.
        cuts: last instruction of each stage but the last, as in plan.json.

    Raises:
        BadInput: a profile that was not made from a torch model, or a cut out of range.
    """
    if profile.meta.get("framework") != FRAMEWORK:
        raise BadInput("its instructions are no modules of torch", where=profile.model, do="profile a torch model")
    spec = {}
    for cut in cuts:
        if not 0 <= cut < len(profile) - 1:
            raise BadInput(f"there is no cut after instruction {cut}", where=profile.model, do="plan it again")
        name = profile.name(cut)
        spec[name.removeprefix(BEFORE)] = SplitPoint.BEGINNING if name.startswith(BEFORE) else SplitPoint.END
    return spec


FloatArray = NDArray[np.float64]
Loss = Callable[[Any, Tensor], Tensor]

TORCH_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
"""Torch's own, by their names in core.schedules."""
NO_ANSWER = timedelta(minutes=5)
"""After so long a stage that waits for another gives up."""
PARTS = ("forward_s", "backward_s", "update_s")
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class StageRun:
    """What one stage's process did in its steps of M micro-batches; [steps] seconds of processor time.

    Attributes:
        forward_s, backward_s: of the thread that computes, within the stage's passes, the loss included.
        update_s: of that thread, within an Adam update of the stage's parameters.
        process_s: of the whole process in the whole step: sending, receiving and splitting the batch, too.
        order: the passes of the last step in the order in which they ran.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    process_s: FloatArray
    order: tuple[Action, ...]


def run_pipeline(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    split_spec: Mapping[str, SplitPoint],
    schedule: str,
    loss: Loss | None = None,
    target: Tensor | None = None,
    micro_batches: int,
    name: str | None = None,
    repeats: int = 10,
    warmup: int = 3,
    seed: int = 0,
) -> list[StageRun]:
    """Train the model on M copies of one micro-batch, in as many processes as the split_spec makes stages.

    Every process has one thread for operators and parameters that are drawn as `measure_module` draws those of a model
    on the meta device.

    Args:
        args, kwargs: inputs of one micro-batch, their first dimension being samples. Torch 2.13 hands them to the first
            stage only: a model that computes its own loss must do without its labels here.
        split_spec: what the function `split_spec` makes of a plan's cuts.
        schedule: `1f1b` or `gpipe`.
        loss: of the model's output and the target, for the last stage; by default what `measure_module` starts from.
            A function at the top level of a module, as processes import it.
        target: of one micro-batch.
        micro_batches: M.
        name: of the model, in messages; its class by default.
        repeats: steps that count.
        warmup: steps before them.
        seed: of what is random.

    Returns:
        One run per stage.

    Raises:
        BadInput: a schedule that torch does not have, fewer micro-batches than stages, or fewer than one repeat.
        UserCodeError: a stage failed; it carries the traceback.
    """
    name = name or type(model).__name__
    if schedule not in TORCH_SCHEDULES:
        raise BadInput(f"no schedule {schedule!r}", where=name, do=f"take one of {', '.join(TORCH_SCHEDULES)}")
    if micro_batches <= len(split_spec):
        raise BadInput(
            f"{micro_batches} micro-batches for {len(split_spec) + 1} stages",
            where=name,
            do="give at least one for each: torch asks for it",
        )
    if repeats < 1 or warmup < 0:
        raise BadInput(f"{repeats} repeats after {warmup} warm-up steps", where=name, do="repeat at least once")
    shapes = copy_model(model, lambda tensor: tensor.to("meta"))  # values would have to be sent to every process
    batch = _Batch(args, dict(kwargs or {}), torch.zeros(1) if target is None else target)
    job = _Job(shapes, batch, loss or _loss, dict(split_spec), schedule, micro_batches, warmup + repeats, seed)
    with tempfile.TemporaryDirectory() as folder, user_code(name):
        spawn(_run_stage, (job, folder), nprocs=job.stages)  # type: ignore[no-untyped-call]
        return [_read(_record(folder, rank), warmup) for rank in range(job.stages)]


@dataclass(frozen=True)
class _Batch:
    """One micro-batch, or all of them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> _Batch:
        """The batch with every tensor changed."""
        return _Batch(*pytree.tree_map_only(Tensor, change, (self.args, self.kwargs, self.target)))


@dataclass(frozen=True)
class _Job:
    """What all stages have to know."""

    model: nn.Module
    batch: _Batch
    loss: Loss
    split_spec: dict[str, SplitPoint]
    schedule: str
    micro_batches: int
    steps: int
    seed: int

    @property
    def stages(self) -> int:
        return len(self.split_spec) + 1


@dataclass
class _Watch:
    """One step of a stage: its passes in order and what its parts took, processor time of the thread they run in."""

    order: list[Action] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def noted(self, kind: ActionKind, rank: int, one_chunk: Callable[..., Any]) -> Callable[..., Any]:
        """The stage's method for the pass of one micro-batch, which comes first among its arguments."""

        def run(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            self.order.append(Action(kind, rank, micro_batch))
            return one_chunk(micro_batch, *args, **kwargs)

        return self.timed("forward_s" if kind == "F" else "backward_s", run)

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Work that counts for a part; autograd works on CPUs in the thread that calls it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            result = work(*args, **kwargs)
            self.seconds[part] += time.thread_time() - start
            return result

        return run


def _run_stage(rank: int, job: _Job, folder: str) -> None:
    """One process: the steps of its stage, recorded in a file."""
    warnings.filterwarnings("ignore", ".*treespec", FutureWarning)  # torch's own, each time it copies a graph
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's own name need not have an address
    rendezvous = (Path(folder) / "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=job.stages, timeout=NO_ANSWER)
    try:
        steps = list(_steps(rank, job))
    finally:
        dist.destroy_process_group()
    _record(folder, rank).write_text(json.dumps(steps))


def _steps(rank: int, job: _Job) -> Iterator[dict[str, Any]]:
    """What each step took, the warm-up included."""
    torch.manual_seed(job.seed)
    watch, micro_batch = _Watch(), job.batch.map(_on_cpu)
    whole = micro_batch.map(lambda tensor: torch.cat([tensor] * job.micro_batches))
    stage = pipeline(
        copy_model(job.model, _on_cpu), micro_batch.args, micro_batch.kwargs, split_spec=job.split_spec
    ).build_stage(rank, CPU)
    stage.forward_one_chunk = watch.noted("F", rank, stage.forward_one_chunk)  # type: ignore[method-assign]
    stage.backward_one_chunk = watch.noted("B", rank, stage.backward_one_chunk)  # type: ignore[method-assign]
    schedule = TORCH_SCHEDULES[job.schedule](stage, job.micro_batches, watch.timed("forward_s", job.loss))
    optimizer = torch.optim.Adam([{"params": list(stage.submod.parameters())}])  # a stage may have none
    update = watch.timed("update_s", optimizer.step)
    args, kwargs = (whole.args, whole.kwargs) if stage.is_first else ((), {})
    for _ in range(job.steps):
        watch.order, watch.seconds = [], dict.fromkeys(PARTS, 0.0)
        start = time.process_time()
        schedule.step(*args, **kwargs, target=whole.target if stage.is_last else None, return_outputs=False)
        update()
        optimizer.zero_grad()
        yield {**watch.seconds, "process_s": time.process_time() - start, "order": watch.order}


def _on_cpu(tensor: Tensor) -> Tensor:
    return with_values(tensor, CPU)


def _loss(output: Any, _target: Tensor) -> Tensor:
    """What `measure_module` starts the backward pass from, as one number."""
    return torch.stack([tensor.sum() for tensor in training_outputs(output)]).sum()


def _record(folder: str, rank: int) -> Path:
    return Path(folder) / f"stage_{rank}.json"


def _read(path: Path, warmup: int) -> StageRun:
    steps = json.loads(path.read_text())[warmup:]
    seconds = {part: np.array([step[part] for step in steps]) for part in (*PARTS, "process_s")}
    return StageRun(**seconds, order=tuple(Action(*action) for action in steps[-1]["order"]))
