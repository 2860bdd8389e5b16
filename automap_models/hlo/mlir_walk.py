"""Walks through a flat module: its operations as records, how often its loops run, and parts of it on their own.

- `EntryReader` reads the entry block, each operation once.
- `rounds` counts the rounds of a loop whose form tells them.
- `isolated` takes a single operation out of the module, `part` the operations that some of its values need.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from automap_models.errors import BadInput
from automap_models.hlo.flat_module import nested_operations
from automap_models.hlo.hlo_text import dynamic_shapes, read_marks
from automap_models.hlo.module import UNKNOWN, MlirModule, OneOp, Operation, Tensor

_LOOP = "stablehlo.while"


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
        self.argument_names = [_argument_name(argument) for argument in block.arguments]
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
        name, trace_order, path = read_marks(str(getattr(op.location, "name_str", "")))
        key = _signature(op) if not nested else (_signature(op), _region_key(op), _starts(op))
        self.signatures.append(self._numbers.setdefault(key, len(self._numbers)))
        self.handles.append(op)
        self.operations.append(
            Operation(
                name=self._names.unique(name or op.name.rpartition(".")[2]),
                opcode=op.name.rpartition(".")[2],
                path=path,
                trace_order=trace_order,
                operands=tuple(self._ids[value] for value in operands),
                results=tuple(self._define(result) for result in op.results),
                target=_target(op),
                rounds=rounds(op),
            )
        )

    def _define(self, value: Any) -> Tensor:
        """Give a value its number and tell its type."""
        self._ids[value] = len(self._ids)
        kind = value.type
        if kind not in self._types:
            self._types[kind] = _tensor(kind, self._source)
        return self._types[kind]


def isolated(op: Any) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A module whose entry is this operation alone, and the types of its arguments and of its results."""
    outer = [value for value in read_from_outside(op) if not (op.name == _LOOP and _is_constant(value))]
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        entry: Any = func.FuncOp("main", ([value.type for value in outer], [result.type for result in op.results]))
        with ir.InsertionPoint(entry.add_entry_block()):
            inner = dict(zip(outer, entry.arguments, strict=True))
            for value in read_from_outside(op):
                if value not in inner:
                    inner[value] = value.owner.operation.clone().results[0]
            copy = op.clone()
            replace_operands(copy, inner)
            func.ReturnOp(list(copy.results))
    read, returned = ([_tensor(value.type, "") for value in values] for values in (outer, op.results))
    return module, tuple(read), tuple(returned)


def is_in_one_piece(op: Any) -> bool:
    """Whether what a `stablehlo.slice` takes lies in one piece of memory, in the order of the dimensions."""
    sizes = zip(op.results[0].type.shape, op.operands[0].type.shape, strict=True)
    taken = list(sizes)
    last = max((dim for dim, (size, whole) in enumerate(taken) if size != whole), default=0)
    return all(size == 1 for size, _ in taken[:last]) and set(ir.DenseI64ArrayAttr(op.attributes["strides"])) <= {1}


_OF_BITS = """
add and broadcast_in_dim compare concatenate constant convert dynamic_slice dynamic_update_slice iota not or reshape
return select shift_left shift_right_logical slice subtract xor
"""


def makes_random_bits(op: Any) -> bool:
    """Whether a loop runs the rounds of a generator such as threefry: shifts and exclusive ors of unsigned integers."""
    if op.name != _LOOP or rounds(op) == UNKNOWN:
        return False
    inner = list(nested_operations(op))
    opcodes = {nested.name.rpartition(".")[2] for nested in inner}
    integers = all("f" not in str(result.type.element_type) for nested in inner for result in nested.results)
    return integers and opcodes <= set(_OF_BITS.split()) and "xor" in opcodes


def inner_loops(op: Any) -> Iterator[Any]:
    """The loops in the regions of an operation that are in no further loop."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == _LOOP:
                    yield inner.operation
                else:
                    yield from inner_loops(inner.operation)


def _argument_name(argument: Any) -> str:
    return read_marks(str(getattr(argument.location, "name_str", "")))[2]


def _tensor(kind: Any, source: str) -> Tensor:
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


def _captured(op: Any, known: dict[Any, int]) -> list[Any]:
    """Values of the enclosing block that the regions of an operation read, each once."""
    return list(dict.fromkeys(value for inner in nested_operations(op) for value in inner.operands if value in known))


def read_from_outside(op: Any) -> list[Any]:
    """Everything from outside that an operation reads, each value once."""
    if not len(op.regions):
        return list(dict.fromkeys(op.operands))
    inside = {result for inner in nested_operations(op) for result in inner.results}
    for region_op in [op, *nested_operations(op)]:
        inside |= {argument for region in region_op.regions for block in region.blocks for argument in block.arguments}
    read = [*op.operands, *(value for inner in nested_operations(op) for value in inner.operands)]
    return list(dict.fromkeys(value for value in read if value not in inside))


def replace_operands(op: Any, values: dict[Any, Any]) -> None:
    """Let an operation, and those in its regions, read other values, in place."""
    for reader in [op, *nested_operations(op)]:
        for i, value in enumerate(list(reader.operands)):
            if value in values:
                reader.operands[i] = values[value]


def _is_constant(value: Any) -> bool:
    owner = value.owner
    return isinstance(owner, ir.Operation | ir.OpView) and owner.operation.name == "stablehlo.constant"


def _starts(op: Any) -> tuple[Any, ...]:
    """The constants that a loop starts from: they decide how often it runs."""
    if op.name != _LOOP:
        return ()
    return tuple(value.owner.attributes["value"] if _is_constant(value) else None for value in op.operands)


def _target(op: Any) -> str:
    """What a custom call calls."""
    return str(ir.StringAttr(op.attributes["call_target_name"]).value) if op.name == "stablehlo.custom_call" else ""


def rounds(op: Any) -> int:
    """Rounds of a `stablehlo.while` that counts from one constant up to another, as `lax.scan` and `fori_loop` do.

    Returns:
        1 for every other operation, UNKNOWN for a loop of another form.
    """
    if op.name != _LOOP:
        return 1
    counter = loop_counter(op)
    return UNKNOWN if counter is None else counter.rounds


class LoopCounter(NamedTuple):
    """The counter of a loop: its position among the loop's operands, its first value, what a round adds, the rounds."""

    position: int
    start: int
    step: int
    rounds: int


