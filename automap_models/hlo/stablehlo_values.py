"""What StableHLO operations are and make, one at a time: numbers, slices, shapes, and how often loops run."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from automap_models.hlo.flat_module import nested_operations, opcode_of
from automap_models.hlo.module import UNKNOWN

LOOP = "stablehlo.while"
_IMPURE = frozenset({"custom_call", "infeed", "outfeed", "recv", "rng", "send"})
_INTEGERS: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "negate": operator.neg,
    **dict.fromkeys(("convert", "reshape", "broadcast_in_dim"), int),
    "select": lambda p, a, b: a if p else b,
    "clamp": lambda low, a, high: min(max(a, low), high),
}


def shape_of(value: Any) -> tuple[int, ...]:
    """The dimensions of a value."""
    return tuple(value.type.shape)


def integers_of(op: Any, attribute: str) -> tuple[int, ...]:
    """An attribute that is a list of whole numbers."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[attribute]))


def maker_of(value: Any) -> Any | None:
    """The operation that makes a value; None for an argument of a block."""
    operation = getattr(value.owner, "operation", None)
    return operation if operation is not None and hasattr(operation, "operands") else None


def is_argument(value: Any) -> bool:
    """Whether a value is an argument of its block, which no operation makes."""
    return maker_of(value) is None


def is_constant(value: Any) -> bool:
    """Whether a constant makes a value."""
    maker = maker_of(value)
    return maker is not None and maker.name == "stablehlo.constant"


def is_zero(value: Any) -> bool:
    """Whether a value is made of zeros and nothing else."""
    maker = maker_of(value)
    if maker is not None and opcode_of(maker) in {"broadcast_in_dim", "reshape", "convert"}:
        return is_zero(maker.operands[0])
    if maker is None or not is_constant(value):
        return False
    elements = ir.DenseElementsAttr(maker.attributes["value"])
    return bool(elements.is_splat and str(elements.get_splat_value()).split(" ")[0] in {"0", "0.000000e+00", "false"})


def is_index(kind: Any) -> bool:
    """Whether a type is one integer or truth value, of a width that never wraps in a loop's counter."""
    one = isinstance(kind, ir.RankedTensorType) and math.prod(kind.shape) == 1
    return one and str(kind.element_type) in {"i1", "i32", "i64"}


def are_numbers(terms: Sequence[Any]) -> bool:
    """Whether all are numbers by now."""
    return all(isinstance(term, int) for term in terms)


def number_constant(value: int, kind: Any) -> Any:
    """A constant of one element."""
    attribute = ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, value))
    return stablehlo.ConstantOp(attribute).result


def folded(op: Any, terms: Sequence[Any]) -> int | None:
    """The number that an operation makes of numbers; None where it makes none, or not of numbers."""
    opcode = opcode_of(op)
    if opcode != "constant" and not (terms and are_numbers(terms)):  # most operations end here
        return None
    if len(op.results) != 1 or not is_index(op.results[0].type):
        return None
    if opcode == "constant":
        return constant_integer(op.results[0])
    if opcode == "compare":
        direction = str(op.attributes["comparison_direction"])  # `#stablehlo<comparison_direction LT>`
        return int(getattr(operator, direction.rpartition(" ")[2].rstrip(">").lower())(*terms))
    function = _INTEGERS.get(opcode)
    return None if function is None else int(function(*terms))


