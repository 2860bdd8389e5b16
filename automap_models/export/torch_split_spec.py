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
from automap_models.export.model_blocks import Inexpressible, require_none, unequal_devices
from automap_models.export.target import Source, Target, Written, parser_module, require_same
from automap_models.resources import template

NAME = "torch-split-spec"
DISTRIBUTION = "torch"
LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "1f1b-deep": ""},
    cuts="anywhere",
    sharding="none",
    filled=("1f1b",),
)
_BY_CLASS = "{name}(stage, MICRO_BATCHES, micro_batch_loss, **specs)"


def write(source: Source, path: Path) -> Written:
    """The program."""
    plan, profile = source.plan, source.require_result(NAME).problem.profile
    where, schedule = plan.where, plan.build_schedule()
    require_none(LIMITS.schedule_objection(schedule.name, schedule.stages, schedule.micro_batches), where)
    objection = unequal_devices(plan, NAME, LIMITS)
    if objection:
        raise Inexpressible(objection, where=where, do="run it with automap run")
    replicas, samples = plan.stages[0].replicas, required_size(profile)
    if samples % replicas:
        what = f"{samples} samples of a micro-batch do not make {replicas} equal shares"
        raise Inexpressible(what, where=where, do=f"plan with micro-batches of a multiple of {replicas} samples")
    name = LIMITS.schedules[schedule.name]
    points = "".join(f"    {module!r}: SplitPoint.{point},\n" for module, point in _split_spec(source).items())
    orders = "" if name else "\n" + template("torch_split_spec_orders").format(rows=str(schedule))
    text = template("torch_split_spec").format(
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
