"""Which forward values are alive at a cut, which are kept for the backward pass, and where parameters are first used.

Numpy only, on any InstructionGraph. What counts as an activation:

- An argument does not, nor a part of one: every stage holds its own parameters and state and loads its own inputs.
- Nor does what is made of constants alone (causal masks, positions): every stage makes its own.
- A view (a reshape or a broadcast) is the value that it shows: that is sent or kept, and shown again.
- Everything else does, each value once: residuals, an encoder's output, a relative position bias made of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.cost.kernel_traffic import PART_OPCODE, VIEW_OPCODES

VIEWS = VIEW_OPCODES | {"broadcast", "broadcast_in_dim"}
"""Opcodes whose k-th result shows their k-th operand."""

NEVER = -1


@dataclass(frozen=True, eq=False)
class Liveness:
    """Liveness of an instruction graph; all positions count forward instructions only, in execution order."""

    graph: InstructionGraph

    @cached_property
    def reads(self) -> list[list[int]]:
        """[n] the values that each instruction reads."""
        operands = self.graph.operands.tolist()
        return [operands[start:end] for start, end in pairwise(self.graph.operand_offsets.tolist())]

    @cached_property
    def results(self) -> list[range]:
        """[n] the values that each instruction makes."""
        return [range(start, end) for start, end in pairwise(self.graph.result_offsets.tolist())]

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
        storage = list(range(len(self.graph.shapes)))
        for opcode, read, results in zip(self.graph.opcodes, self.reads, self.results, strict=True):
            if opcode in VIEWS:
                for source, v in zip(read, results, strict=False):
                    storage[v] = storage[source]
        return np.array(storage)

    @cached_property
    def is_activation(self) -> NDArray[np.bool_]:
        """[v] whether a value is made of any argument and is none itself; a view or a part of one is never one."""
        made_of = [True] * len(self.graph.arguments)
        for read, results in zip(self.reads, self.results, strict=True):
            made_of += [any(made_of[v] for v in read)] * len(results)
        depends: NDArray[np.bool_] = np.array(made_of, dtype=bool)
        depends[: len(self.graph.arguments)] = False
        depends &= (self.storage == np.arange(depends.size)) & (self.argument == NEVER)
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

    def crossing(self, sizes: FloatArray | None = None) -> FloatArray:
        """[m] bytes of the activations made up to each forward instruction and read by a later; sizes may be others."""
        sizes = self.graph.value_bytes if sizes is None else sizes
        crosses = self.is_activation & (self.born != NEVER) & (self.last_read > self.born)
        change = np.zeros(self.forward.size + 1)
        np.add.at(change, self.born[crosses], sizes[crosses])
        np.subtract.at(change, self.last_read[crosses], sizes[crosses])
        return np.cumsum(change)[:-1]

    @cached_property
    def saved(self) -> NDArray[np.bool_]:
        """[v] whether a value is an activation that a backward instruction reads."""
        graph = self.graph
        read = np.zeros(len(graph.shapes), dtype=bool)
        read[self.storage[graph.operands[graph.phases[graph.consumers] == Phase.BACKWARD]]] = True
        is_saved: NDArray[np.bool_] = read & self.is_activation & (self.born != NEVER)
        return is_saved

    def keeping(self, sizes: FloatArray | None = None) -> FloatArray:
        """[m] bytes of the activations that a forward instruction makes and a backward one reads; of other sizes."""
        sizes = self.graph.value_bytes if sizes is None else sizes
        return np.bincount(self.born[self.saved], sizes[self.saved], minlength=self.forward.size).astype(np.float64)

    @cached_property
    def parameters(self) -> IntArray:
        """Value ids of the trainable parameters."""
        return np.array([v for v, a in enumerate(self.graph.arguments) if a.kind == "parameter"], dtype=np.int64)

    @cached_property
    def argument(self) -> IntArray:
        """[v] the argument that a value is, or shows, or is a part of; NEVER for every other value."""
        graph = self.graph
        argument = np.full(len(graph.shapes), NEVER)
        argument[: len(graph.arguments)] = np.arange(len(graph.arguments))
        for opcode, read, results in zip(graph.opcodes, self.reads, self.results, strict=True):
            if opcode == PART_OPCODE:
                argument[results] = argument[self.storage[read[0]]]
        argument[:] = argument[self.storage]
        return argument

    @cached_property
    def first_use(self) -> IntArray:
        """[number of arguments] position of the first forward instruction that reads an argument; NEVER if none."""
        arguments = len(self.graph.arguments)
        first = np.full(arguments, self.forward.size)
        reads = (self.graph.operands < arguments) & (self.position[self.graph.consumers] != NEVER)
        np.minimum.at(first, self.graph.operands[reads], self.position[self.graph.consumers[reads]])
        return np.where(first == self.forward.size, NEVER, first)

    @cached_property
    def untrained(self) -> IntArray:
        """Value ids of state and constants that the forward pass reads, scalars left out.

        These are frozen parameters, running averages, and weights that code or an inference graph has as constants.
        """
        state = [v for v, a in enumerate(self.graph.arguments) if a.kind == "state" and self.graph.shapes[v]]
        read = self.last_read != NEVER
        return np.array([v for v in (*state, *self.constants.tolist()) if read[v]], dtype=np.int64)

    @cached_property
    def constants(self) -> IntArray:
        """Value ids of the constants that are written out and are no scalars, such as weights."""
        of_opcodes = zip(self.graph.opcodes, self.results, strict=True)
        written = (results[0] for opcode, results in of_opcodes if opcode == "constant")
        return np.array([v for v in written if self.graph.shapes[v]], dtype=np.int64)

    def users_of(self, values: IntArray) -> dict[int, tuple[int, ...]]:
        """Positions of the forward instructions that use one of these or a part of one, ascending; not views and parts.

        Only those of which there are any; the keys are value ids, ascending.
        """
        graph = self.graph
        only_show = np.array([opcode in VIEWS or opcode == PART_OPCODE for opcode in graph.opcodes])
        storage, users = self.storage[graph.operands], self.position[graph.consumers]
        origin = np.where(self.argument != NEVER, self.argument, np.arange(self.argument.size))
        chosen = np.isin(origin[storage], values) & (users != NEVER) & ~only_show[graph.consumers]
        pairs = np.unique(np.stack((storage[chosen], users[chosen]), axis=1), axis=0)
        shown_values, starts = np.unique(pairs[:, 0], return_index=True)
        positions = np.split(pairs[:, 1], starts)[1:]
        return {int(v): tuple(places.tolist()) for v, places in zip(shown_values, positions, strict=True)}

    @cached_property
    def trained(self) -> ParameterMemory:
        """What instructions hold of the trainable parameters."""
        return self._memory_of(self.parameters)

    @cached_property
    def frozen(self) -> ParameterMemory:
        """The same of what is not trained."""
        return self._memory_of(self.untrained)

    def _memory_of(self, values: IntArray) -> ParameterMemory:
        sizes, positions, using = self.graph.value_bytes, dict[int, tuple[int, ...]](), self.users_of(values)
        parts: dict[int, list[int]] = {int(v): [] for v in values}
        for v in using:
            if v not in parts and self.born[v] != NEVER:
                parts[int(self.argument[v])].append(v)
        for v, part_values in parts.items():
            first = int(self.first_use[v]) if v < self.first_use.size else using.get(v, (int(self.born[v]),))[0]
            positions[v] = (max(first, 0),)
            if v not in using and part_values and sizes[part_values].sum() <= sizes[v]:
                positions |= {part: (int(self.born[part]), *using[part][1:]) for part in part_values}
            else:
                users = sorted(set(using.get(v, ())).union(*(using[part] for part in part_values)))
                positions[v] += tuple(users[1:])
        return ParameterMemory(self, values, positions)


@dataclass(frozen=True, eq=False)
class ParameterMemory:
    """What forward instructions hold of parameters, or of what is not trained.

    That is a value as a whole, at its first use. Where instructions use parts of it only, which do not overlap, it is
    each of these parts, and the value for what is left of it. One that nothing uses counts with the first instruction.

    Attributes:
        liveness: of the graph.
        values: ids of the parameters.
        positions: id of each, or of a part → where it counts, and the positions of further users.
    """

    liveness: Liveness
    values: IntArray
    positions: dict[int, tuple[int, ...]]

    def first_using(self, sizes: FloatArray) -> FloatArray:
        """[m] total of the sizes, [v], of the values, or parts of them, that each forward instruction counts."""
        value_bytes, total = self.liveness.graph.value_bytes, np.zeros(self.liveness.forward.size)
        remaining = {v: float(sizes[v]) for v in self.values.tolist()}
        for v, (first, *_) in self.positions.items():
            if v not in remaining:
                argument = int(self.liveness.argument[v])
                part = sizes[argument] * value_bytes[v] / value_bytes[argument]
                remaining[argument] -= part
                total[first] += part
        for v, rest in remaining.items():
            total[self.positions[v][0]] += max(0.0, rest)
        return total

    @cached_property
    def shared(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Values, or parts of them, that several forward instructions use: ids and positions."""
        return tuple((v, users) for v, users in sorted(self.positions.items()) if len(users) > 1)