def clamped(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Where a slice starts: StableHLO moves it into the array."""
    return tuple(min(max(start, 0), most - size) for start, size, most in zip(starts, sizes, shape, strict=True))


def divided(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dimensions of which a slice is not all."""
    return [dim for dim, (size, most) in enumerate(zip(sizes, shape, strict=True)) if size != most]


def reshaped_slice(
    starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int], other: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where a slice of an array lies in the same elements in another shape: starts and sizes; None if in no one slice.

    Both are contiguous: ones, then one dimension cut, then whole ones.
    """
    cut = divided(sizes, shape)
    if cut and any(size != 1 for size in sizes[: cut[-1]]):
        return None
    count, offset, step = math.prod(sizes), 0, 1
    for start, most in zip(reversed(starts), reversed(shape), strict=True):
        offset, step = offset + start * step, step * most
    box, remaining, stride = list[tuple[int, int]](), count, math.prod(other)
    for most in other:
        stride //= most
        start, offset = divmod(offset, stride)
        size = max(remaining // stride, 1)
        if (size > 1 and remaining % stride) or start + size > most:
            return None
        remaining = remaining if size == 1 and remaining < stride else remaining // size
        box.append((start, size))
    return tuple(start for start, _ in box), tuple(size for _, size in box)


def operand_of_slice(joined: Any, starts: Sequence[int], sizes: Sequence[int]) -> tuple[Any, tuple[int, ...]] | None:
    """The operand of a concatenation that a slice of its result is in, and where it starts there; None if in no one."""
    dim, start = ir.IntegerAttr(joined.attributes["dimension"]).value, 0
    for value in joined.operands:
        if start <= starts[dim] and starts[dim] + sizes[dim] <= start + shape_of(value)[dim]:
            return value, (*starts[:dim], starts[dim] - start, *starts[dim + 1 :])
        start += shape_of(value)[dim]
    return None


def before_reshape(value: Any, kind: Any) -> Any | None:
    """What a value is a reshape of, if that is of this type: slices lose the dimension that stacking gave them."""
    maker = maker_of(value)
    before = maker.operands[0] if maker is not None and opcode_of(maker) == "reshape" else None
    return before if before is not None and before.type == kind else None


def slices_twice(operations: Sequence[Any]) -> bool:
    """Whether the same slice of an argument is taken twice."""
    slices = [op for op in operations if opcode_of(op) == "slice" and is_argument(op.operands[0])]
    keys = [(op.operands[0], integers_of(op, "start_indices"), shape_of(op.results[0])) for op in slices]
    return len(set(keys)) < len(keys)


def drop_unused(block: Any) -> None:
    """Erase what nothing reads any more."""
    *operations, _ = [op.operation for op in block.operations]
    for op in reversed(operations):
        if opcode_of(op) not in _IMPURE and not any(True for result in op.results for _ in result.uses):
            op.erase()


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


def is_in_one_piece(op: Any) -> bool:
    """Whether what a `stablehlo.slice` takes lies in one piece of memory, in the order of the dimensions."""
    sizes = shape_of(op.results[0])
    last = max(divided(sizes, shape_of(op.operands[0])), default=0)
    return set(sizes[:last]) <= {1} and set(integers_of(op, "strides")) <= {1}


_OF_BITS = """
add and broadcast_in_dim compare concatenate constant convert dynamic_slice dynamic_update_slice iota not or reshape
return select shift_left shift_right_logical slice subtract xor
"""


def makes_random_bits(op: Any) -> bool:
    """Whether a loop runs the rounds of a generator such as threefry: shifts and exclusive ors of unsigned integers."""
    if op.name != LOOP or rounds(op) == UNKNOWN:
        return False
    inner = list(nested_operations(op))
    opcodes = {opcode_of(nested) for nested in inner}
    integers = all("f" not in str(result.type.element_type) for nested in inner for result in nested.results)
    return integers and opcodes <= set(_OF_BITS.split()) and "xor" in opcodes


def inner_loops(op: Any) -> Iterator[Any]:
    """The loops in the regions of an operation that are in no further loop."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == LOOP:
                    yield inner.operation
                else:
                    yield from inner_loops(inner.operation)


def rounds(op: Any) -> int:
    """Rounds of a `stablehlo.while` that counts from one constant up to another, as `lax.scan` and `fori_loop` do.

    Returns:
        1 for every other operation, UNKNOWN for a loop of another form.
    """
    if op.name != LOOP:
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
    test = maker_of(_returned(condition)[0])
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
    add = maker_of(after)
    if add is None or add.name != "stablehlo.add":
        return None
    first, second = add.operands
    return constant_integer(second) if first == before else constant_integer(first) if second == before else None


def constant_integer(value: Any) -> int | None:
    """The number in a constant of one element."""
    if not is_constant(value):
        return None
    elements = value.owner.attributes["value"]
    try:
        return int(elements[0]) if len(elements) == 1 else None
    except (TypeError, ValueError):
        return None
