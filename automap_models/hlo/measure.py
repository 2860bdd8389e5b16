"""Real times on this machine: every distinct operation of a step alone, and the step's phases as they are.

An operation that runs alone reads its operands from memory and writes its result back; in the whole step XLA fuses it
with its neighbours. So the times of single operations say how a phase's time is spread over its instructions, and the
forward pass, the gradients and the whole step, compiled and run as they are, say how much it is: the times are scaled
to them.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import post_order
from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.profile import FloatArray
from automap_models.core.repeats import repeated
from automap_models.cost.kernel_traffic import MATRIX_OPCODES, VIEW_OPCODES
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo.adapter import MlirModule, OneOp, compiled, one_op_modules
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.mlir_walk import extracted
from automap_models.hlo.module import Tensor, producing_operations


class Clock:
    """Times modules on jax's default device.

    Args:
        repeats: runs that have to agree, of which the least counts (core.repeats).
        warmup: runs before them.
        seed: of the operands.

    Attributes:
        steady: of each module that was timed, whether its runs agreed.

    Raises:
        BadInput: a count that makes no sense.
    """

    def __init__(self, repeats: int, warmup: int, seed: int) -> None:
        for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
            if value < least:
                raise BadInput(f"{name} is {value}", where="measuring", do=f"give a number ≥ {least}")
        self.repeats, self.warmup = repeats, warmup
        self.steady: list[bool] = []
        self._rng = np.random.default_rng(seed)
        self._device = jax.local_devices()[0]

    def seconds(self, part: OneOp, needed_bytes: float) -> float | None:
        """Least time of a call, seconds; None where this machine has too little memory free or cannot run it.

        Args:
            part: the module.
            needed_bytes: memory that running it takes.
        """
        if needed_bytes > self.free_bytes() or any(kind.numpy_dtype is None for kind in part.operands):
            return None
        try:
            run = compiled(part)
            operands = self._draw(part.operands)
            for _ in range(self.warmup):
                self._one_run(run, operands)
            taken, steady = repeated(lambda: self._one_run(run, operands), float, self.repeats)
        except jax.errors.JaxRuntimeError:  # a custom call that this platform has not, or the memory ran out after all
            return None
        self.steady.append(steady)
        return min(taken)

    def free_bytes(self) -> float:
        """Memory that the device can still give."""
        stats = self._device.memory_stats()
        if stats and "bytes_limit" in stats:
            return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
        return _free_host_bytes()

    @staticmethod
    def _one_run(run: Any, operands: list[Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(operands))  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    def _draw(self, kinds: Sequence[Tensor]) -> list[Any]:
        with jax.enable_x64(True):
            return [jax.device_put(self._array(kind), self._device) for kind in kinds]

    def _array(self, kind: Tensor) -> Any:
        """Floats from 0 to 0.1: sums of products stay small, and a second moment must not be negative.

        Integers are below 1000, token ids or labels; XLA clamps what is out of range. Scalars (counters) are zero.
        """
        if kind.dtype == "i1":
            return self._rng.integers(0, 2, kind.shape).astype(bool)
        dtype = jax.numpy.dtype(kind.numpy_dtype)
        if "i" in kind.dtype:
            largest = min(1000, int(jax.numpy.iinfo(dtype).max)) if kind.shape else 1  # type: ignore[no-untyped-call]
            return self._rng.integers(0, largest, kind.shape).astype(dtype)
        return (self._rng.random(kind.shape, np.float32) * np.float32(0.1)).astype(dtype)


def _free_host_bytes() -> float:
    """Linux tells what can be had without swapping; elsewhere half of the machine's memory is taken to be free."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            return float(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


Progress = Callable[[int, int, str], None]
"""Told how many runs are done, how many there are, and what comes next."""

_UP_TO = {Phase.FORWARD: "forward_s", Phase.BACKWARD: "gradients_s", Phase.UPDATE: "whole_step_s"}
"""What running a step up to and with a phase is called."""


