"""Which forward values are alive at a cut, which are kept for the backward pass, and where parameters are first used.

Numpy only, on any InstructionGraph. What counts as an activation:

- An argument does not: every stage holds its own parameters and state and loads its own inputs.
- Nor does what is made of constants alone (causal masks, positions): every stage makes its own.
- A view (a reshape or a broadcast) is the value that it shows: that is sent or kept, and shown again.
- Everything else does, each value once: residuals, an encoder's output, a relative position bias made of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.cost.kernels import VIEW_OPCODES

VIEWS = VIEW_OPCODES | {"broadcast", "broadcast_in_dim"}
"""Opcodes whose k-th result shows their k-th operand."""

NEVER = -1


@dataclass(frozen=True, eq=False)
class Liveness:
    """Liveness of an instruction graph; all positions count forward instructions only, in execution order."""

    graph: InstructionGraph

    @cached_property
    def forward(self) -> IntArray:
        """[m] the forward instructions."""
        return np.flatnonzero(self.graph.phases == Phase.FORWARD)

    @cached_property
    def position(self) -> IntArray:
        """[n] where each instruction comes among the forward ones; NEVER for the others."""
        position = np.full(len(self.graph), NEVER)
        position[self.forward] = np.arange(self.forward.size)
        return position

    @cached_property
    def storage(self) -> IntArray:
        """[v] the value that each value shows: itself, or what a view is a view of."""
        graph = self.graph
        storage = np.arange(len(graph.shapes))
        for i in np.flatnonzero([opcode in VIEWS for opcode in graph.opcodes]).tolist():
            results = np.arange(graph.result_offsets[i], graph.result_offsets[i + 1])
            read = graph.operands[graph.operand_offsets[i] : graph.operand_offsets[i + 1]]
            storage[results] = storage[read[: results.size]]
        return storage

    @cached_property
    def is_activation(self) -> NDArray[np.bool_]:
        """[v] whether a value is made of any argument and is none itself; a view is never one."""
        graph = self.graph
        depends = np.zeros(len(graph.shapes), dtype=bool)
        depends[: len(graph.arguments)] = True
        offsets, results = graph.operand_offsets.tolist(), graph.result_offsets.tolist()
        for i in range(len(graph)):
            read = graph.operands[offsets[i] : offsets[i + 1]]
            depends[results[i] : results[i + 1]] = depends[read].any()
        depends[: len(graph.arguments)] = False
        depends &= self.storage == np.arange(depends.size)
        return depends

    @cached_property
    def born(self) -> IntArray:
        """[v] position of the forward instruction that makes a value; NEVER for every other value."""
        producers = self.graph.producers
        return np.where(producers >= 0, self.position[producers], NEVER)

    @cached_property
    def last_read(self) -> IntArray:
        """[v] position of the last forward instruction that reads a value or a view of it; NEVER if none does."""
        last = np.full(len(self.graph.shapes), NEVER)
        np.maximum.at(last, self.storage[self.graph.operands], self.position[self.graph.consumers])
        return last

    def crossing(self, sizes: FloatArray) -> FloatArray:
        """[m] total of the sizes, [v], of the activations made up to each forward instruction and read by a later."""
        crosses = self.is_activation & (self.born != NEVER) & (self.last_read > self.born)
        change = np.zeros(self.forward.size + 1)
        np.add.at(change, self.born[crosses], sizes[crosses])
        np.subtract.at(change, self.last_read[crosses], sizes[crosses])
        return np.cumsum(change)[:-1]

    @cached_property
    def crossing_bytes(self) -> FloatArray:
        """[m] bytes of the activations made up to each forward instruction and read by a later one."""
        return self.crossing(self.graph.value_bytes)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """[v] whether a value is an activation that a backward instruction reads."""
        graph = self.graph
        read = np.zeros(len(graph.shapes), dtype=bool)
        read[self.storage[graph.operands[graph.phases[graph.consumers] == Phase.BACKWARD]]] = True
        kept: NDArray[np.bool_] = read & self.is_activation & (self.born != NEVER)
        return kept

    def keeping(self, sizes: FloatArray) -> FloatArray:
        """[m] total of the sizes, [v], of the activations that a forward instruction makes and a backward one reads."""
        return np.bincount(self.born[self.kept], sizes[self.kept], minlength=self.forward.size).astype(np.float64)

    @cached_property
    def kept_bytes(self) -> FloatArray:
        """[m] bytes of the activations that each forward instruction makes and a backward instruction reads."""
        return self.keeping(self.graph.value_bytes)

    @cached_property
    def parameters(self) -> IntArray:
        """Value ids of the trainable parameters."""
        return np.array([v for v, a in enumerate(self.graph.arguments) if a.kind == "parameter"], dtype=np.int64)

    @cached_property
    def first_use(self) -> IntArray:
        """[number of arguments] position of the first forward instruction that reads an argument; NEVER if none."""
        arguments = len(self.graph.arguments)
        first = np.full(arguments, self.forward.size)
        reads = (self.graph.operands < arguments) & (self.position[self.graph.consumers] != NEVER)
        np.minimum.at(first, self.graph.operands[reads], self.position[self.graph.consumers[reads]])
        return np.where(first == self.forward.size, NEVER, first)

    def first_using(self, sizes: FloatArray) -> FloatArray:
        """[m] total of the sizes, [v], of the parameters that each forward instruction is the first to use.

        Those that none uses count with the first instruction.
        """
        first = np.maximum(self.first_use[self.parameters], 0)
        return np.bincount(first, sizes[self.parameters], minlength=self.forward.size).astype(np.float64)

    @cached_property
    def shared_parameters(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Parameters that several forward instructions use: their value ids, and the positions of the users, ascending.

        The first position is that of the first use, where the parameter counts; from there on, views are no users.
        """
        graph = self.graph
        is_view = np.array([opcode in VIEWS for opcode in graph.opcodes])
        shown, users = self.storage[graph.operands], self.position[graph.consumers]
        trainable = np.isin(shown, self.parameters) & (users != NEVER) & ~is_view[graph.consumers]
        shared = []
        for v in np.unique(shown[trainable]).tolist():
            positions = np.unique(users[trainable & (shown == v)]).tolist()
            if len(positions) > 1:
                shared.append((v, (int(self.first_use[v]), *positions[1:])))
        return tuple(shared)
