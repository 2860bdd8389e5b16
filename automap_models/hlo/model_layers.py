"""The layers of a traced transformer, and which work of its backward pass makes nothing but gradients of parameters.

    layer        0        1 … B      B + 1
                 before   blocks     after           the update is of no layer
    forward      ─────────────────────→    what the first block needs is before it, what no block needs is after them
    backward     ←─────────────────────    the other way round

What stands between two stacks of blocks, such as the norm that ends an encoder or the embedding that a decoder begins
with, belongs to the first block of the second stack: the first that needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.hlo.block_labels import NO_BLOCK, BlockStack, operation_labels
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.module import Module
from automap_models.hlo.step_classes import PASSED_THROUGH

BEFORE = 0
"""The layer of what comes before the blocks."""


@dataclass(frozen=True, eq=False)
class ModelLayers:
    """The layers of a trace.

    Attributes:
        module: the trace, n operations.
        graph: its, n instructions over v values.
        stacks: its repeated blocks, in the order in which the forward pass runs them.
    """

    module: Module
    graph: InstructionGraph
    stacks: tuple[BlockStack, ...]

    @cached_property
    def liveness(self) -> Liveness:
        """Of the graph."""
        return Liveness(self.graph)

    @cached_property
    def first_blocks(self) -> tuple[int, ...]:
        """The layer of the first block of each stack, and `after`."""
        return tuple(accumulate((stack.traced for stack in self.stacks), initial=BEFORE + 1))

    @property
    def after(self) -> int:
        """The layer of what comes after the blocks."""
        return self.first_blocks[-1]

    @cached_property
    def of_instructions(self) -> tuple[int, ...]:
        """[n] layer of each instruction; NO_BLOCK for constants that several read, `after` + 1 for the update."""
        labels = operation_labels(
            self.module.operations, self.graph, self.of_arguments, self._named_or_needed(self._named)
        )
        update = self.graph.phases == Phase.UPDATE
        return tuple(self.after + 1 if late else label for late, label in zip(update, labels, strict=True))

    @cached_property
    def of_arguments(self) -> tuple[int, ...]:
        """The block of each argument; NO_BLOCK for those that none has."""
        return tuple(self.block(argument.name) for argument in self.graph.arguments)

    @cached_property
    def of_parameters(self) -> dict[int, tuple[int, ...]]:
        """Trainable parameter → the layers whose forward pass reads it, ascending."""
        graph, layers = self.graph, self.of_instructions
        readers: dict[int, set[int]] = {
            v: {block} if block != NO_BLOCK else set()
            for v, (argument, block) in enumerate(zip(graph.arguments, self.of_arguments, strict=True))
            if argument.kind == "parameter"
        }
        shown = self.shown_parameters
        for value, i in zip(graph.operands.tolist(), graph.consumers.tolist(), strict=True):
            if shown[value] in readers and graph.phases[i] == Phase.FORWARD and layers[i] != NO_BLOCK:
                readers[shown[value]].add(layers[i])
        return {v: tuple(sorted(reading)) for v, reading in readers.items()}

    @cached_property
    def token_inputs(self) -> tuple[int, ...]:
        """Inputs of the step with samples and tokens: all but a random key."""
        inputs = (v for v, argument in enumerate(self.graph.arguments) if argument.kind == "input")
        return tuple(v for v in inputs if len(self.graph.shapes[v]) > 1)

    @cached_property
    def from_tokens(self) -> NDArray[np.bool_]:
        """[v] whether a value is made of tokens."""
        return self.liveness.made_of([v in self.token_inputs for v in range(len(self.graph.arguments))])

    @cached_property
    def from_inputs(self) -> NDArray[np.bool_]:
        """[v] whether a value is made of what a step reads, tokens or a random key, not of parameters alone."""
        return self.liveness.made_of([argument.kind == "input" for argument in self.graph.arguments])

    @cached_property
    def from_arguments(self) -> NDArray[np.bool_]:
        """[v] whether a value depends on any argument: it is made of more than constants."""
        return self.liveness.made_of([True] * len(self.graph.arguments))

    @cached_property
    def core_results(self) -> frozenset[int]:
        """Values that attention cores make in the forward pass for what comes after them."""
        return frozenset(
            v for v, producer, i in self._forward_reads if self.graph.in_core[producer] and not self.graph.in_core[i]
        )

    @cached_property
    def crossing(self) -> dict[int, tuple[int, list[int]]]:
        """Value made of tokens → the layer that makes it, and later ones whose forward pass reads it, ascending."""
        layers, readers = self.of_instructions, dict[tuple[int, int], set[int]]()
        for v, producer, i in self._forward_reads:
            if self.from_tokens[v] and NO_BLOCK < layers[producer] < layers[i]:
                readers.setdefault((v, layers[producer]), set()).add(layers[i])
        return {v: (producer, sorted(reading)) for (v, producer), reading in readers.items()}

    @cached_property
    def forward_readers(self) -> dict[int, list[int]]:
        """Value that an instruction makes → the instructions of the forward pass that read it."""
        readers: dict[int, list[int]] = defaultdict(list)
        for v, _, i in self._forward_reads:
            readers[v].append(i)
        return readers

    @cached_property
    def _forward_reads(self) -> list[tuple[int, int, int]]:
        """Value, the instruction that makes it and one of the forward pass that reads it."""
        graph = self.graph
        chosen = (graph.phases[graph.consumers] == Phase.FORWARD) & (graph.producers[graph.operands] >= 0)
        values = graph.operands[chosen]
        triples = zip(values.tolist(), graph.producers[values].tolist(), graph.consumers[chosen].tolist(), strict=True)
        return list(triples)

    @cached_property
    def gradients_only(self) -> NDArray[np.bool_]:
        """[n] whether a backward instruction leads in its own layer only to gradients of parameters."""
        graph, layers, adds_up = self.graph, self.of_instructions, self._adds_up
        only = np.zeros(len(graph), dtype=np.bool_)
        passed_on = np.zeros(len(graph.shapes), dtype=np.bool_)
        makers, reads, results = graph.producers.tolist(), self.liveness.reads, self.liveness.results
        for i in np.flatnonzero(graph.phases == Phase.BACKWARD)[::-1].tolist():
            only[i] = not passed_on[results[i]].any()
            for v in reads[i]:
                same = makers[v] >= 0 and layers[makers[v]] == layers[i]
                passed_on[v] |= not only[i] if same else not adds_up[i]
        return only

    def block(self, name: str) -> int:
        """The block that a path names; NO_BLOCK for none."""
        for stack, first in zip(self.stacks, self.first_blocks, strict=False):
            match = stack.pattern.search(name)
            if match is not None:
                return first + int(match[2])
        return NO_BLOCK

    @cached_property
    def _named(self) -> list[int]:
        """[n] the block that each instruction's location names."""
        return [self.block(op.path) for op in self.module.operations]

    def _named_or_needed(self, named: Sequence[int]) -> list[int]:
        """[n] the layers of instructions, those outside the blocks by what they need or are needed by."""
        graph, own = self.graph, list(named)
        needed_by = self._needed_beside(named, self._first_needing(named))
        backward_needs = self._first_needed(named, needed_by)
        for i, op in enumerate(self.module.operations):
            if named[i] != NO_BLOCK or not op.path or not self.from_arguments[graph.result_offsets[i]]:
                continue
            if graph.phases[i] == Phase.FORWARD:
                own[i] = BEFORE if needed_by[i] == BEFORE + 1 else needed_by[i]
            elif graph.phases[i] == Phase.BACKWARD and backward_needs[i] != NO_BLOCK:
                own[i] = BEFORE if backward_needs[i] == BEFORE + 1 else backward_needs[i]
        return own

    def _needed_beside(self, named: Sequence[int], first: Sequence[int]) -> list[int]:
        """[n] as `first`, but of what only the backward pass needs: what else of its module the blocks need.

        That is what the norm of an embedding computes for its own gradient, for instance.
        """
        graph, latest = self.graph, self._latest_needed(named)
        of_modules: dict[str, int] = {}
        forward = [i for i in np.flatnonzero(graph.phases == Phase.FORWARD).tolist() if named[i] == NO_BLOCK]
        for i in forward:
            if first[i] < self.after:
                of_modules[graph.layers[i]] = min(first[i], of_modules.get(graph.layers[i], self.after))
        beside = list(first)
        for i in forward:
            module = of_modules.get(graph.layers[i], self.after)
            if first[i] == self.after and latest[i] < module:
                beside[i] = module
        return beside

    def _latest_needed(self, named: Sequence[int]) -> list[int]:
        """[n] the last block that an instruction of the forward pass needs; NO_BLOCK where it needs none."""
        graph, latest = self.graph, [NO_BLOCK] * len(self.graph)
        of_values = np.full(len(graph.shapes), NO_BLOCK)
        reads, results = self.liveness.reads, self.liveness.results
        for i in np.flatnonzero(graph.phases == Phase.FORWARD).tolist():
            latest[i] = max(named[i], int(of_values[reads[i]].max(initial=NO_BLOCK)))
            of_values[results[i]] = latest[i]
        return latest

    def _first_needing(self, named: Sequence[int]) -> list[int]:
        """[n] the first block whose forward pass needs an instruction; `after` where none does."""
        graph, first = self.graph, [self.after] * len(self.graph)
        of_values = [self.after] * len(graph.shapes)
        reads, results = self.liveness.reads, self.liveness.results
        for i in range(len(graph) - 1, -1, -1):
            if graph.phases[i] != Phase.FORWARD:
                continue
            needing = min((of_values[v] for v in results[i]), default=self.after)
            first[i] = needing if named[i] == NO_BLOCK else named[i]
            for v in reads[i]:
                of_values[v] = min(of_values[v], first[i])
        return first

    def _first_needed(self, named: Sequence[int], forward: Sequence[int]) -> list[int]:
        """[n] the first block whose backward pass an instruction of the backward pass needs.

        `after` where it needs only what comes after the blocks; NO_BLOCK where it needs neither.

        Args:
            forward: [n] the first block that needs an instruction of the forward pass, `after` for those after them.
        """
        graph, first = self.graph, [NO_BLOCK] * len(self.graph)
        last = self.after + 1
        of_values = [last] * len(graph.shapes)
        reads, results = self.liveness.reads, self.liveness.results
        for i in range(len(graph)):
            if graph.phases[i] == Phase.FORWARD:
                needed = self.after if forward[i] == self.after and named[i] == NO_BLOCK else last
            elif graph.phases[i] == Phase.BACKWARD:
                needed = min((of_values[v] for v in reads[i]), default=last)
                needed = needed if named[i] == NO_BLOCK else named[i]
                first[i] = NO_BLOCK if needed == last else needed
            else:
                continue
            for v in results[i]:
                of_values[v] = needed
        return first

    @cached_property
    def shown_parameters(self) -> list[int]:
        """[v] the parameter that a value is, in another type or shape; the value itself for every other."""
        graph, shown = self.graph, list(range(len(self.graph.shapes)))
        for i in np.flatnonzero([opcode in PASSED_THROUGH for opcode in graph.opcodes]).tolist():
            shown[self.liveness.results[i][0]] = shown[self.liveness.reads[i][0]]
        return shown

    @cached_property
    def _adds_up(self) -> NDArray[np.bool_]:
        """[n] whether an instruction only adds gradients up, or moves them, for the update."""
        graph, waited = self.graph, np.zeros(len(self.graph.shapes), dtype=np.bool_)
        adds_up: NDArray[np.bool_] = graph.phases == Phase.UPDATE
        reads, results = self.liveness.reads, self.liveness.results
        for i in range(len(graph) - 1, -1, -1):
            if graph.opcodes[i] == "add" or graph.opcodes[i] in PASSED_THROUGH:
                adds_up[i] |= not waited[results[i]].any()
            if not adds_up[i]:
                waited[reads[i]] = True
        return adds_up
