"""What one device holds under a strategy: training state, gathered weights, and saved activations.

Bytes a parameter, of which ZeRO divides more with every stage by the ranks of data and context parallelism:

    precision           weights   gradients   optimiser (Adam)
    fp32                4         4           8 = two moments
    fp16, bf16, fp8     2         2 or 4      12 = master weight, two moments
    divided by ZeRO     3         2, 3        1, 2, 3

Activations are counted from the order of the schedule (core.schedules.most_held), per rank of the pipeline:

    rank r   Σ over its virtual stages of what they save of a micro-batch × micro-batches in flight, at the fullest time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from automap_models.core.schedules import most_held
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput


class DeviceMemory(NamedTuple):
    """Bytes of one device of a rank of the pipeline.

    Attributes:
        weights, gradients, optimizer: training state, as ZeRO divides it.
        gathered: weights of the largest unit that ZeRO-3 gathers at once.
        activations: saved for passes to come, at the fullest time.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float

    @property
    def state(self) -> float:
        """Weights, gradients and the optimiser's state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of it."""
        return self.state + self.gathered + self.activations


def device_memory(
    strategy: Strategy,
    parameters: Sequence[float],
    saved_bytes: Sequence[float],
    kept_bytes: Sequence[float] = (),
    gathered_parameters: float = 0.0,
    gradient_bytes: int = 4,
) -> tuple[DeviceMemory, ...]:
    """[pp] what a device of each rank of the pipeline holds.

    Args:
        strategy: how the model is trained.
        parameters: [pp·vp] of each virtual stage on one device: divided by tp and, of experts, by ep.
        saved_bytes: [pp·vp] what a virtual stage saves of a micro-batch from the forward to the backward pass, on one
            device, with the strategy's recomputation.
        kept_bytes: [pp·vp] what of that it keeps from the input-gradient to the weight-gradient pass, of schedules that
            split the backward pass; empty is all of it.
        gathered_parameters: of the largest unit that ZeRO-3 gathers.
        gradient_bytes: a parameter, 2 or 4, where precision is not fp32.

    Raises:
        BadInput: figures of another number of stages, or gradients of neither 2 nor 4 bytes.
    """
    stages = strategy.stages
    for where, count in (("parameters", len(parameters)), ("saved_bytes", len(saved_bytes))):
        if count != stages:
            raise BadInput(f"{count} figures for {stages} virtual stages", where=f"`{where}`", do="give one each")
    if gradient_bytes not in (2, 4):
        raise BadInput(f"gradients of {gradient_bytes} bytes", where="`gradient_bytes`", do="give 2 or 4")
    kept_bytes = kept_bytes if len(kept_bytes) else saved_bytes
    if len(kept_bytes) != stages:
        raise BadInput(
            f"{len(kept_bytes)} figures for {stages} virtual stages", where="`kept_bytes`", do="give one each"
        )
    schedule = strategy.build_schedule()
    activations = most_held(schedule, saved_bytes, kept_bytes)
    of_ranks = [0.0] * strategy.pp
    for rank, held_parameters in zip(schedule.rank_of, parameters, strict=True):
        of_ranks[rank] += held_parameters
    fp32 = strategy.precision == "fp32"
    weight, gradient, optimizer = (4, 4, 8) if fp32 else (2, gradient_bytes, 12)
    shared = [1 if strategy.zero < least else strategy.dp * strategy.cp for least in (3, 2, 1)]
    return tuple(
        DeviceMemory(
            weights=weight * count / shared[0],
            gradients=gradient * count / shared[1],
            optimizer=optimizer * count / shared[2],
            gathered=weight * gathered_parameters if strategy.zero == 3 else 0.0,
            activations=held,
        )
        for count, held in zip(of_ranks, activations, strict=True)
    )
