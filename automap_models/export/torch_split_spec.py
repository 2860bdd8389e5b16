"""torch.distributed.pipelining: a Python program that cuts the model, as a split_spec says, and trains the stages.

The program needs torch alone, and the model's factory: `torchrun --nproc-per-node N FILE my_module:make_model`. Ranks
are numbered as the plan's devices are: stage s of d replicas has the ranks s·d … s·d + d - 1, along a mesh (pp, dp).

Written for torch 2.13 (torch/distributed/pipelining).
"""

from __future__ import annotations

import runpy
from pathlib import Path

from automap_models.core.framework import Limits
from automap_models.core.microbatch import required_size
from automap_models.errors import BadInput
from automap_models.export.blocks import Inexpressible, require_none, unequal_devices
from automap_models.export.target import Source, Target, Written, parser_module, require_same

NAME = "torch-split-spec"
DISTRIBUTION = "torch"
LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "1f1b-deep": ""},
    cuts="anywhere",
    sharding="none",
    filled=("1f1b",),
)
_TEXT = '''\
"""{model} on {stages} stages of {replicas} replica(s), written by automap-export.

    torchrun --nproc-per-node {devices} FILE my_module:make_model [STEPS]

The factory returns (model, inputs), inputs being a tensor, a tuple of arguments or a dict of keyword arguments, or
(model, args, kwargs), or (model, args, kwargs, loss, target): of one micro-batch of {samples} sample(s), their first
dimension. Tensors with another first dimension are given whole.
"""

import importlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import {schedule_class}
from torch.utils import _pytree as pytree

SPLIT_SPEC = {split_spec}
"""Where torch.distributed.pipelining cuts the model."""
STAGES, REPLICAS, MICRO_BATCHES, SAMPLES = {stages}, {replicas}, {micro_batches}, {samples}
"""SAMPLES are those of a micro-batch, which the replicas of a stage share."""
{orders}

def loss(output, target):
    """The mean of the model's first output, where the factory has no loss: change it to the loss of your training."""
    first = next(leaf for leaf in pytree.tree_leaves(output) if torch.is_tensor(leaf) and leaf.is_floating_point())
    return first.float().mean()


def parts_of(made):
    """The model, its arguments and keyword arguments, the loss and its target, of what a factory returned."""
    model, inputs, *rest = made
    if isinstance(inputs, dict) and not rest:
        return model, (), inputs, loss, None
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    kwargs, criterion, target = (*rest, None, None)[:3] if rest else ({{}}, None, None)
    return model, args, dict(kwargs), criterion or loss, target


def require_early_inputs(cut):
    """End with a sentence where a later stage reads an input: torch hands inputs to the first one alone."""
    stages = [node for node in cut.split_gm.graph.nodes if node.op == "call_module"]
    for stage, node in enumerate(stages[1:], 1):
        late = [source.target for source in node.all_input_nodes if source.op == "placeholder"]
        if late:
            what = f"stage {{stage}} reads the model's input {{late[0]}}, which torch's pipelining gives to stage 0"
            sys.exit(f"{{what}} alone: have the model hand it on, cut elsewhere, or train with automap-run")


def shared_by(cut, model):
    """For each weight that is held more than once: all of its names, and the stages that hold it."""
    names = {{}}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    held = [[name for name, _ in cut.get_stage_module(stage).named_parameters()] for stage in range(STAGES)]
    copies = [[stage for stage in range(STAGES) for name in held[stage] if name in alike] for alike in names.values()]
    return [(alike, sorted({{*stages}})) for alike, stages in zip(names.values(), copies) if len(stages) > 1]


def build(made):
    """The stage of this rank and its schedule, the arguments of one step, the replicas, and weights that are shared."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    mesh = init_device_mesh(kind, (STAGES, REPLICAS), mesh_dim_names=("pp", "dp"))
    model, args, kwargs, criterion, target = parts_of(made)
    samples = next(len(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf) and leaf.ndim)

    def is_batch(value):
        return torch.is_tensor(value) and value.ndim > 0 and len(value) == samples

    def share(value):
        """A replica's samples of a micro-batch."""
        return value[: SAMPLES // REPLICAS] if is_batch(value) else value

    def batch(value):
        """Its samples of all micro-batches: here the same ones again and again."""
        whole = torch.cat([share(value)] * MICRO_BATCHES) if is_batch(value) else value
        return whole.to(device) if torch.is_tensor(whole) else whole

    def chunks(value):
        return TensorChunkSpec(0) if is_batch(value) else _Replicate()

    own = pytree.tree_map(share, (args, kwargs))
    cut = pipeline(model, *own, split_spec=SPLIT_SPEC)
    require_early_inputs(cut)
    replica = mesh.get_local_rank("dp")
    shared = []
    for names, stages in shared_by(cut, model):
        groups = [dist.new_group([stage * REPLICAS + r for stage in stages]) for r in range(REPLICAS)]
        if mesh.get_local_rank("pp") in stages:
            shared.append((names, groups[replica]))
    stage = cut.build_stage(mesh.get_local_rank("pp"), device, mesh.get_group("pp"))
    targets = [pytree.tree_map(lambda value: share(value).to(device) if torch.is_tensor(value) else value, target)]

    def micro_batch_loss(output, number):
        return criterion(output, (targets * MICRO_BATCHES)[int(number)])

    specs = dict(zip(("args_chunk_spec", "kwargs_chunk_spec"), pytree.tree_map(chunks, (args, kwargs))))
    schedule = {schedule}
    return stage, schedule, *pytree.tree_map(batch, (args, kwargs)), mesh.get_group("dp"), shared


def average(parameters, replicas):
    """The mean of the replicas' gradients, in place of each one's own."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=replicas)
            parameter.grad /= REPLICAS


def sum_copies(module, shared):
    """The sum of the gradients of a weight's copies, here and in other stages, in place of each one's own."""
    for names, group in shared:
        copies = [weight for name, weight in module.named_parameters() if name in names and weight.requires_grad]
        if copies:
            total = sum((weight.grad for weight in copies if weight.grad is not None), torch.zeros_like(copies[0]))
            dist.all_reduce(total, group=group)
            for weight in copies:
                weight.grad = total.clone()


def train(made, steps=1):
    """Steps of training; the losses of the last stage's micro-batches, none on the others."""
    stage, schedule, args, kwargs, replicas, shared = build(made)
    parameters = [parameter for parameter in stage.submod.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam([{{"params": parameters}}])
    losses = []
    for _ in range(steps):
        losses = []
        numbers = torch.arange(MICRO_BATCHES) if stage.is_last else None
        given = (args, kwargs) if stage.is_first else ((), {{}})
        schedule.step(*given[0], **given[1], target=numbers, losses=losses if stage.is_last else None)
        average(parameters, replicas)
        sum_copies(stage.submod, shared)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main():
    """Train the model of the factory that the first argument names."""
    sys.path.insert(0, os.getcwd())
    module, _, factory = sys.argv[1].partition(":")
    dist.init_process_group()
    losses = train(getattr(importlib.import_module(module), factory)(), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    if losses:
        # One write with its line end: ranks that share a terminal would otherwise write into each other's lines.
        print(f"rank {{dist.get_rank()}}: loss {{torch.stack(losses).mean().item():.6f}}\\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
_BY_CLASS = "{name}(stage, MICRO_BATCHES, micro_batch_loss, **specs)"
_ORDERS = '''\
ORDERS = """\\
{rows}"""
"""The passes of every rank, one row each."""