def measure_times(
    module: MlirModule,
    *,
    graph: InstructionGraph | None = None,
    repeats: int = 5,
    warmup: int = 2,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[FloatArray, dict[str, object]]:
    """Run a module's operations, its phases and all of it on jax's default device.

    A phase whose step up to it does not fit, cannot run here or did not take longer than the phase before is not in
    meta. `alone_over_measured` holds the sums of the times of single operations to those of the runs; `not_measured`,
    by opcode, the instructions whose operation does not fit or cannot run here: their time is the data sheet's of a
    CPU, scaled to the measured ones. `unsteady` is the share of what was run whose times did not agree.

    Args:
        module: what to run.
        graph: its instruction graph, if it is there already.
        repeats: runs that have to agree, of which the least counts (core.repeats).
        warmup: runs before them.
        seed: of the random operands.
        progress: called before each run.

    Returns:
        [n] seconds of each instruction, scaled phase by phase to what could be run as a whole; a profile's meta.

    Raises:
        BadInput: a count that makes no sense.
    """
    graph = graph or instruction_graph(module)
    clock, tell = Clock(repeats, warmup, seed), progress or (lambda done, total, what: None)
    single = [one for one in one_op_modules(module) if one.opcode not in VIEW_OPCODES]
    alone_times_s: list[float | None] = []
    for i, one in enumerate(single):
        tell(i, len(single) + len(Phase), f"{one.opcode}, {one.instructions.size} times")
        operands_and_results = sum(kind.nbytes for kind in (*one.operands, *one.results))
        alone_times_s.append(clock.seconds(one, 2.0 * operands_and_results))  # and as much scratch memory
    call_s = min((time_s for time_s in alone_times_s if time_s is not None), default=0.0)
    alone_s = _spread(graph, single, alone_times_s, call_s)
    up_to_s: dict[Phase, float | None] = {}
    for i, phase in enumerate(Phase):
        tell(len(single) + i, len(single) + len(Phase), f"the step up to its {phase.name.lower()} phase")
        needed = part(module, _results_up_to(graph, phase))
        up_to_s[phase] = clock.seconds(needed, _peak_bytes(graph)) if needed.results else None
    believed = _rising(up_to_s)
    missing = Counter[str]()
    for one, time_s in zip(single, alone_times_s, strict=True):
        if time_s is None:
            missing[one.opcode] += one.instructions.size
    device = jax.local_devices()[0]
    meta: dict[str, object] = {
        "times": "measured per instruction",
        "device": f"{device.device_kind} ({platform.machine()})",
        "unsteady": 1.0 - sum(clock.steady) / max(1, len(clock.steady)),
        "repeats": repeats,
        "warmup": warmup,
        "scaled_to_step": Phase.UPDATE in believed,
        "measured": {_UP_TO[phase]: time_s for phase, time_s in believed.items()},
        "alone_over_measured": {
            _UP_TO[phase]: float(alone_s[graph.phases <= phase].sum()) / time_s for phase, time_s in believed.items()
        },
        "not_measured": dict(missing),
    }
    return _scaled(alone_s, graph.phases, believed), meta


def _results_up_to(graph: InstructionGraph, phase: Phase) -> list[int]:
    """What the step returns, or its update reads, of what it has made by the end of a phase: losses, then gradients."""
    if phase is Phase.UPDATE:
        return [int(v) for v in graph.outputs]
    updating = graph.phases[graph.consumers] == Phase.UPDATE
    wanted = np.unique(np.concatenate([graph.outputs, graph.operands[updating]]))
    computed = wanted[graph.producers[wanted] >= 0]
    return [int(v) for v in computed[graph.phases[graph.producers[computed]] <= phase]]


def part(module: MlirModule, outputs: Sequence[int]) -> OneOp:
    """A module that returns these values only, by their ids, without the arguments and operations that need not be."""
    n_arguments = len(module.arguments)
    producers = producing_operations(module.operations, n_arguments)
    needed = post_order(lambda v: module.operations[producers[v]].operands if v >= n_arguments else (), outputs)
    inputs = sorted(v for v in needed if v < n_arguments)
    operations = sorted({producers[v] for v in needed if v >= n_arguments})
    return OneOp(
        opcode="step",
        instructions=np.arange(len(module.operations)),
        operands=tuple(module.types[v] for v in inputs),
        results=tuple(module.types[v] for v in outputs),
        bytecode=extracted(module, operations, inputs, outputs),
    )


def _rising(up_to_s: Mapping[Phase, float | None]) -> dict[Phase, float]:
    """The times that are there and longer than those of the phases before, the whole step's above all."""
    rising: dict[Phase, float] = {}
    for phase in reversed(Phase):
        time_s = up_to_s[phase]
        if time_s is not None and time_s < min(rising.values(), default=np.inf):
            rising[phase] = time_s
    return dict(sorted(rising.items()))


def _spread(
    graph: InstructionGraph, single: Sequence[OneOp], alone_times_s: Sequence[float | None], call_s: float
) -> FloatArray:
    """[n] times from those of the distinct operations; by a data sheet where there is none, scaled like with like."""
    times_s, measured = np.zeros(len(graph)), np.zeros(len(graph), bool)
    ran = np.zeros(len(graph), bool)
    for one, time_s in zip(single, alone_times_s, strict=True):
        ran[one.instructions] = True
        if time_s is not None:
            times_s[one.instructions] = max(time_s - call_s, 0.0)
            measured[one.instructions] = True
    guess_s = read_device("cpu").seconds(graph.flop, graph.bytes_accessed)
    products = np.array([opcode in MATRIX_OPCODES for opcode in graph.opcodes])
    for kind in (products, ~products):
        measured_kind, unknown = kind & measured, kind & ran & ~measured
        factor = times_s[measured_kind].sum() / guess_s[measured_kind].sum() if guess_s[measured_kind].any() else 1.0
        times_s[unknown] = factor * guess_s[unknown]
    return times_s


def _scaled(alone_s: FloatArray, phases: NDArray[np.int8], up_to_s: Mapping[Phase, float]) -> FloatArray:
    """The times with the sums that the runs had; phases after the last run are scaled as all before them."""
    times_s, factor, before, before_s = alone_s.copy(), 1.0, -1, 0.0
    for phase, time_s in up_to_s.items():
        members = (before < phases) & (phases <= phase)
        if alone_s[members].any():
            times_s[members] *= (time_s - before_s) / alone_s[members].sum()
            factor = time_s / alone_s[phases <= phase].sum()
        before, before_s = int(phase), time_s
    times_s[phases > before] *= factor
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
