"""A part of a traced step as a function that JAX can call, compile and shard like any other.

The operations are copied out of the module into one of their own, and inlined wherever the function is traced, so that
`jax.jit` compiles them with the shardings that it is given (Shardy's attributes on arguments and results).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir

from automap_models.errors import BadInput
from automap_models.hlo.flat_module import inlined
from automap_models.hlo.mlir_walk import extracted
from automap_models.hlo.module import MlirModule, Tensor
from automap_models.hlo.step_cut import Program

_program_p = Primitive("automap_program")
_program_p.multiple_results = True


def program_function(
    module: MlirModule, program: Program, parts: Mapping[int, tuple[int, ...]] = MappingProxyType({})
) -> Callable[..., list[Any]]:
    """The function of a program: arrays of its inputs → arrays of its outputs.

    Args:
        parts: inputs of other shapes than they have in the module; no output may depend on them in its shape.

    Raises:
        BadInput: a value of a type that JAX has no array for crosses between programs.
    """
    content = extracted(module, program.operations, program.inputs, program.outputs, parts)
    outputs = [module.types[v] for v in program.outputs]
    avals = tuple((tensor.shape, array_dtype(tensor)) for tensor in outputs)

    def call(*arrays: Any) -> list[Any]:
        results: list[Any] = _program_p.bind(*arrays, content=content, avals=avals)  # type: ignore[no-untyped-call]
        return results

    call.__name__ = "_".join(map(str, program.key))
    return call


def array_dtype(tensor: Tensor) -> str:
    """NumPy's name of an element type of MLIR: `ui32` → `uint32`.

    Raises:
        BadInput: it is a token, or of another type that no array has.
    """
    if tensor.numpy_dtype is None:
        raise BadInput(f"a value of type {tensor.dtype} crosses a cut", do="cut the model elsewhere")
    return tensor.numpy_dtype


def _abstract(*_: Any, content: bytes, avals: tuple[tuple[tuple[int, ...], str], ...]) -> list[Any]:
    return [jax.core.ShapedArray(shape, jax.numpy.dtype(dtype)) for shape, dtype in avals]


def _lowered(context: Any, *operands: Any, content: bytes, avals: object) -> Sequence[Any]:
    module = ir.Module.parse(content, context.module_context.context)
    (entry,) = module.body.operations
    results: Sequence[Any] = inlined(entry.operation, operands)
    return results


_program_p.def_abstract_eval(_abstract)  # type: ignore[no-untyped-call]
mlir.register_lowering(_program_p, _lowered)
