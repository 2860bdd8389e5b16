"""A part of a traced step as a function that JAX can call, compile and shard like any other.

The operations are copied out of the module into one of their own, and inlined wherever the function is traced, so that
`jax.jit` compiles them with the shardings that it is given (Shardy's attributes on arguments and results).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir

from automap_models.errors import BadInput
from automap_models.hlo.flat_module import bytecode, inlined
from automap_models.hlo.mlir_walk import replace_operands
from automap_models.hlo.module import MlirModule, Tensor
from automap_models.hlo.step_cut import Program

_program_p = Primitive("automap_program")
_program_p.multiple_results = True
_DTYPES = {"i1": "bool", "bf16": "bfloat16"}
_KINDS = {"f": "float", "i": "int", "ui": "uint"}


def program_function(
    module: MlirModule, program: Program, parts: Mapping[int, tuple[int, ...]] = MappingProxyType({})
) -> Callable[..., list[Any]]:
    """The function of a program: arrays of its inputs → arrays of its outputs.

    Args:
        parts: inputs of other shapes than they have in the module; no output may depend on them in its shape.

    Raises:
        BadInput: a value of a type that JAX has no array for crosses between programs.
    """
    content = _bytecode(module, program, parts)
    tensors = value_types(module)
    avals = tuple((tensors[v].shape, array_dtype(tensors[v])) for v in program.outputs)

    def call(*arrays: Any) -> list[Any]:
        results: list[Any] = _program_p.bind(*arrays, content=content, avals=avals)  # type: ignore[no-untyped-call]
        return results

    call.__name__ = "_".join(map(str, program.key))
    return call


def value_types(module: MlirModule) -> list[Tensor]:
    """The type of every value of a module."""
    return [*module.argument_types, *(kind for operation in module.operations for kind in operation.results)]


def array_dtype(tensor: Tensor) -> str:
    """NumPy's name of an element type of MLIR: `ui32` → `uint32`.

    Raises:
        BadInput: it is a token, or of another type that no array has.
    """
    name = tensor.dtype
    stem = name.rstrip("0123456789")
    if name in _DTYPES or name.startswith("f8"):
        return _DTYPES.get(name) or f"float8_{name.removeprefix('f8').lower()}"
    if name.startswith("complex<"):
        return f"complex{2 * int(name.removeprefix('complex<f').rstrip('>'))}"
    if stem not in _KINDS:
        raise BadInput(f"a value of type {name} crosses a cut", do="cut the model elsewhere")
    return _KINDS[stem] + name.removeprefix(stem)


def _bytecode(module: MlirModule, program: Program, parts: Mapping[int, tuple[int, ...]]) -> bytes:
    """A module whose entry is the program."""
    first = _first_results(module)
    with module.mlir.context, ir.Location.unknown():
        arguments = list(_entry_arguments(module))
        owned = _handles(module, first)
        values = [arguments[v] if v < len(arguments) else owned(v) for v in program.inputs]
        results = [owned(v) for v in program.outputs]
        part = ir.Module.create()
        with ir.InsertionPoint(part.body):
            given = [_type(value, parts.get(v)) for v, value in zip(program.inputs, values, strict=True)]
            entry: Any = func.FuncOp("main", (given, [v.type for v in results]))
        with ir.InsertionPoint(entry.add_entry_block()):
            inner = dict(zip(values, entry.arguments, strict=True))
            for i in program.operations:
                copy = module.handles[i].clone()
                replace_operands(copy, inner)
                inner.update(zip(module.handles[i].results, copy.results, strict=True))
            func.ReturnOp([inner[v] for v in results])
        return bytecode(part)


def _type(value: Any, shape: tuple[int, ...] | None) -> Any:
    return value.type if shape is None else ir.RankedTensorType.get(shape, value.type.element_type)


def _first_results(module: MlirModule) -> np.ndarray:
    counts = [len(operation.results) for operation in module.operations]
    return len(module.arguments) + np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _handles(module: MlirModule, first: np.ndarray) -> Callable[[int], Any]:
    def owned(v: int) -> Any:
        i = int(np.searchsorted(first, v, side="right")) - 1
        return module.handles[i].results[v - int(first[i])]

    return owned


def _entry_arguments(module: MlirModule) -> Sequence[Any]:
    from automap_models.hlo.flat_module import entry_block

    arguments: Sequence[Any] = entry_block(module.mlir).arguments
    return arguments


def _abstract(*_: Any, content: bytes, avals: tuple[tuple[tuple[int, ...], str], ...]) -> list[Any]:
    return [jax.core.ShapedArray(shape, jax.numpy.dtype(dtype)) for shape, dtype in avals]


def _lowered(context: Any, *operands: Any, content: bytes, avals: object) -> Sequence[Any]:
    module = ir.Module.parse(content, context.module_context.context)
    (entry,) = module.body.operations
    results: Sequence[Any] = inlined(entry.operation, operands)
    return results


_program_p.def_abstract_eval(_abstract)  # type: ignore[no-untyped-call]
mlir.register_lowering(_program_p, _lowered)
