"""When operations run: forward, backward or update, and in which order.

    batch ──┐            loss                         One micro-batch: forward and backward.
            ├─ forward ───┴── backward ── gradients   One global batch: the update, which reads the gradients
    params ─┘                                 │       of all its micro-batches and makes new parameters and state.
      └──────────── update ───────────────────┘

The marks that automatic differentiation leaves in locations tell forward from backward. The update has no mark: it is
what only dataflow can tell, the operations after the gradients that no gradient needs, and what these alone read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import post_order, topological_order
from automap_models.core.instruction_graph import Argument, Phase
from automap_models.hlo.locations import is_backward, is_differentiated
from automap_models.hlo.module import Operation, producing_operations
from automap_models.hlo.sharding_rules import offsets

_Key = tuple[int, ...]
_FORWARD, _BACKWARD, _UPDATE = (int(phase) for phase in Phase)  # numbers: members of an enumeration are slow to look up
_NEVER = len(Phase)
_INPUT, _PARAMETER, _STATE, _GRADIENT = 1, 2, 4, 8
"""What a value depends on."""
_OF_KIND = {"input": _INPUT, "parameter": _PARAMETER, "state": _STATE}


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
    if not any(depends & _GRADIENT for _, depends in facts):
        return np.full(len(operations), _FORWARD, dtype=np.int8)
    first_readers = [_NEVER] * (len(operations) + 1)  # the last one is of the arguments
    result = [0] * len(operations)
    producers = producing_operations(operations, len(arguments))
    for i in range(len(operations) - 1, -1, -1):
        result[i] = phase = _phase(*facts[i], first_readers[i])
        for value in operations[i].operands:
            maker = producers[value]
            first_readers[maker] = min(first_readers[maker], phase)
    return np.array(result, dtype=np.int8)


def _facts(operations: Sequence[Operation], arguments: Sequence[Argument]) -> list[tuple[int | None, int]]:
    """Of each operation the phase that its location tells, and what its operands depend on."""
    depends = [_OF_KIND[argument.kind] for argument in arguments]
    facts: list[tuple[int | None, int]] = []
    marks: dict[str, int | None] = {}
    for op in operations:
        bits = 0
        for value in op.operands:
            bits |= depends[value]
        if op.path not in marks:
            marks[op.path] = _BACKWARD if is_backward(op.path) else _FORWARD if is_differentiated(op.path) else None
        marked = marks[op.path]
        if marked == _FORWARD and bits & _GRADIENT:
            marked = _BACKWARD
        if marked == _BACKWARD:
            bits |= _GRADIENT
        facts.append((marked, bits))
        depends += [bits] * len(op.results)
    return facts


def _phase(marked: int | None, depends: int, first_reader: int) -> int:
    """The phase of an operation, given what `_facts` says and the first phase that reads its results."""
    if depends & _GRADIENT:
        return _BACKWARD if _BACKWARD in (marked, first_reader) else _UPDATE
    if marked is not None:
        return min(marked, first_reader)
    if first_reader != _NEVER:
        return first_reader
    return _UPDATE if depends and not depends & _INPUT else _FORWARD


def execution_order(
    operations: Sequence[Operation], arguments: Sequence[Argument], outputs: Sequence[int]
) -> list[int]:
    """A topological order of the operations, the same on every run.

    It is the order in which they were traced, where that is known. HLO text comes in the post-order of a depth-first
    search from the results instead, which runs a decoder's first layer before the encoder and what only the backward
    pass reads after the loss; then `_untraced` says.

    What does not depend on both parameters and inputs (constants, masks, casts of kernels) runs right before its first
    reader, so that it crosses no cut that it need not cross.
    """
    producers = producing_operations(operations, len(arguments))
    both = _PARAMETER | _INPUT
    mixed = [depends & both == both for _, depends in _facts(operations, arguments)]
    if any(op.trace_order for op in operations):
        order_keys = [op.trace_order if fixed else () for op, fixed in zip(operations, mixed, strict=True)]
    else:
        order_keys = _untraced(operations, arguments, outputs, producers, mixed)
    return _by_key(operations, producers, before_readers(operations, producers, order_keys))


def renumbered(
    operations: Sequence[Operation], outputs: Sequence[int], order: Sequence[int], n_arguments: int
) -> tuple[list[Operation], list[int]]:
    """Operations and outputs with value ids that follow the order."""
    first = (n_arguments + offsets([len(op.results) for op in operations])).tolist()
    values = [*range(n_arguments), *(v for i in order for v in range(first[i], first[i + 1]))]
    new_id = {v: number for number, v in enumerate(values)}
    moved = [operations[i]._replace(operands=tuple(new_id[v] for v in operations[i].operands)) for i in order]
    return moved, [new_id[v] for v in outputs]


def _untraced(
    operations: Sequence[Operation],
    arguments: Sequence[Argument],
    outputs: Sequence[int],
    producers: Sequence[int],
    mixed: Sequence[bool],
) -> list[_Key]:
    """Keys that put the forward operations into the order that they were probably written in, and the rest behind it.

    The forward operations that results depend on come depth first, deepest operand first: an encoder before what reads
    its output, a layer's branch before the residual that skips it. What only the backward pass reads comes right after
    what it reads itself.
    """
    phase = phases(operations, arguments)
    forward = {i for i, fixed in enumerate(mixed) if fixed and phase[i] == Phase.FORWARD}
    inputs = {i: sorted({producers[value] for value in operations[i].operands} & forward) for i in sorted(forward)}
    depth: dict[int, int] = {}
    for i, before in inputs.items():
        depth[i] = 1 + max((depth[b] for b in before), default=0)

    def deepest_first(members: Iterable[int]) -> list[int]:
        return sorted(members, key=lambda i: (-depth[i], i))

    ends = {producers[value] for value in outputs} & forward
    ends |= set(deepest_first(forward)[:1])
    rank = {i: k for k, i in enumerate(post_order(lambda i: deepest_first(inputs[i]), deepest_first(ends)))}
    keys: list[_Key] = [(len(forward), i) if fixed else () for i, fixed in enumerate(mixed)]
    for i, before in inputs.items():
        keys[i] = (rank[i],) if i in rank else max(((*keys[b][:1], i) for b in before), default=(0, i))
    return keys


def before_readers(
    operations: Sequence[Operation], producers: Sequence[int], own_keys: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """When each operation would like to run: as its own key says, or, without one, just before its first reader."""
    last = (len(operations),)
    keys: list[_Key] = [last] * len(operations)
    reader: dict[int, _Key] = {}
    for i in range(len(operations) - 1, -1, -1):
        keys[i] = own_keys[i] or reader.get(i, last)
        for value in operations[i].operands:
            before = producers[value]
            reader[before] = min(keys[i], reader.get(before, last))
    return keys


def _by_key(operations: Sequence[Operation], producers: Sequence[int], keys: Sequence[_Key]) -> list[int]:
    """Kahn's algorithm; of the operations that could run next, the one with the smallest key, then the earliest."""
    readers: list[list[int]] = [[] for _ in operations]
    for i, op in enumerate(operations):
        for before in {producers[value] for value in op.operands} - {-1}:
            readers[before].append(i)
    return topological_order(readers, keys)
