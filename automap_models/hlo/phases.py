"""Forward, backward or update: which part of the training step an operation belongs to.

    batch ──┐            loss                         One micro-batch: forward and backward.
            ├─ forward ───┴── backward ── gradients   One global batch: the update, which reads the gradients
    params ─┘                                 │       of all its micro-batches and makes new parameters and state.
      └──────────── update ───────────────────┘

The marks that automatic differentiation leaves in locations tell forward from backward. The update has no mark: it is
what only dataflow can tell, the operations after the gradients that no gradient needs, and what these alone read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument, Phase
from automap_models.hlo.locations import is_backward, is_differentiated
from automap_models.hlo.module import Operation, producing_operations


def phases(operations: Sequence[Operation], arguments: Sequence[Argument]) -> NDArray[np.int8]:
    """The phase of each operation, int8 [n]; no operation reads what a later phase than its own makes.

    1. What automatic differentiation's transposition made (`transpose(…)`, TensorFlow's `gradient_tape`) is backward;
       what is differentiated itself (`jvp(…)`) is forward, or backward where it depends on a gradient.
    2. Everything else that depends on a gradient is backward if a backward operation reads it, else update.
    3. What is left (constants, masks, random keys, step counters, weight decay) belongs to the first phase that reads
       it. What only the caller reads is update where it depends on parameters or state but on no input, else forward.

    Args:
        operations: in a topological order.
        arguments: of the module.
    """
    facts = _facts(operations, arguments)
    first_readers = np.full(len(operations), _NEVER, dtype=np.int8)
    result = np.empty(len(operations), dtype=np.int8)
    producers = producing_operations(operations, len(arguments))
    for i in range(len(operations) - 1, -1, -1):
        result[i] = phase = _phase(facts[i], first_readers[i])
        for value in operations[i].operands:
            if producers[value] >= 0:
                first_readers[producers[value]] = min(first_readers[producers[value]], phase)
    return result


_NEVER = np.int8(len(Phase))
_INPUT, _KEPT, _GRADIENT = 1, 2, 4
"""What a value depends on: an input of the step, parameters or state, a gradient."""


class _Facts(NamedTuple):
    """What an operation's location and operands tell."""

    marked: Phase | None
    depends: int


def _facts(operations: Sequence[Operation], arguments: Sequence[Argument]) -> list[_Facts]:
    depends = [_INPUT if argument.kind == "input" else _KEPT for argument in arguments]
    facts: list[_Facts] = []
    for op in operations:
        own = 0
        for value in op.operands:
            own |= depends[value]
        marked = Phase.BACKWARD if is_backward(op.path) else Phase.FORWARD if is_differentiated(op.path) else None
        if marked is Phase.FORWARD and own & _GRADIENT:
            marked = Phase.BACKWARD
        if marked is Phase.BACKWARD:
            own |= _GRADIENT
        facts.append(_Facts(marked, own))
        depends += [own] * len(op.results)
    return facts


def _phase(facts: _Facts, first_reader: np.int8) -> int:
    """The phase of an operation, given the first phase that reads its results."""
    if facts.depends & _GRADIENT:
        return Phase.BACKWARD if Phase.BACKWARD in {facts.marked, first_reader} else Phase.UPDATE
    if facts.marked is not None:
        return min(int(facts.marked), int(first_reader))
    if first_reader != _NEVER:
        return int(first_reader)
    return Phase.UPDATE if facts.depends == _KEPT else Phase.FORWARD
