"""A part of a flat module on its own: the operations that some of its values need."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from automap_models.hlo.adapter import Module, OneOp

_OF_THE_WHOLE = ("arg_attrs", "res_attrs", "mhlo.")
"""Attributes that describe every argument and result, such as layouts: XLA crashes on those of another signature."""


def part(module: Module, outputs: Sequence[int]) -> OneOp:
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
