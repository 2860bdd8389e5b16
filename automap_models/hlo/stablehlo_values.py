"""What StableHLO operations are and make, one at a time: numbers, slices, shapes; as unrolled loops need it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from automap_models.hlo.mlir_walk import constant_integer

_IMPURE = frozenset({"custom_call", "infeed", "outfeed", "recv", "rng", "send"})
_INTEGERS: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "negate": lambda a: -a,
    "convert": lambda a: a,
    "reshape": lambda a: a,
    "broadcast_in_dim": lambda a: a,
    "select": lambda p, a, b: a if p else b,
    "clamp": lambda low, a, high: min(max(a, low), high),
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


def opcode_of(op: Any) -> str:
    """The operation's name without its dialect."""
    return str(op.name).rpartition(".")[2]


def name_of(op: Any) -> str:
    """The name in its location; empty without one."""
    return str(getattr(op.location, "name_str", ""))


def shape_of(value: Any) -> tuple[int, ...]:
    """The dimensions of a value."""
    return tuple(value.type.shape)


def integers_of(op: Any, attribute: str) -> tuple[int, ...]:
    """An attribute that is a list of whole numbers."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[attribute]))


def is_argument(value: Any) -> bool:
    """Whether a value is an argument of its block, which no operation makes."""
    return not hasattr(getattr(value.owner, "operation", None), "operands")


def is_zero(value: Any) -> bool:
    """Whether a value is made of zeros and nothing else."""
    maker = None if is_argument(value) else value.owner.operation
    if maker is not None and opcode_of(maker) == "broadcast_in_dim":
        return is_zero(maker.operands[0])
    if maker is None or opcode_of(maker) != "constant":
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
        name = str(op.attributes["comparison_direction"])
        return next((int(holds(*terms)) for word, holds in _COMPARISONS.items() if f" {word}>" in name), None)
    function = _INTEGERS.get(opcode)
    return None if function is None else int(function(*terms))


def clamped(starts: Sequence[int], sizes: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """Where a slice starts: StableHLO moves it into the array."""
    return tuple(min(max(at, 0), most - size) for at, size, most in zip(starts, sizes, whole, strict=True))


def divided(sizes: Sequence[int], whole: Sequence[int]) -> list[int]:
    """The dimensions of which a slice is not all."""
    return [dim for dim, (size, most) in enumerate(zip(sizes, whole, strict=True)) if size != most]


def reshaped_slice(
    starts: Sequence[int], sizes: Sequence[int], whole: Sequence[int], other: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where a slice of an array lies in the same elements in another shape: starts and sizes; None if in no one slice.

    Both are contiguous: ones, then one dimension cut, then whole ones.
    """
    cut = divided(sizes, whole)
    if cut and any(size != 1 for size in sizes[: cut[-1]]):
        return None
    count, offset, step = math.prod(sizes), 0, 1
    for at, most in zip(reversed(starts), reversed(whole), strict=True):
        offset, step = offset + at * step, step * most
    box, left, stride = list[tuple[int, int]](), count, math.prod(other)
    for most in other:
        stride //= most
        at, offset = divmod(offset, stride)
        size = max(left // stride, 1)
        if (size > 1 and left % stride) or at + size > most:
            return None
        left = left if size == 1 and left < stride else left // size
        box.append((at, size))
    return tuple(at for at, _ in box), tuple(size for _, size in box)


def operand_of_slice(joined: Any, starts: Sequence[int], sizes: Sequence[int]) -> tuple[Any, tuple[int, ...]] | None:
    """The operand of a concatenation that a slice of its result is in, and where it starts there; None if in no one."""
    dim, at = ir.IntegerAttr(joined.attributes["dimension"]).value, 0
    for value in joined.operands:
        if at <= starts[dim] and starts[dim] + sizes[dim] <= at + shape_of(value)[dim]:
            return value, (*starts[:dim], starts[dim] - at, *starts[dim + 1 :])
        at += shape_of(value)[dim]
    return None


def before_reshape(value: Any, kind: Any) -> Any | None:
    """What a value is a reshape of, if that is of this type: slices lose the dimension that stacking gave them."""
    maker = None if is_argument(value) else value.owner.operation
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
