"""A flat module's operations as records, each read once, and some of them in a module of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from automap_models.errors import BadInput
from automap_models.hlo.flat_module import bytecode, entry_block, name_of, nested_operations, opcode_of
from automap_models.hlo.hlo_text import dynamic_shapes, read_marks
from automap_models.hlo.module import MlirModule, Operation, Tensor
from automap_models.hlo.stablehlo_values import LOOP, is_constant, read_from_outside, replace_operands, rounds


class UniqueNames:
    """Names of operations, each given once: an inlined function brings its names once for every call."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._behind: dict[tuple[str, int], int] = {}
        """Stem and number of a name → a larger number of the stem; all between them are taken."""

    def unique(self, name: str) -> str:
        """The name, or with the next free number."""
        stem, _, number = name.rpartition(".")
        if not number.isdigit():
            stem, number = name, "0"
        begin = count = int(number)
        while name in self._taken:
            count = self._behind.get((stem, count), count + 1)
            name = f"{stem}.{count}"
        self._taken.add(name)
        self._behind[stem, begin] = count + 1
        return name


class EntryReader:
    """What the entry block holds, as records in its own order.

    Attributes:
        argument_names: as the arguments' locations give them; "" where they give none.
        argument_types: their types.
        operations: every operation but the return.
        signatures: a number for each operation, the same for those that do the same to the same types.
        outputs: value ids that the block returns.
        handles: the operations themselves.
    """

    def __init__(self, block: Any, source: str) -> None:
        self._source = source
        self._types: dict[Any, Tensor] = {}
        self._ids: dict[Any, int] = {}
        self._numbers: dict[Any, int] = {}
        self._names = UniqueNames()
        self.argument_names = [read_marks(name_of(argument))[2] for argument in block.arguments]
        self.argument_types = [self._define(argument) for argument in block.arguments]
        self.operations: list[Operation] = []
        self.signatures: list[int] = []
        self.handles: list[Any] = []
        *handles, self._return = [op.operation for op in block.operations]
        for op in handles:
            self._read(op)
        self.outputs = [self._ids[value] for value in self._return.operands]

    def move(self, order: Sequence[int]) -> None:
        """Put the operations into an order, in place."""
        for i in order:
            self.handles[i].move_before(self._return)

    def _read(self, op: Any) -> None:
        operands = list(op.operands)
        nested = bool(len(op.regions))
        if nested:
            operands += _captured(op, self._ids)
        name, trace_order, path = read_marks(name_of(op))
        key = _signature(op) if not nested else (_signature(op), _region_key(op), _starts(op))
        self.signatures.append(self._numbers.setdefault(key, len(self._numbers)))
        self.handles.append(op)
        self.operations.append(
            Operation(
                name=self._names.unique(name or opcode_of(op)),
                opcode=opcode_of(op),
                path=path,
                trace_order=trace_order,
                operands=tuple(self._ids[value] for value in operands),
                results=tuple(self._define(result) for result in op.results),
                target=target.value if (target := op.attributes.get("call_target_name")) else "",
                rounds=rounds(op),
            )
        )

    def _define(self, value: Any) -> Tensor:
        """Give a value its number and tell its type."""
        self._ids[value] = len(self._ids)
        kind = value.type
        if kind not in self._types:
            self._types[kind] = tensor_of(kind, self._source)
        return self._types[kind]


def isolated(op: Any) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A module whose entry is this operation alone, and the types of its arguments and of its results.

    Loops keep the constants that they start from.
    """
    read = read_from_outside(op)
    constants = [value for value in read if op.name == LOOP and is_constant(value)]
    outer = [value for value in read if value not in constants]
    operations = [*(value.owner.operation for value in constants), op]
    module = _extracted(operations, outer, [value.type for value in outer], list(op.results))
    arguments, results = (tuple(tensor_of(value.type) for value in values) for values in (outer, op.results))
    return module, arguments, results


def extracted(
    module: MlirModule,
    operations: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    shapes: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> bytes:
    """A module of some operations of another, which takes some of its values and returns others, as MLIR bytecode.

    Args:
        operations: positions.
        inputs, outputs: value ids.
        shapes: of inputs that have other ones than in the module.
    """
    with module.mlir.context, ir.Location.unknown():
        values = [*entry_block(module.mlir).arguments, *(result for op in module.handles for result in op.results)]
        kinds = [values[v].type for v in inputs]
        for i, v in enumerate(inputs):
            if v in shapes:
                kinds[i] = ir.RankedTensorType.get(shapes[v], kinds[i].element_type)
        handles, given = [module.handles[i] for i in operations], [values[v] for v in inputs]
        return bytecode(_extracted(handles, given, kinds, [values[v] for v in outputs]))


def _extracted(operations: Sequence[Any], inputs: Sequence[Any], kinds: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """A module whose entry takes inputs of these types, runs copies of operations and returns the outputs."""
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        entry: Any = func.FuncOp("main", (kinds, [value.type for value in outputs]))
        with ir.InsertionPoint(entry.add_entry_block()):
            inner = dict(zip(inputs, entry.arguments, strict=True))
            for op in operations:
                copy = op.clone()
                replace_operands(copy, inner)
                inner.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([inner[value] for value in outputs])
    return module


def tensor_of(kind: Any, source: str = "") -> Tensor:
    """The type of a value; `source` is what messages call the module."""
    if isinstance(kind, ir.RankedTensorType):
        if not kind.has_static_shape:
            raise dynamic_shapes(source)
        return Tensor(tuple(kind.shape), str(kind.element_type))
    if str(kind) == "!stablehlo.token":
        return Tensor((), "token")
    raise BadInput(f"holds a value of type {kind}", where=source, do="give every tensor as a value of its own")


def _signature(op: Any) -> tuple[Any, ...]:
    """Equal for operations that do the same to the same types; a constant's value is of no interest."""
    results = tuple(result.type for result in op.results)
    if op.name == "stablehlo.constant":
        return (op.name, results)
    attributes = tuple((name, op.attributes[name]) for name in sorted(op.attributes))
    operands = list(op.operands)
    kinds = tuple(operand.type for operand in operands)
    if len(operands) > 1 and len(set(operands)) < len(operands):  # x·x is not x·y
        kinds += tuple(operands.index(operand) for operand in operands)
    return (op.name, attributes, kinds, results)


def _region_key(op: Any) -> tuple[Any, ...]:
    """What the regions of an operation do, with their values numbered as they come."""
    ids: dict[Any, int] = {}
    key: list[Any] = []
    for inner in nested_operations(op, ids):
        key.append((_signature(inner), tuple(ids.setdefault(value, len(ids)) for value in inner.operands)))
        if inner.name == "stablehlo.constant":
            key.append(inner.attributes["value"])
        for result in inner.results:
            ids[result] = len(ids)
    return tuple(key)


def _captured(op: Any, values: dict[Any, int]) -> list[Any]:
    """Values of the enclosing block that the regions of an operation read, each once."""
    return list(dict.fromkeys(value for inner in nested_operations(op) for value in inner.operands if value in values))


def _starts(op: Any) -> tuple[Any, ...]:
    """The constants that a loop starts from: they decide how often it runs."""
    if op.name != LOOP:
        return ()
    return tuple(value.owner.attributes["value"] if is_constant(value) else None for value in op.operands)
