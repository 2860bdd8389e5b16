"""A plan run for some steps on the devices of this process, measured, and held against one device.

As a process, `python -m automap_models.run.jax_run`, it is what jax_backend.py starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.plan import Plan
from automap_models.core.profile import Profile
from automap_models.core.run_record import RunRecord, StepRecord
from automap_models.core.sharding import ShardingPlan
from automap_models.core.units import size
from automap_models.errors import BadInput
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.step import TrainingStep
from automap_models.run.base import RunProblem, Say, compare, tolerance_of
from automap_models.run.jax_collectives import program_collectives, reduction_collectives
from automap_models.run.jax_pipeline import JaxPipeline, TracedStep
from automap_models.run.jax_process import serve
from automap_models.run.jax_step import drawn_arguments, drawn_batch
from automap_models.run.layout import layout_of, on_one_device
from automap_models.user_code import user_code
from automap_models.workloads.registry import step_of
from automap_models.workloads.source import Source, SourceKind, framework_of, module_of, training_step_of


def run_plan(problem: RunProblem, say: Say) -> RunRecord:
    """Run it on the devices of this process.

    Raises:
        BadInput: see run.base.
        UserCodeError: the user's own code raised.
    """
    plan, micro_batches = problem.plan, problem.schedule.micro_batches
    say(f"tracing {problem.source.what}")
    step = _step(problem.source, plan)
    with user_code(problem.source.what):
        traced = TracedStep(step)
    require_model(plan, traced, problem.source)
    layout, devices = layout_of(plan, problem.schedule), _devices(problem)
    arguments = drawn_arguments(step, problem.seed)
    pipeline = JaxPipeline(traced, layout, arguments, devices=devices)
    pipeline.programs.compile(say)
    largest = _largest(pipeline, step, problem)
    batches = [
        drawn_batch(step, problem.seed + 1 + k, micro_batches, largest) for k in range(problem.warmup + problem.steps)
    ]
    steps: list[StepRecord] = []
    gradients: dict[str, np.ndarray] = {}
    for k, batch in enumerate(batches):
        say(f"step {k + 1} of {len(batches)}")
        loss = pipeline.step(*batch, measure=True)
        steps.append(StepRecord(loss, pipeline.length_s, pipeline.passes))
        gradients = gradients or pipeline.gradients()
    comparison = None
    if problem.check:
        say("compiling the whole model for one device")
        reference = JaxPipeline(traced, on_one_device(micro_batches), arguments, devices=devices)
        tolerance = tolerance_of({tensor.dtype for op in traced.module.operations for tensor in op.results})
        losses: list[float] = []
        expected: dict[str, np.ndarray] = {}
        for batch in batches:
            losses.append(reference.step(*batch))
            expected = expected or reference.gradients()
        comparison = compare([step.loss for step in steps], losses, gradients, expected, tolerance)
    used = {device for stage in layout.stages for device in stage.devices}
    device = f"{len(used)} × {devices[0].device_kind}"
    notes = tuple(_notes(pipeline, step.microbatch_size))
    who = ("jax", "XLA, one controller", device, pipeline.clock, 1)
    return RunRecord(plan, problem.schedule, *who, tuple(steps), problem.warmup, comparison, notes)


def _step(source: Source, plan: Plan) -> TrainingStep:
    """The step of one micro-batch.

    Raises:
        BadInput: it is PyTorch's, or of another number of samples than the plan's micro-batches.
    """
    samples = plan.microbatch_size
    step = traceable(source)
    if source.batch is None and samples is not None and step.microbatch_size != samples:
        step = traceable(replace(source, batch=samples))
    if samples is not None and step.microbatch_size != samples:
        what = f"the step has micro-batches of {step.microbatch_size} samples, the plan of {samples}"
        raise BadInput(what, where=source.what, do=f"give `batch={samples}`, or plan for that number")
    return step


def traceable(source: Source) -> TrainingStep:
    """The JAX step of a model.

    Raises:
        BadInput: it is PyTorch's.
    """
    if source.kind is not SourceKind.FACTORY:
        return training_step_of(source)
    returned = source.returned()
    if framework_of(returned) == "torch":
        raise BadInput("is a PyTorch model", where=source.what, do="use `backend='torch'`")
    return step_of(source.what, returned, source.dtype)


def require_model(plan: Plan, traced: TracedStep, source: Source) -> None:
    """Refuse another model than the plan's.

    A profile of a built-in model with many blocks has other names than the whole trace, in the same places: it was made
    of a few blocks, repeated. Such a model is told by a trace of that sort.

    Raises:
        BadInput: its forward instructions or parameters are not those that the plan was made for.
    """
    if plan.sharding is not None:
        _require_arguments(plan, plan.sharding, traced)
        return
    profile = _profile(traced.graph)
    same = _is_model(plan, profile)
    if not same and source.kind is not SourceKind.FACTORY and len(profile) == plan.instructions:
        profiled = replace(source, batch=traced.step.microbatch_size)
        same = _is_model(plan, _profile(instruction_graph(module_of(profiled))))
    if not same:
        what = f"was made for another model than {traced.step.name}, or for another size of micro-batches"
        what += f": {plan.instructions} forward instructions of {plan.model}, not {len(profile)}"
        do = f"give that model, or profile this one with `batch={traced.step.microbatch_size}` and plan again"
        raise BadInput(what, where=plan.where, do=do)


def _require_arguments(plan: Plan, sharding: ShardingPlan, traced: TracedStep) -> None:
    """Refuse a step whose arguments are not those of a sharding plan.

    Raises:
        BadInput: one is missing or has another shape.
    """
    graph = traced.graph
    shapes = {argument.name: tuple(shape) for argument, shape in zip(graph.arguments, graph.shapes, strict=False)}
    for variable in sharding.variables:
        if shapes.get(variable.name) != variable.shape:
            what = f"was made for another model than {traced.step.name}, or for another size of micro-batches"
            what += f": its {variable.name} has the shape {list(variable.shape)}"
            raise BadInput(what, where=plan.where, do="give that model, or search again for this one")


def _profile(graph: InstructionGraph) -> Profile:
    return profile_from_graph(graph, np.ones(len(graph)), {})


def _is_model(plan: Plan, profile: Profile) -> bool:
    if plan.model_fingerprint is not None:
        return profile.model_fingerprint == plan.model_fingerprint
    if len(profile) != plan.instructions:
        return False
    return tuple(profile.names[stage.last] for stage in plan.stages[:-1]) == plan.cut_names


def _devices(problem: RunProblem) -> list[Any]:
    """JAX's devices of the kind that was asked for; where nothing was, CPUs if there are too few others."""
    try:
        devices = jax.devices(problem.device)
        needed = layout_of(problem.plan, problem.schedule).devices
        return devices if problem.device or len(devices) >= needed else jax.devices("cpu")
    except RuntimeError as error:
        what = f"JAX has no device of the kind {problem.device} ({str(error).splitlines()[0]})"
        raise BadInput(what, where="`device`", do="leave it out") from None


