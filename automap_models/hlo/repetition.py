"""A deep model from a shallow trace: the step of L blocks is that of a few, with one block repeated.

The trace has four instances of what repeats. The first and the last may differ from the others, for they meet the
embedding and the head. The two between them are alike but for what they read of their neighbours, and say by this what
any other instance reads:

    traced      first ─ 1 ─ 2 ─ last            2 reads of 1 what 1 reads of the first, and of itself what 1 reads of
                                                itself; 1 reads of 2 what 2 reads of the last (gradients)
    repeated    first ─ 1 ─ 2 ─ 3 ─ … ─ last    k reads of k − 1, of itself and of k + 1 the same

block_labels.py says which instance an operation belongs to.
Whatever does not follow the pattern ends the attempt: the step is then traced as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.hlo.block_labels import (
    LAST,
    NO_BLOCK,
    TRACED,
    BlockNames,
    BlockStack,
    labels_of_uses,
    operation_labels,
)
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.module import MlirModule, Operation, Tensor
from automap_models.hlo.order import before_readers
from automap_models.hlo.sharding_rules import RuledModule, ShardingRules, Use, flat_rules

_ALIKE = (1, 2)


def repeated(module: MlirModule, stacks: Sequence[BlockStack]) -> RuledModule | None:
    """The module of a step with all blocks of some stacks, from the trace with `traced` blocks of each.

    Its operations are those of the whole trace but for the numbers in their names: costs, layers, sharding rules,
    arguments in the order of the whole trace. It is no MLIR: XLA cannot run it.

    Args:
        module: the trace.
        stacks: in the order in which the forward pass runs them.

    Returns:
        None where the trace does not follow the pattern.
    """
    try:
        return _Repetition(module, stacks).module()
    except _UnlikeError:
        return None


class _UnlikeError(Exception):
    """The blocks of a trace are not alike."""


def _require(alike: bool) -> None:
    if not alike:
        raise _UnlikeError


_Key = int | tuple[int, int, int]
"""A value or an item of the repeated step: its number in the trace, or (stack, position in its instance, instance)."""


class _Copy(NamedTuple):
    """One of the items (operations, uses) of the repeated step.

    Attributes:
        item: the item of the trace; for one of an instance between the first and the last, that of instance 1.
        key: what identifies it.
    """

    item: int
    key: _Key

    @property
    def shift(self) -> int | None:
        """How many instances further on than in the trace; None for an item that is not repeated."""
        return self.key[2] - 1 if isinstance(self.key, tuple) else None


class _Values:
    """Values of a trace by the instance that they belong to, and what takes their place in further instances.

    Args:
        labels: [v] instance of each value.
        order: values in an order in which those of like instances come alike.
        last: for each stack, the last instance of the repeated step that is not the last of all.
    """

    def __init__(self, labels: Sequence[int], order: Iterable[int], last: Sequence[int]) -> None:
        self.labels, self._last = labels, last
        self._position: dict[int, int] = {}
        self.members: dict[int, list[int]] = defaultdict(list)
        for value in order:
            if value not in self._position:
                self._position[value] = len(self.members[labels[value]])
                self.members[labels[value]].append(value)

    def instances(self, s: int, *, descending: bool = False) -> range:
        """The instances of a stack in the repeated step that are neither its first nor its last."""
        return range(self._last[s], 0, -1) if descending else range(1, self._last[s] + 1)

    def key_in_instance(self, value: int, k: int) -> _Key:
        """What a value is in instance k; itself where it is not repeated."""
        s, place = divmod(self.labels[value], TRACED)
        return (s, self._position[value], k) if place in _ALIKE and self.labels[value] != NO_BLOCK else value

    def copied(self, first: int, second: int, s: int, k: int) -> _Key:
        """What an item of instance k reads where that of instance 1 reads `first` and that of instance 2 `second`."""
        label_1, label_2 = self.labels[first], self.labels[second]
        one, two = TRACED * s + 1, TRACED * s + 2
        if first == second:
            _require(label_1 not in (one, two))
            return first
        if label_1 == one and label_2 == two:
            _require(self._position[first] == self._position[second])
            return self.key_in_instance(first, k)
        if label_2 == one:
            return self.key_in_instance(second, k - 1) if k > 1 else first
        if label_1 == two:
            return self.key_in_instance(first, k + 1) if k < self._last[s] else second
        raise _UnlikeError

    def fixed(self, value: int, label: int) -> _Key:
        """What an item that is not repeated, of the instance `label`, reads for a value."""
        s, place = divmod(self.labels[value], TRACED)
        if self.labels[value] == NO_BLOCK or place not in _ALIKE:
            return value
        _require(label == TRACED * s + (0 if place == 1 else LAST))
        return self.key_in_instance(value, 1 if place == 1 else self._last[s])


class _Repetition:
    """The repetition of a traced module; see `repeated`."""

    def __init__(self, module: MlirModule, stacks: Sequence[BlockStack]) -> None:
        self.trace, self.stacks, self.names = module, stacks, BlockNames(stacks)
        self.graph: InstructionGraph = instruction_graph(module)
        self.last = [(stack.layers - stack.lead) // stack.period - 2 for stack in stacks]
        self.argument_labels = [self.names.label(argument.name) for argument in module.arguments]
        named = [self.names.label(op.path) for op in module.operations]
        self.labels = operation_labels(module.operations, self.graph, self.argument_labels, named)
        self.order = _update_last(module.operations, self.graph, self.labels)
        of_results = [label for label, op in zip(self.labels, module.operations, strict=True) for _ in op.results]
        first = self.graph.result_offsets.tolist()
        results = (v for i in self.order for v in range(first[i], first[i + 1]))
        of_values = [*self.argument_labels, *of_results]
        self.values = _Values(of_values, [*range(len(module.arguments)), *results], self.last)
        self.items = _Values(self.labels, self.order, self.last)
        self._require_alike()

    def module(self) -> RuledModule:
        """The repeated module."""
        trace, graph = self.trace, self.graph
        ids: dict[_Key, int] = {}
        arguments, argument_types = self._arguments(ids)
        copies = list(_sequence(self.order, self.labels, self.items))
        operations = self._operations(copies, ids)
        items = np.array([copy.item for copy in copies])
        return RuledModule(
            name=trace.name,
            arguments=arguments,
            argument_types=argument_types,
            operations=operations,
            outputs=tuple(self._outputs(ids)),
            meta=trace.meta,
            derived_rules=lambda: self._rules({copy.key: i for i, copy in enumerate(copies)}, ids, len(arguments)),
            layers=tuple(self.names.renamed(graph.layers[copy.item], copy.shift) for copy in copies),
            flop=graph.flop[items],
            bytes_accessed=graph.bytes_accessed[items],
            unknown={},
        )

    def _partner(self, item: int, items: _Values) -> int:
        """The item of instance 2 that is like one of instance 1."""
        label = items.labels[item]
        key = items.key_in_instance(item, 1)
        assert isinstance(key, tuple)
        return items.members[label + 1][key[1]]

    def _require_alike(self) -> None:
        """Raise _UnlikeError unless the operations of instance 2 are those of instance 1."""
        operations, graph = self.trace.operations, self.graph
        for s in range(len(self.stacks)):
            one, two = (self.items.members[TRACED * s + place] for place in _ALIKE)
            values = [self.values.members[TRACED * s + place] for place in _ALIKE]
            _require(len(one) == len(two) > 0 and len(values[0]) == len(values[1]))
            for i, j in zip(one, two, strict=True):
                first, second = operations[i], operations[j]
                _require(first.results == second.results and len(first.operands) == len(second.operands))
                _require(self.names.renamed(first.path, 1) == second.path and graph.opcodes[i] == graph.opcodes[j])
                _require((graph.flop[i], graph.bytes_accessed[i]) == (graph.flop[j], graph.bytes_accessed[j]))
                _require((first.target, first.rounds) == (second.target, second.rounds))

    def _arguments(self, ids: dict[_Key, int]) -> tuple[tuple[Argument, ...], tuple[Tensor, ...]]:
        """The arguments in the order of the whole trace: trees sort their keys as texts, block_10 before block_2."""
        trace, arguments, types = self.trace, list[Argument](), list[Tensor]()
        of_prefix: dict[tuple[str, int], list[int]] = defaultdict(list)
        for v, argument in enumerate(trace.arguments):
            of_prefix[self.names.prefix(argument.name) or (argument.name, NO_BLOCK)].append(v)
        for (prefix, s), members in of_prefix.items():
            for v, shift in self._blocks(prefix, s, members) if s != NO_BLOCK else [(members[0], None)]:
                ids[self.values.key_in_instance(v, 1 + (shift or 0))] = len(arguments)
                name = trace.arguments[v].name
                arguments.append(Argument(self.names.renamed(name, shift), trace.arguments[v].kind))
                types.append(trace.argument_types[v])
        return tuple(arguments), tuple(types)

    def _blocks(self, prefix: str, s: int, members: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """The arguments of a stack's blocks in the order of the whole trace, and their shifts."""
        of_block: dict[str, list[int]] = defaultdict(list)
        for v in members:
            of_block[self.trace.arguments[v].name.removeprefix(prefix).partition("/")[0]].append(v)
        for block in sorted(range(self.stacks[s].layers), key=str):
            source, shift = self.stacks[s].source(block)
            yield from ((v, shift) for v in of_block[str(source)])

    def _operations(self, copies: Sequence[_Copy], ids: dict[_Key, int]) -> tuple[Operation, ...]:
        """The operations; their results get the next ids."""
        operations = list[Operation]()
        first_result = self.graph.result_offsets.tolist()
        free_number = _free_number(op.name for op in self.trace.operations)
        for copy in copies:
            op, shift = self.trace.operations[copy.item], copy.shift
            try:
                operands = tuple(ids[key] for key in self._read(copy))
            except KeyError:
                raise _UnlikeError from None
            k = 1 + (shift or 0)
            for v in range(first_result[copy.item], first_result[copy.item + 1]):
                ids[self.values.key_in_instance(v, k)] = len(ids)
            name, path = op.name, self.names.renamed(op.path, shift)
            if shift:
                name, free_number = f"{_stem(name)}.{free_number}", free_number + 1
            opcode = self.graph.opcodes[copy.item]
            operations.append(Operation(name, opcode, path, op.trace_order, operands, op.results, op.target, op.rounds))
        return tuple(operations)

    def _read(self, copy: _Copy) -> list[_Key]:
        """What an operation of the repeated step reads."""
        operands = self.trace.operations[copy.item].operands
        if isinstance(copy.key, int):
            return [self.values.fixed(v, self.labels[copy.item]) for v in operands]
        s, _, k = copy.key
        alike = self.trace.operations[self._partner(copy.item, self.items)].operands
        return [self.values.copied(v, w, s, k) for v, w in zip(operands, alike, strict=True)]

    def _outputs(self, ids: dict[_Key, int]) -> Iterator[int]:
        """The values that the step returns; those of a block all at the place of instance 1."""
        for v in self.trace.outputs:
            s, place = divmod(self.values.labels[v], TRACED)
            if self.values.labels[v] == NO_BLOCK or place not in _ALIKE:
                yield ids[v]
            elif place == 1:
                yield from (ids[self.values.key_in_instance(v, k)] for k in range(1, self.last[s] + 1))

    def _rules(self, operation: dict[_Key, int], ids: dict[_Key, int], n_arguments: int) -> ShardingRules:
        """The sharding rules: uses are repeated as operations are; values but the arguments have other numbers.

        Args:
            operation: number of each operation of the repeated step.
            ids: of its values.
        """
        rules = rules_of(self.trace)
        rank = {i: position for position, i in enumerate(self.order)}
        uses = sorted((*rules.uses, *rules.unruled), key=lambda use: rank[use.operation])
        use_labels, value_labels = labels_of_uses(uses, self.labels, self.argument_labels, len(rules.tensors))
        items = _Values(use_labels, range(len(uses)), self.last)
        order = [*range(len(self.argument_labels)), *_own_first(uses, use_labels, value_labels)]
        values = _Values(value_labels, order, self.last)
        numbers: dict[_Key, int] = {values.key_in_instance(v, k): ids[key] for v, k, key in self._argument_keys()}
        tensors: list[Tensor] = [Tensor((), "token")] * n_arguments
        for key, number in numbers.items():
            tensors[number] = rules.tensors[_of_key(key, values)]
        copied: list[Use] = []
        for i, use in enumerate(uses):
            for read, where in self._use_copies(i, uses, items, values):
                keys = list(read)
                for key in keys:
                    if key not in numbers:
                        numbers[key] = len(tensors)
                        tensors.append(rules.tensors[_of_key(key, values)])
                values_of_use = tuple(numbers[key] for key in keys)
                copied.append(Use(operation[where], use.opcode, values_of_use, use.rule, use.results))
        return flat_rules(tensors, sorted(copied, key=lambda use: use.operation))

    def _argument_keys(self) -> Iterator[tuple[int, int, _Key]]:
        """The arguments of the trace, the instances that they stand for and their keys."""
        for v, label in enumerate(self.argument_labels):
            s, place = divmod(label, TRACED)
            if label != NO_BLOCK and place in _ALIKE:
                if place == 1:
                    yield from ((v, k, self.values.key_in_instance(v, k)) for k in range(1, self.last[s] + 1))
            else:
                yield v, 1, v

    def _use_copies(
        self, i: int, uses: Sequence[Use], items: _Values, values: _Values
    ) -> Iterator[tuple[Iterator[_Key], _Key]]:
        """What each copy of a use reads and makes, and the operation that it belongs to."""
        use, label = uses[i], items.labels[i]
        s, place = divmod(label, TRACED)
        if label == NO_BLOCK or place not in _ALIKE:
            yield (values.fixed(v, label) for v in use.values), self.items.key_in_instance(use.operation, 1)
        elif place == 1:
            alike = uses[self._partner_of_use(i, items)]
            _require(alike.rule == use.rule and alike.opcode == use.opcode and len(alike.values) == len(use.values))
            for k in range(1, self.last[s] + 1):
                pairs = zip(use.values, alike.values, strict=True)
                yield (values.copied(v, w, s, k) for v, w in pairs), self.items.key_in_instance(use.operation, k)

    def _partner_of_use(self, i: int, items: _Values) -> int:
        label = items.labels[i]
        _require(len(items.members[label]) == len(items.members[label + 1]))
        return self._partner(i, items)


