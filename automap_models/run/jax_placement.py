"""A training step whose operations run on the devices of a placement, on JAX.

    level    of an operation: how often what it is made from has changed devices on the way, at most
    part     the operations of one level and one device; a part reads parts of lower levels only. It is a Program whose
             key has the device for the stage

        device 0   ██ level 0 ██ ──────────────→ ██ level 2 ██
        device 1                 ██ level 1 ██ ─┘                 a value goes to each device that reads it, once

Views and what is made of constants alone have no device: they are copied into every part that reads them. Each part is
compiled by XLA for its device; between parts values move with `jax.device_put`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.placement import IntArray
from automap_models.errors import BadInput
from automap_models.hlo.jax_function import program_function
from automap_models.hlo.random_keys import physical
from automap_models.hlo.sharded_step import differences, on_one_device
from automap_models.hlo.step_cut import Program, ProgramKey
from automap_models.hlo.step_graph import step_nodes
from automap_models.run.base import Say
from automap_models.run.jax_pipeline import TracedStep
from automap_models.run.jax_process import serve
from automap_models.run.jax_run import traceable
from automap_models.run.verify_placement import PlacedRequest, VerifiedPlacement
from automap_models.user_code import user_code

NOWHERE = -1
"""Device of what is copied to its readers."""


def instruction_devices(graph: InstructionGraph, assignment: IntArray) -> IntArray:
    """[n] device of each instruction; NOWHERE for what is no node of the step's graph."""
    device = np.full(len(graph.arguments) + len(graph), NOWHERE)
    device[step_nodes(graph)] = assignment
    return device[len(graph.arguments) :]


def parts_of(graph: InstructionGraph, device: IntArray, wanted: Sequence[int]) -> list[Program]:
    """The parts of a step, each after those that it reads.

    Args:
        graph: n instructions.
        device: [n] of each, NOWHERE for what is copied to its readers.
        wanted: values that the step is to return; what they do not need is left out.
    """
    offsets, operands, producers = graph.operand_offsets.tolist(), graph.operands.tolist(), graph.producers.tolist()
    reads = [operands[offsets[i] : offsets[i + 1]] for i in range(len(graph))]
    level = _levels(reads, producers, device.tolist())
    last = max(level, default=0) + 1
    owner = [(level[i], d) if d != NOWHERE else None for i, d in enumerate(device.tolist())]
    operations: dict[tuple[int, int], set[int]] = defaultdict(set)
    inputs: dict[tuple[int, int], set[int]] = defaultdict(set)
    outputs: dict[tuple[int, int], set[int]] = defaultdict(set)
    pending: list[tuple[int, tuple[int, int]]] = []  # an instruction that a part is to have

    def need(v: int, part: tuple[int, int]) -> None:
        i = producers[v]
        home = owner[i] if i >= 0 else None
        if i < 0:
            inputs[part].add(v)
        elif home is None or home == part:
            pending.append((i, part))
        else:
            inputs[part].add(v)
            outputs[home].add(v)
            pending.append((i, home))

    for v in wanted:
        i = producers[v]
        if i >= 0:
            part = owner[i] or (last, 0)
            outputs[part].add(v)
            pending.append((i, part))
    while pending:
        i, part = pending.pop()
        if i in operations[part]:
            continue
        operations[part].add(i)
        for v in reads[i]:
            need(v, part)
    return [
        Program(
            ProgramKey("F", part[1], part[0]), *(tuple(sorted(table[part])) for table in (operations, inputs, outputs))
        )
        for part in sorted(operations)
        if operations[part]
    ]


def _levels(reads: list[list[int]], producers: list[int], device: list[int]) -> list[int]:
    """[n] how often what each instruction is made from has changed devices on the way, at most."""
    sources: list[frozenset[int]] = []  # of a copied instruction: the placed ones that it is made from
    level = [0] * len(reads)
    for i, read in enumerate(reads):
        placed: set[int] = set()
        for v in read:
            u = producers[v]
            if u >= 0:
                placed |= {u} if device[u] != NOWHERE else sources[u]
        sources.append(frozenset(placed))
        if device[i] != NOWHERE:
            level[i] = max((level[u] + (device[u] != device[i]) for u in placed), default=0)
    return level


class PlacedStep:
    """A step whose operations run where a placement has them.

    Args:
        traced: the step.
        assignment: [nodes] device of each node of its `hlo.step_graph`.
        devices: JAX's, as many as the placement has.

    Attributes:
        parts: in the order in which they run.
    """

    def __init__(self, traced: TracedStep, assignment: IntArray, devices: Sequence[Any]) -> None:
        self._traced, self._devices = traced, devices
        device = instruction_devices(traced.graph, assignment)
        self.parts = parts_of(traced.graph, device, traced.module.outputs)
        self._calls = [
            jax.jit(
                program_function(traced.module, part),
                out_shardings=[SingleDeviceSharding(devices[part.key.stage])] * len(part.outputs),
            )
            for part in self.parts
        ]

    def run(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Value → array of what the step returns.

        Args:
            leaves: the step's arguments, in the order in which JAX flattens them.
        """
        values: dict[int, Any] = {v: physical(leaf) for v, leaf in enumerate(leaves)}
        there: dict[tuple[int, int], Any] = {}
        for part, call in zip(self.parts, self._calls, strict=True):
            number = part.key.stage
            device, given = self._devices[number], []
            for v in part.inputs:
                if (v, number) not in there:
                    there[v, number] = jax.device_put(values[v], device)
                given.append(there[v, number])
            with jax.default_device(device):
                computed = call(*given)
            for v, array in zip(part.outputs, computed, strict=True):
                values[v] = there[v, number] = array
        return {v: values[v] for v in self._traced.module.outputs}

    @property
    def moved(self) -> int:
        """How many values go to another device; parameters and inputs begin where they are read."""
        home = {v: part.key.stage for part in self.parts for v in part.outputs}
        pairs = {(v, part.key.stage) for part in self.parts for v in part.inputs}
        return sum(v in home and home[v] != device for v, device in pairs)


def run_placed(request: PlacedRequest, say: Say) -> VerifiedPlacement:
    """Run a placed step on the devices of this process, and the step itself on the first of them.

    Raises:
        BadInput: the model is not JAX's, or the placement is of another step.
        UserCodeError: the user's own code raised.
    """
    source = request.source
    say(f"tracing {source.what}")
    with user_code(source.what):
        traced = TracedStep(traceable(source))
    _require_step(traced, request)
    placed = PlacedStep(traced, np.array(request.assignment, dtype=np.int64), jax.devices())
    say("running it on one device")
    values, expected = on_one_device(traced.step, request.seed)
    say(f"compiling {len(placed.parts)} parts for {request.devices} devices")
    computed = placed.run(values)
    results = [np.asarray(computed[v]) for v in traced.module.outputs]
    loss_error, array_error = differences(results, expected)
    return VerifiedPlacement(
        len({part.key.stage for part in placed.parts}),
        len(placed.parts),
        placed.moved,
        float(results[traced.results.loss]),
        loss_error,
        array_error,
    )


def _require_step(traced: TracedStep, request: PlacedRequest) -> None:
    graph, arguments = traced.graph, len(traced.graph.arguments)
    opcodes = (*("parameter",) * arguments, *graph.opcodes)
    if tuple(opcodes[i] for i in step_nodes(graph).tolist()) != request.opcodes:
        what = "has other operations, traced whole, than the placement's graph"
        raise BadInput(what, where=request.source.what, do="leave out `verify`")


if __name__ == "__main__":
    raise SystemExit(serve(PlacedRequest, run_placed))