def ordered(stage, micro_batch_loss, specs):
    """A runtime that runs the stage's passes in the order of ORDERS."""
    runtime = _PipelineScheduleRuntime([stage], MICRO_BATCHES, micro_batch_loss, **specs)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(ORDERS)
        file.flush()
        runtime._load_csv(file.name, format="compute_only")
    return runtime
'''


def write(source: Source, path: Path) -> Written:
    """The program."""
    plan, profile = source.plan, source.require_result(NAME).problem.profile
    where, schedule = f"plan of {source.name}", plan.build_schedule()
    require_none(LIMITS.way_objection(schedule.name, schedule.stages, schedule.micro_batches), where)
    objection = unequal_devices(plan, NAME, LIMITS)
    if objection:
        raise Inexpressible(objection, where=where, do="run it with automap-run")
    replicas, samples = plan.stages[0].replicas, required_size(profile)
    if samples % replicas:
        what = f"{samples} samples of a micro-batch do not make {replicas} equal shares"
        raise Inexpressible(what, where=where, do=f"plan with micro-batches of a multiple of {replicas} samples")
    name = LIMITS.schedules[schedule.name]
    points = "".join(f"    {module!r}: SplitPoint.{point},\n" for module, point in _split_spec(source).items())
    orders = "" if name else "\n" + _ORDERS.format(rows=str(schedule))
    text = _TEXT.format(
        model=source.name,
        stages=schedule.stages,
        replicas=replicas,
        devices=schedule.stages * replicas,
        samples=samples,
        micro_batches=schedule.micro_batches,
        schedule_class=name or "_PipelineScheduleRuntime",
        split_spec=f"{{\n{points}}}" if points else "{}",
        orders=orders,
        schedule=_BY_CLASS.format(name=name) if name else "ordered(stage, micro_batch_loss, specs)",
    )
    return Written(text)


def _split_spec(source: Source) -> dict[str, str]:
    """Module → BEGINNING or END, in the order of the cuts.

    Raises:
        BadInput: the model is none of torch's, or torch is not installed.
    """
    try:
        from automap_models.torch_export.pipelining import split_spec
    except ImportError as error:
        what = f"a split_spec needs the torch extra ({error})"
        raise BadInput(what, do="pip install 'automap-models[torch]'") from None
    cuts = [stage.last for stage in source.plan.stages[:-1]]
    spec = split_spec(source.require_result(NAME).problem.profile, cuts)
    return {module: point.name for module, point in spec.items()}


def check(source: Source, path: Path) -> None:
    """Python reads the program, and its split_spec is the plan's."""
    parser_module("torch.distributed.pipelining", DISTRIBUTION)
    read = runpy.run_path(str(path))
    spec = {module: point.name for module, point in read["SPLIT_SPEC"].items()}
    require_same("split_spec", spec, _split_spec(source))
    require_same(
        "stages and micro-batches",
        (read["STAGES"], read["MICRO_BATCHES"]),
        (len(spec) + 1, source.plan.build_schedule().micro_batches),
    )


TARGET = Target(NAME, DISTRIBUTION, ".py", ("stages",), write, check, LIMITS)
