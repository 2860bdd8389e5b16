"""automap run on torch: one command starts a process a device, or is one of torchrun's.

Every process builds the model from the same seed, keeps the tensors of its own stages and trains them on data that all
draw alike: for each step and micro-batch, samples of the factory's example picked at random. Adam updates.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.core.profile import FloatArray, Profile
from automap_models.core.run_record import Comparison, Pass, RunRecord, StepRecord
from automap_models.errors import AutomapError, BadInput
from automap_models.run.base import RunProblem, Say, compare, tolerance_of
from automap_models.run.layout import Layout, layout_of, sampled_layout
from automap_models.run.torch_clock import CLOCKS, Clock
from automap_models.run.torch_pipeline import Pipeline
from automap_models.run.torch_reference import Reference, without_dropout
from automap_models.run.torch_stages import AFTER, Sampled, in_modules, in_operators, require_model, rows, sampled
from automap_models.run.workers import Workers
from automap_models.torch_export.capture import Example, copy_model, first_dimension, read_example
from automap_models.torch_export.measure import with_values
from automap_models.torch_export.structure import analyse
from automap_models.user_code import user_code

PRELOAD = ("automap_models.run.torch_backend", "torch._dynamo", "torch._export")
NO_ANSWER = timedelta(minutes=5)
"""After so long a process that waits for another gives up."""
UNDER_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def run(problem: RunProblem, say: Say) -> RunRecord | None:
    """Run a plan of a torch model; see run.base."""
    device = problem.device or ("cuda" if torch.cuda.is_available() else "cpu")
    problem = replace(problem, device=device)
    if all(name in os.environ for name in UNDER_TORCHRUN):
        return run_process(int(os.environ["RANK"]), problem, None)
    example = _example(problem)
    say(f"reading {problem.source.what}")
    problem = _on_model(problem, example)
    layout = _layout(problem, example)
    _require_devices(layout, device)
    say(f"starting {layout.devices} processes")
    with tempfile.TemporaryDirectory() as folder, Workers(layout.devices, PRELOAD, _environment(device)) as workers:
        say(f"running {problem.warmup + problem.steps} steps on {layout.devices} processes")
        record: RunRecord = workers.run(run_process, problem, (Path(folder) / "rendezvous").as_uri())[0]
    return record


def _example(problem: RunProblem) -> Example:
    """The model and the inputs of one micro-batch, the same in every process."""
    torch.manual_seed(problem.seed)
    return read_example(problem.source.returned(), problem.source.what)


def _layout(problem: RunProblem, example: Example) -> Layout:
    samples = problem.plan.microbatch_size or first_dimension(example.args, example.kwargs)
    return sampled_layout(problem.plan, problem.schedule, samples)


def _on_model(problem: RunProblem, example: Example) -> RunProblem:
    """The problem of a plan that was made for this model, with cuts that its stages can have.

    Raises:
        BadInput: its instructions or parameters are others; or torch.export refuses it.
    """
    plan, what, step = problem.plan, problem.source.what, (example.model, example.args, example.kwargs)
    if plan.sharding is not None:
        refused = "is a plan of automap search, whose parts of operators torch's stages do not compute"
        raise BadInput(refused, where=plan.where, do="give a step of JAX, or plan stages with automap plan")
    with user_code(what):
        if not in_modules(plan, example.model):
            return replace(problem, plan=in_operators(plan, *step, name=what))
        structure = analyse(*step, name=what)
    profile = Profile.create(C=[1.0] * len(structure), A=structure.A, W=structure.W, names=structure.names)
    require_model(plan, profile, what)
    return problem


def _require_devices(layout: Layout, device: str) -> None:
    if device == "cuda":
        there = torch.cuda.device_count()
        if layout.devices > there:
            what = f"the plan runs on {layout.devices} GPUs, of which this machine has {there}"
            raise BadInput(what, where=layout.where, do="use `device=cpu`, or start it with torchrun on more machines")
    elif layout.devices > 256:  # CPU processes of one machine; more is a slip of the pen
        what = f"the plan runs on {layout.devices} processes, more than 256 on one machine"
        raise BadInput(what, where=layout.where, do="plan for a smaller cluster, or start it with torchrun")


def _environment(device: str) -> dict[str, str]:
    if device == "cuda" or sys.platform != "linux":
        return {}
    # one thread a process; a machine's own name need not have an address
    return {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}


def run_process(rank: int, problem: RunProblem, rendezvous: str | None) -> RunRecord | None:
    """One process: what the first one returns is the run's record.

    Args:
        rendezvous: where processes find each other; None under torchrun, which says so itself.
    """
    warnings.filterwarnings("ignore", ".*treespec", FutureWarning)  # torch's own, each time it copies a graph
    device = _device(problem, rank)
    _join(rank, problem, "nccl" if device.type == "cuda" else "gloo", rendezvous)
    try:
        return _run(rank, problem, device)
    except Exception as error:  # torch wraps what passes raise
        raise _own_error(error) from error.__cause__
    finally:
        dist.destroy_process_group()


def _own_error(error: BaseException) -> BaseException:
    """The error made for people that led to another one, or else that one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AutomapError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _join(rank: int, problem: RunProblem, backend: str, rendezvous: str | None) -> None:
    """Become one of the processes of the run.

    Raises:
        BadInput: torchrun has started another number of them, or they cannot find each other.
    """
    world = layout_of(problem.plan, problem.schedule).devices
    if rendezvous is not None:
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=NO_ANSWER)
        return
    started = os.environ.get("WORLD_SIZE", "none")
    if started != str(world):
        what = f"the plan runs on {world} process(es), of which torchrun has started {started}"
        raise BadInput(what, where=problem.plan.where, do=f"have it start {world}, one a device")
    try:
        dist.init_process_group(backend, timeout=NO_ANSWER)
    except (dist.DistError, ValueError) as error:
        place = f"{os.environ.get('MASTER_ADDR', 'none')}, port {os.environ.get('MASTER_PORT', 'none')}"
        what = f"processes cannot meet there: {str(error).splitlines()[0]}"
        raise BadInput(
            what, where=place, do="give torchrun another master port, and an address of this machine"
        ) from None


