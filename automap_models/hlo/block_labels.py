"""Which of the blocks that repeat in a traced step an operation or a value belongs to.

An operation belongs to the instance that its location names. One whose location names none, such as a link in the
chain of additions that sums a gradient over all blocks, belongs to the latest instance that it reads in the forward
pass, to the earliest in the backward pass and the update; what reads operations whose locations name an instance,
beside others, goes by these. Constants belong to the only instance that reads them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.hlo.module import Operation
from automap_models.hlo.sharding_rules import Use

TRACED = 4
"""Instances in a trace that is repeated: the first, two alike, the last."""
LAST = TRACED - 1
NO_BLOCK = -1
"""In place of an instance, or a layer: an operation of none."""


@dataclass(frozen=True)
class BlockStack:
    """Blocks of a model that repeat.

    Attributes:
        scope: path of a block without its number, such as `encoder/block_`.
        layers: number of blocks.
        lead: blocks at the beginning that differ from the others.
        period: after how many blocks the same block comes again.
        causal: whether tokens attend to earlier ones only.
        size: of the model, that says how many blocks there are.
    """

    scope: str
    layers: int
    lead: int = 0
    period: int = 1
    causal: bool = True
    size: str = "layers"

    @property
    def traced(self) -> int:
        """Blocks of the trace that stands for all: as many as there are where that is no fewer."""
        return min(self.layers, self.lead + TRACED * self.period + (self.layers - self.lead) % self.period)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Of a path that names a block: what comes before the number, and the number."""
        return re.compile(rf"((?:^|[/(]){re.escape(self.scope)})(\d+)(?=$|[/)])")

    def place(self, block: int) -> int:
        """The instance of a trace that one of its blocks belongs to."""
        return min(max(0, (block - self.lead) // self.period), LAST)

    def source(self, block: int) -> tuple[int, int | None]:
        """The block of the trace that a block of the repeated step is like, and how many instances before it is."""
        end = self.layers - self.traced
        if block < self.lead + self.period:
            return block, None
        if block - end >= 0 and self.place(block - end) == LAST:
            return block - end, None
        shift, of_period = divmod(block - self.lead - self.period, self.period)
        return self.lead + self.period + of_period, shift


class BlockNames:
    """Instances that names belong to, and the names of other instances."""

    def __init__(self, stacks: Sequence[BlockStack]) -> None:
        self._stacks = stacks
        self._patterns = [stack.pattern for stack in stacks]
        self._names: dict[tuple[str, int | None], str] = {}

    def label(self, name: str) -> int:
        """The number of the instance that a name names: four times its stack and its place; NO_BLOCK for none."""
        for s, pattern in enumerate(self._patterns):
            match = pattern.search(name)
            if match is not None:
                return TRACED * s + self._stacks[s].place(int(match[2]))
        return NO_BLOCK

    def prefix(self, name: str) -> tuple[str, int] | None:
        """A name up to the number of its block, and the stack; None for a name of no block."""
        matches = ((pattern.search(name), s) for s, pattern in enumerate(self._patterns))
        return next(((name[: match.end(1)], s) for match, s in matches if match is not None), None)

    def renamed(self, name: str, shift: int | None) -> str:
        """The name so many instances further on, or, of what is not repeated, with the last blocks' new numbers."""
        key = (name, shift)
        if key not in self._names:
            for s, pattern in enumerate(self._patterns):
                name = pattern.sub(lambda match, s=s: match[1] + str(self._moved(s, int(match[2]), shift)), name)  # type: ignore[misc]
            self._names[key] = name
        return self._names[key]

    def _moved(self, s: int, block: int, shift: int | None) -> int:
        stack = self._stacks[s]
        if shift is not None:
            return block + shift * stack.period
        return block + (stack.layers - stack.traced if self._stacks[s].place(block) > 1 else 0)


def operation_labels(
    operations: Sequence[Operation], graph: InstructionGraph, argument_labels: Sequence[int], op_labels: Sequence[int]
) -> list[int]:
    """[n] the instance, or layer, that each operation belongs to, see above.

    Args:
        argument_labels: of the arguments.
        op_labels: [n] of the operations, NO_BLOCK where its location does not say.
    """
    labels, of_values = list[int](), list(argument_labels)
    named = set(range(len(argument_labels)))
    latest: list[Callable[[Iterable[int]], int]] = [max if phase == Phase.FORWARD else min for phase in graph.phases]
    for op, stated, extreme in zip(operations, op_labels, latest, strict=True):
        label = stated
        if label != NO_BLOCK:
            named.update(range(len(of_values), len(of_values) + len(op.results)))
        else:
            labelled = [v for v in op.operands if of_values[v] != NO_BLOCK]
            labelled = [v for v in labelled if v in named] or labelled
            label = extreme(of_values[v] for v in labelled) if labelled else NO_BLOCK
        labels.append(label)
        of_values += [label] * len(op.results)
    readers: dict[int, set[int]] = defaultdict(set)
    producers = graph.producers.tolist()
    for i in range(len(operations) - 1, -1, -1):
        if labels[i] == NO_BLOCK and len(readers[i]) == 1:
            labels[i] = next(iter(readers[i]))
        for v in operations[i].operands:
            readers[producers[v]].add(labels[i])
    return labels


def labels_of_uses(
    uses: Sequence[Use], labels: Sequence[int], argument_labels: Sequence[int], n_values: int
) -> tuple[list[int], list[int]]:
    """The instances that uses and their values belong to; a copy of what is made of constants, to its reader's."""
    of_uses, of_values = [NO_BLOCK] * len(uses), [NO_BLOCK] * n_values
    readers: dict[int, set[int]] = defaultdict(set)
    for i in range(len(uses) - 1, -1, -1):
        use = uses[i]
        reading = {label for v in use.outputs for label in readers[v]}
        op_label = labels[use.operation]
        of_uses[i] = op_label if op_label != NO_BLOCK else next(iter(reading)) if len(reading) == 1 else NO_BLOCK
        for v in use.outputs:
            of_values[v] = of_uses[i]
        for v in use.operands:
            readers[v].add(of_uses[i])
    outputs = {v for use in uses for v in use.outputs}
    for v, reading in readers.items():
        if v not in outputs and len(reading) == 1:
            of_values[v] = next(iter(reading))
    of_values[: len(argument_labels)] = argument_labels
    return of_uses, of_values
