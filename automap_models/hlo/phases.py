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

    Where nothing is backward, everything is forward: a model's inference.

    Args:
        operations: in a topological order.
        arguments: of the module.
    """
    facts = _facts(operations, arguments)
    if not any(fact.depends & _GRADIENT for fact in facts):
        return np.full(len(operations), _FORWARD, dtype=np.int8)
    first_readers = [_NEVER] * (len(operations) + 1)  # the last one is of the arguments
    result = [0] * len(operations)
    producers = producing_operations(operations, len(arguments))
    for i in range(len(operations) - 1, -1, -1):
        result[i] = phase = _phase(facts[i], first_readers[i])
        for value in operations[i].operands:
            maker = producers[value]
            first_readers[maker] = min(first_readers[maker], phase)
    return np.array(result, dtype=np.int8)


_FORWARD, _BACKWARD, _UPDATE = (int(phase) for phase in Phase)  # numbers: members of an enumeration are slow to look up
_NEVER = len(Phase)
_INPUT, _KEPT, _GRADIENT = 1, 2, 4
"""What a value depends on: an input of the step, parameters or state, a gradient."""


class _Facts(NamedTuple):
    """What an operation's location and operands tell."""

    marked: int | None
    depends: int


def _facts(operations: Sequence[Operation], arguments: Sequence[Argument]) -> list[_Facts]:
    depends = [_INPUT if argument.kind == "input" else _KEPT for argument in arguments]
    facts: list[_Facts] = []
    marks: dict[str, int | None] = {}
    for op in operations:
        own = 0
        for value in op.operands:
            own |= depends[value]
        if op.path not in marks:
            marks[op.path] = _BACKWARD if is_backward(op.path) else _FORWARD if is_differentiated(op.path) else None
        marked = marks[op.path]
        if marked == _FORWARD and own & _GRADIENT:
            marked = _BACKWARD
        if marked == _BACKWARD:
            own |= _GRADIENT
        facts.append(_Facts(marked, own))
        depends += [own] * len(op.results)
    return facts


def _phase(facts: _Facts, first_reader: int) -> int:
    """The phase of an operation, given the first phase that reads its results."""
    marked, depends = facts
    if depends & _GRADIENT:
        return _BACKWARD if _BACKWARD in (marked, first_reader) else _UPDATE
    if marked is not None:
        return min(marked, first_reader)
    if first_reader != _NEVER:
        return first_reader
    return _UPDATE if depends == _KEPT else _FORWARD