def loop_counter(loop: Any) -> LoopCounter | None:
    """The counter of a `stablehlo.while`; None for a loop of another form than `rounds` knows, or without a round."""
    condition, body = (region.blocks[0] for region in loop.regions)
    test = _producer(_returned(condition)[0])
    if test is None or test.name != "stablehlo.compare" or "LT" not in str(test.attributes["comparison_direction"]):
        return None
    counter, limit = test.operands
    position = _position(counter, condition)
    if position is None:
        return None
    start = constant_integer(loop.operands[position])
    stop = constant_integer(_from_outside(limit, condition, loop))
    step = _increment(_returned(body)[position], body.arguments[position])
    if start is None or stop is None or not step or step < 0 or stop <= start:
        return None
    return LoopCounter(position, start, step, -(-(stop - start) // step))


def _returned(block: Any) -> list[Any]:
    *_, last = block.operations
    return list(last.operation.operands)


def _producer(value: Any) -> Any | None:
    """The operation that makes a value, or None for a block's argument."""
    operation = getattr(value.owner, "operation", None)
    return operation if operation is not None and hasattr(operation, "operands") else None


def _position(value: Any, block: Any) -> int | None:
    return next((i for i, argument in enumerate(block.arguments) if argument == value), None)


def _from_outside(value: Any, block: Any, loop: Any) -> Any:
    """What a loop's argument starts as, if it stays what it is; else the value itself."""
    position = _position(value, block)
    if position is None:
        return value
    body = loop.regions[1].blocks[0]
    return loop.operands[position] if _returned(body)[position] == body.arguments[position] else value


def _increment(after: Any, before: Any) -> int | None:
    """The constant that is added to a counter in every round."""
    add = _producer(after)
    if add is None or add.name != "stablehlo.add":
        return None
    first, second = add.operands
    return constant_integer(second) if first == before else constant_integer(first) if second == before else None


def constant_integer(value: Any) -> int | None:
    """The number in a constant of one element."""
    constant = _producer(value)
    if constant is None or constant.name != "stablehlo.constant":
        return None
    elements = constant.attributes["value"]
    try:
        return int(elements[0]) if len(elements) == 1 else None
    except (TypeError, ValueError):
        return None


_OF_THE_WHOLE = ("arg_attrs", "res_attrs", "mhlo.")
"""Attributes that describe every argument and result, such as layouts: XLA crashes on those of another signature."""


def part(module: MlirModule, outputs: Sequence[int]) -> OneOp:
    """A module that returns these values only, without the arguments and operations that they do not need.

    Args:
        module: stays as it is.
        outputs: value ids.
    """
    with module.mlir.context:
        mlir, kept = _cut_down(module.mlir, outputs)
        written = io.BytesIO()
        mlir.write_bytecode(written)
    results = [kind for operation in module.operations for kind in operation.results]
    kinds = [*module.argument_types, *results]
    return OneOp(
        opcode="step",
        instructions=np.arange(len(module.operations)),
        operands=tuple(kinds[v] for v in kept),
        results=tuple(kinds[v] for v in outputs),
        bytecode=written.getvalue(),
    )


def _cut_down(module: Any, outputs: Sequence[int]) -> tuple[Any, list[int]]:
    """A copy of a flat `mlir.ir.Module`, cut down, and the positions of the arguments that it still takes."""
    copy = module.operation.clone()
    (entry,) = copy.regions[0].blocks[0].operations
    block = entry.regions[0].blocks[0]
    *operations, returned = [op.operation for op in block.operations]
    values = [*block.arguments, *(result for op in operations for result in op.results)]
    returned_values = [values[v] for v in outputs]
    with ir.InsertionPoint(returned), ir.Location.unknown():
        func.ReturnOp(returned_values)
    returned.erase()
    _drop_unused(operations)
    kept = [i for i, argument in enumerate(block.arguments) if any(True for _ in argument.uses)]
    for i in reversed(range(len(block.arguments))):
        if i not in kept:
            block.erase_argument(i)
    types = [argument.type for argument in block.arguments], [value.type for value in returned_values]
    entry.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    for op in (copy, entry.operation):
        for name in [name for name in op.attributes if name.startswith(_OF_THE_WHOLE)]:
            del op.attributes[name]
    return copy, kept


def _drop_unused(operations: Sequence[Any]) -> None:
    for op in reversed(operations):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()