def _own_first(uses: Sequence[Use], use_labels: Sequence[int], value_labels: Sequence[int]) -> Iterator[int]:
    """The values of uses: those of each instance as its own uses meet them, then the others."""
    for use, label in zip(uses, use_labels, strict=True):
        yield from (v for v in use.values if value_labels[v] == label)
    for use in uses:
        yield from use.values


def _of_key(key: _Key, values: _Values) -> int:
    """A value of the trace that is of the type of the one that the key identifies."""
    return key if isinstance(key, int) else values.members[TRACED * key[0] + 1][key[1]]


def _update_last(operations: Sequence[Operation], graph: InstructionGraph, labels: Sequence[int]) -> list[int]:
    """The operations in execution order, but the update behind everything else and instance by instance.

    The updates of parameters are independent of each other; those of one instance come in the order of their trace.
    """
    update = (graph.phases == Phase.UPDATE).tolist()
    keys = before_readers(operations, graph.producers.tolist(), [op.trace_order for op in operations])
    in_order = range(len(operations))
    return sorted(in_order, key=lambda i: (True, labels[i], keys[i], i) if update[i] else (False, i))


def _sequence(order: Sequence[int], labels: Sequence[int], items: _Values) -> Iterator[_Copy]:
    """The operations of the repeated step in execution order.

    Where a run of operations of instance 1 is followed by one of instance 2, the further instances come behind it;
    where it is the other way round, as in the backward pass, they come before it. What belongs to no block and stands
    in the first of the two runs comes once.

    Args:
        order: of the operations of the trace.
    """
    position = 0
    while position < len(order):
        i, label = order[position], labels[order[position]]
        place = label % TRACED
        if label == NO_BLOCK or place not in _ALIKE:
            yield _Copy(i, i)
            position += 1
            continue
        run = _run(order[position:], labels, (label, NO_BLOCK))
        labelled = [p for p in run if labels[p] != NO_BLOCK]
        other = _run(order[position + len(run) :], labels, (label - place + 3 - place,))
        _require([items.key_in_instance(p, 1) for p in labelled] == [items.key_in_instance(p, 1) for p in other])
        partner = dict(zip(labelled, labelled if place == 1 else other, strict=True))
        for count, k in enumerate(items.instances(label // TRACED, descending=place == 2)):
            for p in run if count == 0 else labelled:
                yield _Copy(partner[p], items.key_in_instance(p, k)) if p in partner else _Copy(p, p)
        position += len(run) + len(other)


def _run(items: Sequence[int], labels: Sequence[int], among: Sequence[int]) -> list[int]:
    """The first of the items that have these labels, up to the last of them that belongs to an instance."""
    run = list(takewhile(lambda p: labels[p] in among, items))
    while run and labels[run[-1]] == NO_BLOCK:
        run.pop()
    return run


def _stem(name: str) -> str:
    stem, _, number = name.rpartition(".")
    return stem if number.isdigit() else name


def _free_number(names: Iterable[str]) -> int:
    """More than any number behind a name."""
    numbers = (name.rpartition(".")[2] for name in names)
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=0)