def _device(problem: RunProblem, rank: int) -> torch.device:
    if problem.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


def _run(rank: int, problem: RunProblem, device: torch.device) -> RunRecord | None:
    """The steps of one process."""
    example = _filled(_example(problem), problem.seed)
    if "RANK" in os.environ and not (rank and in_modules(problem.plan, example.model)):  # torchrun: nobody has looked
        problem = _on_model(problem, example)
    layout = _layout(problem, example)
    original = copy_model(example.model, lambda tensor: tensor.clone()) if problem.check and rank == 0 else None
    # Where stages differ in replicas, or a cut is inside a module, no reference draws the same dropout: it is off.
    unlike = len({len(replicas) for replicas in layout.processes}) > 1
    comparable = problem.check and (unlike or any(cut.startswith(AFTER) for cut in problem.plan.cut_names))
    seeds = _Seeds(problem.seed)
    dropping: list[str] = []
    with without_dropout() if comparable else nullcontext(dropping) as dropping:
        pipeline = Pipeline(
            example.model,
            problem.plan,
            (example.args, dict(example.kwargs)),
            loss=example.loss,
            target=example.target,
            schedule=problem.schedule.name,
            virtual=problem.schedule.virtual,
            executor=problem.executor,
            zero=problem.zero,
            device=device,
            seeds=lambda s, m: seeds(s, m, layout.replica(rank)),
            name=problem.source.what,
        )
    notes = ((_DROPOUT_OFF,) if dropping else ()) + _zero_notes(problem.zero, layout)
    replicas = _compared_parts(pipeline, problem) if problem.check else 1
    optimizer = _optimizer(pipeline.parameters())
    losses: list[float] = []
    records: list[StepRecord] = []
    gradients: dict[str, Tensor] = {}
    for step in range(problem.warmup + problem.steps):
        seeds.step = step
        args, kwargs, target = _batch(example, layout, problem.seed, step)
        loss, record = _step(pipeline, optimizer, (args, kwargs), target)
        losses.append(loss)
        records.append(record)
        # Of the first step: behind an update, rounding is as large as what is compared.
        if problem.check and not step:
            gradients = pipeline.gather(lambda tensor: tensor.grad, pipeline.trainable)
    peak_bytes, comparison = _peak_bytes(device), None
    if original is not None:
        reference = Reference(
            original.to(device),
            layout,
            problem.plan.cut_names,
            example.loss,
            *_sampled(example),
            replicas,
            seeds if pipeline.cut.random else None,
        )
        with without_dropout() if comparable else nullcontext():
            comparison = _compared(problem, example, layout, reference, seeds, losses, gradients)
    if rank:
        return None
    host = f"{platform.processor() or platform.machine()} CPU, 1 thread a process"
    words = torch.cuda.get_device_name(device) if device.type == "cuda" else host
    clock = CLOCKS[problem.device or "cpu"]
    who = ("torch", pipeline.executor, words, clock, layout.devices)
    return RunRecord(
        problem.plan, problem.schedule, *who, tuple(records), problem.warmup, comparison, notes, peak_bytes
    )


