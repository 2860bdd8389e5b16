"""How often a loop runs, where its form tells."""

from __future__ import annotations

from typing import Any

UNKNOWN = 0
_LOOP = "stablehlo.while"


def rounds(op: Any) -> int:
    """Rounds of a `stablehlo.while` that counts from one constant up to another, as `lax.scan` and `fori_loop` do.

    Returns:
        1 for every other operation, UNKNOWN for a loop of another form.
    """
    if op.name != _LOOP:
        return 1
    condition, body = (region.blocks[0] for region in op.regions)
    test = _producer(_returned(condition)[0])
    if test is None or test.name != "stablehlo.compare" or "LT" not in str(test.attributes["comparison_direction"]):
        return UNKNOWN
    counter, limit = test.operands
    position = _position(counter, condition)
    if position is None:
        return UNKNOWN
    start = _integer(op.operands[position])
    stop = _integer(_from_outside(limit, condition, op))
    step = _increment(_returned(body)[position], body.arguments[position])
    if start is None or stop is None or not step or step < 0:
        return UNKNOWN
    return max(0, -(-(stop - start) // step)) or UNKNOWN


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
    return _integer(second) if first == before else _integer(first) if second == before else None


def _integer(value: Any) -> int | None:
    """The number in a constant of one element."""
    constant = _producer(value)
    if constant is None or constant.name != "stablehlo.constant":
        return None
    elements = constant.attributes["value"]
    try:
        return int(elements[0]) if len(elements) == 1 else None
    except (TypeError, ValueError):
        return None
