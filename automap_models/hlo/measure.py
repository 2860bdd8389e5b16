"""Real times on this machine: every distinct operation of a step alone, the step and its forward part as a whole.

An operation that runs alone reads its operands from memory and writes its result back; in the whole step XLA fuses it
with its neighbours. So the times of single operations say how the time is spread over the instructions, and the step
and its forward part, compiled and run as they are, say how much it is: the times are scaled to them.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.cost.fusion import MATRIX_OPCODES, VIEW_OPCODES
from automap_models.formats.device_yaml import read_device
from automap_models.hlo.adapter import Module, OneOp, one_op_modules
from automap_models.hlo.clock import Clock
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.mlir_part import part

FloatArray = NDArray[np.float64]
Progress = Callable[[int, int, str], None]
"""Told how many runs are done, how many there are, and what comes next."""

_SCRATCH = 2.0
"""Memory that an operation is granted, over that of its operands and results."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What the clock said.

    Attributes:
        times_s: float64 [n] of each instruction, scaled to the whole step where that could be run.
        whole_step_s, forward_s: the jitted step and its forward part; None where it does not fit or cannot run here.
        alone_s: sum of the times of the single operations before scaling.
        forward_alone_s: its forward part.
        call_s: what calling a compiled operation costs; taken off each time.
        not_measured: opcode → number of instructions whose operation does not fit or cannot run here; their time is
            a roofline's, scaled to the measured ones.
        repeats, warmup: how often each was run.
    """

    times_s: FloatArray
    whole_step_s: float | None
    forward_s: float | None
    alone_s: float
    forward_alone_s: float
    call_s: float
    not_measured: dict[str, int]
    repeats: int
    warmup: int

    @property
    def meta(self) -> dict[str, object]:
        """All that as a profile's meta tells it."""
        device = jax.local_devices()[0]
        return {
            "times": "measured per instruction",
            "device": f"{device.device_kind} ({platform.machine()})",
            "repeats": self.repeats,
            "warmup": self.warmup,
            "scaled_to_step": self.whole_step_s is not None,
            "scaled_to_forward": self.forward_s is not None,
            "whole_step_s": self.whole_step_s,
            "forward_s": self.forward_s,
            "alone_over_step": self.alone_s / self.whole_step_s if self.whole_step_s else None,
            "alone_over_forward": self.forward_alone_s / self.forward_s if self.forward_s else None,
            "not_measured": self.not_measured,
        }


def measure_times(
    module: Module,
    *,
    graph: InstructionGraph | None = None,
    repeats: int = 5,
    warmup: int = 2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measured:
    """Run a module's operations, its forward part and all of it on jax's default device.

    Args:
        module: what to run.
        graph: its instruction graph, if it is there already.
        repeats: runs of which the median counts.
        warmup: runs before them.
        seed: of the random operands.
        progress: called before each run.

    Raises:
        BadInput: a count that makes no sense.
    """
    graph = graph or instruction_graph(module)
    clock = Clock(repeats, warmup, seed)
    single = [one for one in one_op_modules(module) if one.opcode not in VIEW_OPCODES]
    tell = progress or (lambda done, total, what: None)
    found: list[float | None] = []
    for i, one in enumerate(single):
        tell(i, len(single) + 2, f"{one.opcode}, {one.instructions.size} times")
        found.append(clock.seconds(one, _SCRATCH * sum(kind.nbytes for kind in (*one.operands, *one.results))))
    call_s = min((time_s for time_s in found if time_s is not None), default=0.0)
    alone_s = _spread(graph, single, found, call_s)
    forward = np.asarray(graph.phases) == Phase.FORWARD
    peak_bytes = _peak_bytes(graph)
    tell(len(single), len(single) + 2, "forward part")
    losses = [v for v in graph.outputs.tolist() if graph.producers[v] >= 0 and forward[graph.producers[v]]]
    forward_s = clock.seconds(part(module, losses), peak_bytes) if losses else None
    tell(len(single) + 1, len(single) + 2, "whole step")
    step_s = clock.seconds(part(module, module.outputs), peak_bytes)
    if forward_s is not None and step_s is not None and forward_s >= step_s:
        forward_s = None  # the clock's noise is longer than the backward pass
    missing = Counter[str]()
    for one, time_s in zip(single, found, strict=True):
        if time_s is None:
            missing[one.opcode] += one.instructions.size
    return Measured(
        times_s=_scaled(alone_s, forward, forward_s, step_s),
        whole_step_s=step_s,
        forward_s=forward_s,
        alone_s=float(alone_s.sum()),
        forward_alone_s=float(alone_s[forward].sum()),
        call_s=call_s,
        not_measured=dict(missing),
        repeats=repeats,
        warmup=warmup,
    )


def _spread(
    graph: InstructionGraph, single: Sequence[OneOp], found: Sequence[float | None], call_s: float
) -> FloatArray:
    """[n] times from those of the distinct operations; rooflines where there is none, scaled like with like."""
    times_s, measured = np.zeros(len(graph)), np.zeros(len(graph), bool)
    ran = np.zeros(len(graph), bool)
    for one, time_s in zip(single, found, strict=True):
        ran[one.instructions] = True
        if time_s is not None:
            times_s[one.instructions] = max(time_s - call_s, 0.0)
            measured[one.instructions] = True
    guess_s = read_device("cpu").seconds(graph.flop, graph.bytes_accessed)
    products = np.array([opcode in MATRIX_OPCODES for opcode in graph.opcodes])
    for kind in (products, ~products):
        known, unknown = kind & measured, kind & ran & ~measured
        factor = times_s[known].sum() / guess_s[known].sum() if guess_s[known].any() else 1.0
        times_s[unknown] = factor * guess_s[unknown]
    return times_s


def _scaled(
    alone_s: FloatArray, forward: NDArray[np.bool_], forward_s: float | None, step_s: float | None
) -> FloatArray:
    """The times with the sums of the whole runs; where only one of them is known, one factor for all."""
    everything = np.ones_like(forward)
    if step_s is None:
        wanted = [] if forward_s is None else [(forward, forward_s)]
        wanted = [(everything, sum_s * alone_s.sum() / alone_s[members].sum()) for members, sum_s in wanted]
    elif forward_s is None:
        wanted = [(everything, step_s)]
    else:
        wanted = [(forward, forward_s), (~forward, step_s - forward_s)]
    times_s = alone_s.copy()
    for members, sum_s in wanted:
        if times_s[members].any():
            times_s[members] *= sum_s / times_s[members].sum()
    return times_s


def _peak_bytes(graph: InstructionGraph) -> float:
    """Most bytes alive at once when instructions run in their order and arguments stay: what fusing can only lower."""
    born = np.maximum(graph.producers, 0)
    dies = born.copy()
    np.maximum.at(dies, graph.operands, graph.consumers)
    dies[graph.outputs] = len(graph)
    dies[: len(graph.arguments)] = len(graph)
    alive = np.zeros(len(graph) + 2)
    np.add.at(alive, born, graph.value_bytes)
    np.add.at(alive, dies + 1, -graph.value_bytes)
    return float(alive.cumsum().max())
