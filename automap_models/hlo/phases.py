"""Forward, backward or update: which part of the training step an operation belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument, Phase
from automap_models.hlo.locations import is_backward, is_differentiated, is_update
from automap_models.hlo.operation import Operation, producing_operations


def phases(operations: Sequence[Operation], arguments: Sequence[Argument]) -> NDArray[np.int8]:
    """The phase of each operation, int8 [n]; no operation reads what an earlier phase than its own needs later.

    1. What automatic differentiation's transposition made (`transpose(…)`, TensorFlow's `gradient_tape`) is backward;
       what stands in the scope "optimizer" is update; what is differentiated itself (`jvp(…)`) is forward.
    2. Everything else that depends on a gradient is update.
    3. What is left (constants, masks, random keys, step counters) belongs to the phase of its first reader; what only
       the caller reads is update where it depends on state alone, else forward.

    Args:
        operations: in a topological order.
        arguments: of the module.
    """
    stated, late, state_only = _from_operands(operations, arguments)
    first_reader = np.full(len(operations), _NEVER, dtype=np.int8)
    made = np.empty(len(operations), dtype=np.int8)
    producers = producing_operations(operations, len(arguments))
    for i in range(len(operations) - 1, -1, -1):
        phase = stated[i]
        if phase is None:
            phase = first_reader[i] if first_reader[i] != _NEVER else Phase.UPDATE if state_only[i] else Phase.FORWARD
        made[i] = phase if late[i] else min(phase, first_reader[i])
        for value in operations[i].operands:
            before = producers[value]
            if before >= 0:
                first_reader[before] = min(first_reader[before], made[i])
    return made


_NEVER = np.int8(len(Phase))
_NEW, _STATE, _LATE = 1, 2, 4


def _from_operands(
    operations: Sequence[Operation], arguments: Sequence[Argument]
) -> tuple[list[Phase | None], list[bool], list[bool]]:
    """What is known of each operation from its location and from what it reads.

    Returns:
        Its phase where that settles it, whether it depends on a gradient, and whether it depends on state alone.
    """
    depends = [_STATE if argument.kind == "state" else _NEW for argument in arguments]
    phase: list[Phase | None] = []
    late: list[bool] = []
    state_only: list[bool] = []
    for op in operations:
        found = 0
        for value in op.operands:
            found |= depends[value]
        said = _stated(op)
        if found & _LATE and said in {None, Phase.FORWARD}:
            said = Phase.UPDATE if said is None else Phase.BACKWARD
        if said is Phase.BACKWARD:
            found |= _LATE
        phase.append(said)
        late.append(bool(found & _LATE))
        state_only.append(found == _STATE)
        depends += [found] * len(op.results)
    return phase, late, state_only


def _stated(op: Operation) -> Phase | None:
    if is_update(op.path):
        return Phase.UPDATE
    if is_backward(op.path):
        return Phase.BACKWARD
    return Phase.FORWARD if is_differentiated(op.path) else None
