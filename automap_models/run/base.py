"""What shall run, who can run it, and what the cost model predicts of it.

A backend (run.make_backend) is a module with a function `run(problem, say)`, which is told what to run and whom to tell
what is being done. It returns the record of the run, or None in a process that another one reports for, such as the
ranks above 0 under torchrun. It raises BadInput where the plan, the model or the machine cannot be used for it,
RunFailed where a worker has ended, and UserCodeError where the user's own code raised. Everything around it is the same
for all: reading the plan, the schedule, the prediction, the table, the trace and the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.plan import Plan
from automap_models.core.profile import FloatArray
from automap_models.core.run_record import Comparison
from automap_models.core.schedules import DEFAULT_SCHEDULE, schedule_family
from automap_models.cost.overlap import TiedSum
from automap_models.errors import BadInput
from automap_models.simulate.engine import Timeline, simulate
from automap_models.workloads.source import Source

DeviceKind = Literal["cpu", "cuda"]
Executor = Literal["torch", "automap"]
Say = Callable[[str], None]
"""Is told what is being done."""
TOLERANCE = 1e-5
"""Relative error that a check allows, fp32."""
_TINY = float(np.finfo(np.float32).tiny)


def tolerance_of(types: Iterable[str]) -> float:
    """The relative error that a check allows where values have these types, as MLIR or torch names them.

    It is larger where something is computed in a type of 16 bits. Rounding to bf16 is off by up to 0.4 %, to fp16 by
    0.05 %; a compiler keeps more bits inside of what it fuses, which it does otherwise in stages than in the whole
    model. A gradient that is not summed, or a micro-batch that is left out, is off by more.
    """
    coarse = {"bf16": 5e-2, "bfloat16": 5e-2, "f16": 1e-2, "float16": 1e-2}
    return max((coarse.get(dtype, TOLERANCE) for dtype in types), default=TOLERANCE)


def compare(
    losses: Sequence[float],
    expected_losses: Sequence[float],
    gradients: Mapping[str, FloatArray],
    expected: Mapping[str, FloatArray],
    tolerance: float,
) -> Comparison:
    """A run held against the whole model on one device.

    Args:
        losses, expected_losses: of every step.
        gradients, expected: of the first one, by name, in the order of the model.
        tolerance: relative error of a loss and of a gradient that is allowed.
    """
    difference, loss_error = None, 0.0
    for k, (loss, right) in enumerate(zip(losses, expected_losses, strict=True), start=1):
        error = abs(loss - right) / max(abs(right), _TINY)
        loss_error = max(loss_error, error)
        if difference is None and not error <= tolerance:
            difference = f"the loss of step {k} is {loss!r}, on one process {right!r}"
    gradient_error, of_gradient = gradient_errors(gradients, expected, tolerance)
    return Comparison(loss_error, gradient_error, len(expected), tolerance, difference or of_gradient)


def gradient_errors(
    gradients: Mapping[str, FloatArray], expected: Mapping[str, FloatArray], tolerance: float
) -> tuple[float, str | None]:
    """The largest relative error of a gradient (norms), and the first one above the tolerance.

    A gradient whose norm is below a thousandth of all gradients' is compared on that scale: that of a key's bias, which
    a softmax takes no notice of, is nothing but rounding errors. With the tolerance of 16 bits it is a fifth of that.
    """
    norms = {name: float(np.linalg.norm(value.astype(np.float64))) for name, value in expected.items()}
    least = max(1e-3, tolerance / 5) * float(np.sqrt(sum(norm**2 for norm in norms.values())))
    largest, difference = 0.0, None
    for name, value in expected.items():
        distance = float(np.linalg.norm((gradients[name] - value).astype(np.float64)))
        error = distance / max(norms[name], least, _TINY)
        largest = max(largest, error)
        if difference is None and not error <= tolerance:
            difference = f"the gradient of {name} differs by {error:.1e} of its norm, {norms[name]:.3e}"
    return largest, difference


@dataclass(frozen=True)
class RunProblem:
    """A plan to be run for some steps.

    Attributes:
        plan: what plan.json says.
        source: the model.
        schedule: the order of passes; its virtual stages are the plan's stages.
        steps: that count.
        warmup: steps before them.
        device: the kind of devices.
        executor: who runs the passes; None leaves it to the backend.
        zero: stage of ZeRO among the replicas of a stage.
        check: whether losses and gradients are held against one process.
        seed: of weights and data.
    """

    plan: Plan
    source: Source
    schedule: Schedule
    steps: int = 3
    warmup: int = 1
    device: DeviceKind | None = None
    executor: Executor | None = None
    zero: int = 0
    check: bool = False
    seed: int = 0


def run_schedule(plan: Plan, name: str | None, virtual: int | None) -> Schedule:
    """The schedule that a plan's S stages run under: S / vp ranks of vp virtual stages each.

    Args:
        name: a key of SCHEDULES; None is the plan's own.
        virtual: vp; None is what the schedule has, 2 where it may have any and its name is `interleaved`, else 1.

    Raises:
        BadInput: the schedule is not known, does not run so many stages or micro-batches, or puts stages of different
            numbers of devices on one rank.
    """
    name = name or plan.schedule or DEFAULT_SCHEDULE
    rules, stages = schedule_family(name), len(plan.stages)
    if virtual is None:
        virtual = rules.virtual or (2 if name == "interleaved" else 1)
    if virtual < 1 or stages % virtual:
        what = f"{stages} stages do not make ranks of {virtual} virtual stages"
        raise BadInput(what, where="`virtual`", do="give a divisor of the number of stages, or plan another number")
    schedule = build_schedule(name, stages // virtual, plan.micro_batches, virtual)
    for stage, rank in enumerate(schedule.rank_of):
        here, there = plan.stages[stage].device_count, plan.stages[rank].device_count
        if here != there:
            what = f"schedule {name} puts stage {stage} on {here} device(s) and stage {rank} on {there} on one rank"
            raise BadInput(
                what, where=plan.where, do="plan with `equal_replicas`, or take a schedule without virtual stages"
            )
    return schedule


def predicted_timeline(plan: Plan, schedule: Schedule) -> Timeline:
    """One step as the plan's own figures predict it.

    Gradients are reduced, and copies of a parameter are summed, as the cost model charges.
    A schedule that splits the backward pass takes half of it for the gradients of the weights: plan.json does not say
    how much it is.
    """

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([getattr(stage, name) for stage in plan.stages], dtype=np.float64)

    backward_s = column("backward_s")
    weight_s = backward_s / 2 if schedule.splits_backward else None
    times = (column("forward_s"), backward_s, column("transfer_s")[:-1], column("all_reduce_s"))
    late_s = [stage.all_reduce_s if stage.exposed_s is None else stage.exposed_s for stage in plan.stages]
    return simulate(*times, schedule, np.array(late_s), column("update_s"), _tied_sums(plan), weight_s)


def _tied_sums(plan: Plan) -> list[TiedSum]:
    """Of each parameter with copies, in the order in which stages name them."""
    tied: dict[str, TiedSum] = {}
    for s, stage in enumerate(plan.stages):
        for name, sum_s in stage.tied:
            before = tied[name].stages if name in tied else ()
            tied[name] = TiedSum((*before, s), sum_s, name)
    return list(tied.values())
