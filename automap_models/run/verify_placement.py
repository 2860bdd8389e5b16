"""A placement held against one device: the step's operations run where it has them, on devices made of this host."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from automap_models.core.placement import PlacementResult
from automap_models.errors import BadInput
from automap_models.run.base import TOLERANCE, Say
from automap_models.run.jax_process import answered, environment, shortage
from automap_models.workloads.source import Source


@dataclass(frozen=True)
class PlacedRequest:
    """What the process that runs a placed step is told.

    Attributes:
        source: the model.
        opcodes: of each node of its hlo.step_graph.
        assignment: device of each node.
        devices: how many there are.
        seed: of parameters and inputs.
    """

    source: Source
    opcodes: tuple[str, ...]
    assignment: list[int]
    devices: int
    seed: int


@dataclass(frozen=True)
class VerifiedPlacement:
    """What came of it.

    Attributes:
        devices: on which operations ran.
        parts: programs that XLA compiled, each for one device.
        moved: values that went to another device.
        loss: of the placed step.
        loss_error: relative difference to one device, the largest among numbers.
        array_error: the same among updated parameters and state, in the Euclidean norm; Adam's moments show gradients.
    """

    devices: int
    parts: int
    moved: int
    loss: float
    loss_error: float
    array_error: float

    @property
    def equal(self) -> bool:
        """Whether the results are one device's."""
        return max(self.loss_error, self.array_error) <= TOLERANCE


def verify_placement(source: Source, result: PlacementResult, seed: int, say: Say) -> VerifiedPlacement:
    """Run a step where its placement has its operations, and on one device.

    Args:
        source: the model, in JAX.
        result: a placement of its whole step.
        seed: of parameters and inputs.
        say: is told what is being done.

    Raises:
        BadInput: the model cannot run, or takes more memory than there is.
        UserCodeError: the user's own code raised.
        RunFailed: the process that ran it ended.
    """
    needed_bytes = 2.0 * float(np.sum(result.cost.memory_bytes))  # placed, and on one device
    if reason := shortage(needed_bytes):
        raise BadInput(reason, where="`verify`", do="leave it out, or give a smaller batch, sequence or model")
    devices, graph = result.problem.devices, result.problem.graph
    request = PlacedRequest(source, graph.opcodes, result.required_plan().assignment.tolist(), devices, seed)
    answer = answered("automap_models.run.jax_placement", request, environment(devices, "cpu"), source.what, say)
    return msgspec.convert(answer, VerifiedPlacement)
