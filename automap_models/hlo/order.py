"""The execution order of a module's operations."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from automap_models.core.instruction_graph import Argument
from automap_models.hlo.operation import Operation, producing_operations


def execution_order(operations: Sequence[Operation], arguments: Sequence[Argument]) -> list[int]:
    """A topological order of the operations, deterministic: the order of the trace where that is known.

    XLA's text comes in the post-order of a depth-first search from the results, which would run a decoder's first
    layer before the encoder. What does not depend on both parameters and inputs (constants, masks, casts of kernels)
    runs right before its first reader, so that it crosses no cut that it need not cross.
    """
    producers = producing_operations(operations, len(arguments))
    keys = _keys(operations, arguments, producers)
    return _by_key(operations, producers, keys)


def renumbered(
    operations: Sequence[Operation], outputs: Sequence[int], order: Sequence[int], n_arguments: int
) -> tuple[list[Operation], list[int]]:
    """Operations and outputs with value ids that follow the order."""
    first, count = [], n_arguments
    for op in operations:
        first.append(count)
        count += len(op.results)
    new_id = list(range(count))
    free = n_arguments
    for i in order:
        for k in range(len(operations[i].results)):
            new_id[first[i] + k] = free
            free += 1
    moved = [operations[i]._replace(operands=tuple(new_id[v] for v in operations[i].operands)) for i in order]
    return moved, [new_id[v] for v in outputs]


_Key = tuple[tuple[int, ...], int]


def _keys(operations: Sequence[Operation], arguments: Sequence[Argument], producers: Sequence[int]) -> list[_Key]:
    """When each operation would like to run: its place in the trace, or just before its first reader."""
    PARAMETER, INPUT = 1, 2
    bits = {"parameter": PARAMETER, "input": INPUT, "state": 0}
    depends = [bits[argument.kind] for argument in arguments]
    mixed: list[bool] = []
    traced = any(op.trace_order for op in operations)
    for op in operations:
        found = 0
        for value in op.operands:
            found |= depends[value]
        depends += [found] * len(op.results)
        mixed.append(found == PARAMETER | INPUT)
    keys: list[_Key] = [(op.trace_order, i) if traced else ((), i) for i, op in enumerate(operations)]
    earliest: dict[int, _Key] = {}
    for i in range(len(operations) - 1, -1, -1):
        op = operations[i]
        if i in earliest and (not mixed[i] or (traced and not op.trace_order)):
            keys[i] = earliest[i]
        for value in op.operands:
            before = producers[value]
            if before >= 0 and (before not in earliest or keys[i] < earliest[before]):
                earliest[before] = keys[i]
    return keys


def _by_key(operations: Sequence[Operation], producers: Sequence[int], keys: Sequence[_Key]) -> list[int]:
    """Kahn's algorithm; of the operations that could run next, the one with the smallest key."""
    readers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for i, op in enumerate(operations):
        for before in {producers[value] for value in op.operands}:
            if before >= 0:
                readers[before].append(i)
                missing[i] += 1
    ready = [(keys[i], i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)[1]
        order.append(i)
        for after in readers[i]:
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(ready, (keys[after], after))
    return order