def _peak_bytes(device: torch.device) -> float | None:
    """The most that tensors took on a device of the run so far; None of CPUs."""
    if device.type != "cuda":
        return None
    peak = torch.tensor(float(torch.cuda.max_memory_allocated(device)), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return float(peak)


_DROPOUT_OFF = (
    "dropout was off: replicas draw masks for their own samples, and where stages have different numbers of replicas, "
    "or end inside a module, one process cannot draw the same"
)


def _zero_notes(zero: int, layout: Layout) -> tuple[str, ...]:
    """What replicas share, for people."""
    if not zero:
        return ()
    if all(len(replicas) == 1 for replicas in layout.processes):
        return (f"no stage has replicas that could share anything under ZeRO-{zero}",)
    shared = "gradients and the optimizer's state" if zero == 2 else "weights, gradients and the optimizer's state"
    return (f"replicas of a stage share {shared} (FSDP2, ZeRO-{zero})",)


class _Seeds:
    """Seeds what is random by where it is: the same in whatever process, after whatever other draws."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0

    def __call__(self, stage: int, micro_batch: int, replica: int) -> None:
        place = (self.seed, self.step, stage, micro_batch, replica)
        digest = hashlib.sha256(json.dumps(place).encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:7], "big"))


def _compared_parts(pipeline: Pipeline, problem: RunProblem) -> int:
    """Parts of a micro-batch that one process has to compute apart to do the same as the run.

    Raises:
        BadInput: no number of parts makes it the same.
    """
    counts = [len(replicas) for replicas in pipeline.layout.processes]
    cut, where = pipeline.cut, problem.source.what
    inside = any(name.startswith(AFTER) for name in problem.plan.cut_names)
    if len(set(counts)) == 1 and not (inside and cut.random):
        return counts[0] if cut.random or cut.mixing else 1
    do = f"plan with `{'cut_at' if inside else 'equal_replicas'}` for the check, or run it without `check`"
    if cut.random:
        which = "that end inside a module" if inside else f"of {counts} replicas"
        what = f"{cut.random[0]} draws random numbers, which stages {which} draw otherwise than one process"
        raise BadInput(what, where=where, do=do)
    for module, stage in cut.mixing:
        if counts[stage] > 1:
            what = f"{module} normalises over the samples of a replica, of which its stage has {counts[stage]}"
            raise BadInput(f"{what} and others {min(counts)}: one process cannot do the same", where=where, do=do)
    return 1


def _optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": list(parameters)}])  # a stage may have none


def _step(pipeline: Pipeline, optimizer: torch.optim.Optimizer, batch: Any, target: Any) -> tuple[float, StepRecord]:
    """One step: its loss and its record."""
    clock = Clock(pipeline.device, pipeline.layout.replica(pipeline.process))
    dist.barrier()
    start_s = time.perf_counter()
    loss = pipeline.step(batch, target, clock=clock)
    with clock.timing("U", pipeline.layout.stages_of(pipeline.process)[0]):
        optimizer.step()
    intervals = [replace(one, start_s=one.start_s - start_s, end_s=one.end_s - start_s) for one in clock.read()]
    all_passes: list[list[Pass]] = [[] for _ in range(pipeline.layout.devices)]
    dist.all_gather_object(all_passes, intervals)
    passes = tuple(one for passes in all_passes for one in passes)
    return loss, StepRecord(loss, max(one.end_s for one in passes), passes)


def _compared(
    problem: RunProblem,
    example: Example,
    layout: Layout,
    reference: Reference,
    seeds: _Seeds,
    losses: list[float],
    gradients: dict[str, Tensor],
) -> Comparison:
    """The same steps on the whole model in this process."""
    optimizer = _optimizer(reference.model.parameters())
    device = next(reference.model.parameters()).device
    expected, first = [], {}
    for step in range(len(losses)):
        seeds.step = step
        args, kwargs, target = _batch(example, layout, problem.seed, step)
        on_device = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs, target))
        expected.append(reference.step(on_device[:2], on_device[2]))
        if not step:
            named = reference.model.named_parameters()
            first = {name: one.grad.clone() for name, one in named if one.grad is not None}
        optimizer.step()
    tolerance = tolerance_of(str(one.dtype).removeprefix("torch.") for one in reference.model.parameters())
    return compare(losses, expected, _numbers(gradients), _numbers(first), tolerance)


def _numbers(tensors: Mapping[str, Tensor]) -> dict[str, FloatArray]:
    return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}


def _filled(example: Example, seed: int) -> Example:
    """The example with values where it has none."""
    torch.manual_seed(seed)
    tensors = [*example.model.parameters(), *example.model.buffers()]
    model = example.model
    if any(tensor.is_meta for tensor in tensors):
        model = copy_model(model, lambda tensor: with_values(tensor, torch.device("cpu")))
    given = (example.args, dict(example.kwargs), example.target)
    args, kwargs, target = pytree.tree_map_only(Tensor, lambda tensor: with_values(tensor, torch.device("cpu")), given)
    return Example(model, args, kwargs, example.loss, target)


def _batch(example: Example, layout: Layout, seed: int, step: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """A batch of the example's samples picked at random, the same everywhere; what is no batch stays as it is."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    samples = first_dimension(example.args, example.kwargs)
    picked = torch.randint(samples, (layout.samples * layout.schedule.micro_batches,), generator=random)
    of_batch, of_target = _sampled(example)
    args, kwargs = rows((example.args, dict(example.kwargs)), of_batch, picked)
    return args, kwargs, rows(example.target, of_target, picked)


def _sampled(example: Example) -> tuple[Sampled, Sampled]:
    """Which of the inputs and of the target's tensors hold samples."""
    samples = first_dimension(example.args, example.kwargs)
    return sampled((example.args, dict(example.kwargs)), samples), sampled(example.target, samples)