def _largest(pipeline: JaxPipeline, step: TrainingStep, problem: RunProblem) -> int:
    """The largest size of a parameter below which all whole numbers of the inputs can lie: a vocabulary.

    Raises:
        BadInput: the step gives no finite numbers on any.
    """
    sizes = {size for leaf in jax.tree.leaves(step.arguments[step.trainable]) for size in leaf.shape} | {2}
    for largest in sorted(sizes, reverse=True):
        batch = drawn_batch(step, problem.seed + 1, problem.schedule.micro_batches, largest)
        if pipeline.is_finite(*batch):
            return largest
    raise BadInput("gives no finite numbers on random data", where=step.name, do="check the model")


def _notes(pipeline: JaxPipeline, samples: int) -> list[str]:
    """Sentences for people; `samples` are those of a micro-batch."""
    notes = [
        "weights and data are random; each step ran twice, pass by pass for its times and overlapped for its lanes"
    ]
    for s, stage in enumerate(pipeline.layout.stages):
        if samples % stage.data:
            what = f"{samples} samples are not equal parts for the {stage.data} replicas of stage {s}"
            notes.append(f"{what}: XLA pads them inside its programs, and exchanges them whole")
    collectives = program_collectives(pipeline.programs)
    if collectives:
        reduced, planned = (sum(getattr(c, name) for c in collectives.values()) for name in ("all_reduced", "planned"))
        others = sum(sum(c.others.values()) for c in collectives.values())
        what = f"in a micro-batch, stages of several devices all-reduce {size(reduced)} a device"
        notes.append(f"{what}; by the plan it is {size(planned)}")
        if others:
            notes.append(f"beside that, XLA exchanges {size(others)} a device")
    reductions = reduction_collectives(pipeline.programs).values()
    if reductions:
        reduced, planned = (sum(getattr(c, name) for c in reductions) for name in ("all_reduced", "planned"))
        what = f"once a step, stages with replicas all-reduce {size(reduced)} of gradients a device"
        notes.append(f"{what}; by the plan it is {size(planned)}")
    return notes


if __name__ == "__main__":
    raise SystemExit(serve(RunProblem, run_plan))
