"""A flat module and single operations of it, as the adapter (of StableHLO) or torch_export (of ATen) hand them out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument

UNKNOWN = 0
"""Rounds of a loop that may run any number of times."""
_BITS = re.compile(r"(\d+)")
_NUMPY_NAMES = {"i1": "bool", "bf16": "bfloat16"}
_NUMPY_KINDS = {"f": "float", "i": "int", "ui": "uint"}


class Tensor(NamedTuple):
    """The type of a value; a token, which carries no data, has dtype `token`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> float:
        """Size of the value in bytes."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)

    @property
    def numpy_dtype(self) -> str | None:
        """NumPy's name of the element type: `ui32` → `uint32`; None where no array has it."""
        stem = self.dtype.rstrip("0123456789")
        if self.dtype in _NUMPY_NAMES:
            return _NUMPY_NAMES[self.dtype]
        if self.dtype.startswith("f8"):
            return f"float8_{self.dtype.removeprefix('f8').lower()}"
        if self.dtype.startswith("complex<"):
            return f"complex{2 * int(self.dtype.removeprefix('complex<f').rstrip('>'))}"
        return _NUMPY_KINDS[stem] + self.dtype.removeprefix(stem) if stem in _NUMPY_KINDS else None


class Operation(NamedTuple):
    """One operation of the entry function.

    Attributes:
        name: HLO's name of the instruction (`dot_general.47`), unique in its module.
        opcode: StableHLO's word without the dialect, or ATen's for what StableHLO has no word for.
        path: the scopes that its location names, outermost first, the primitive last; "" where it has none.
        trace_order: where tracing met it (callers before callees' positions); empty where that is not known.
        operands: value ids; the entry's arguments are 0 … len(arguments) - 1.
        results: types of the values that it makes, whose ids go on where those of the operation before end.
        target: what a custom call calls; "" for every other operation.
        rounds: how often a loop runs, 0 where that is not known; 1 for every other operation.
    """

    name: str
    opcode: str
    path: str
    trace_order: tuple[int, ...]
    operands: tuple[int, ...]
    results: tuple[Tensor, ...]
    target: str = ""
    rounds: int = 1


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element: `f32` → 4, `i1` → 1 (a boolean is kept in a byte), `complex<f32>` → 8, `i4` → 0.5."""
    bits = _BITS.search(dtype)
    if bits is None:
        return 0.0
    both = 2 if dtype.startswith("complex") else 1
    return both * (1.0 if dtype == "i1" else int(bits[1]) / 8)


def producing_operations(operations: Sequence[Operation], n_arguments: int) -> list[int]:
    """The operation that makes each value; -1 for an argument."""
    producers = [-1] * n_arguments
    for i, op in enumerate(operations):
        producers += [i] * len(op.results)
    return producers


@dataclass(frozen=True, eq=False)
class Module:
    """One flat function: no calls, operations in execution order, every location read.

    Attributes:
        name: the model's name.
        arguments: what the entry takes, in order.
        argument_types: their types.
        operations: every operation but the return; values are numbered as in `Operation`.
        outputs: value ids that the entry returns.
        meta: where the module comes from.
    """

    name: str
    arguments: tuple[Argument, ...]
    argument_types: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    meta: Mapping[str, object]

    @cached_property
    def types(self) -> tuple[Tensor, ...]:
        """The type of every value."""
        return (*self.argument_types, *(kind for operation in self.operations for kind in operation.results))

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of the module's plans, in sentences."""
        return ()


@dataclass(frozen=True, eq=False)
class MlirModule(Module):
    """A module that was read out of MLIR.

    Attributes:
        signatures: int64 [n] operations with equal numbers do the same to operands of the same types.
        mlir: the module itself, an `mlir.ir.Module` of StableHLO (MHLO where that has no word for it, as for topk),
            for passes such as Shardy's.
        handles: the operations in it, `mlir.ir.Operation`s.
    """

    signatures: NDArray[np.int64]
    mlir: Any = field(repr=False)
    handles: tuple[Any, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class OneOp:
    """An operation on its own: a module whose entry does nothing else, and where in the step it occurs.

    Attributes:
        opcode: StableHLO's word without the dialect.
        instructions: int64, the operations of the module (and instructions of its graph) that it stands for.
        operands: types of the entry's arguments.
        results: types of what it returns.
        bytecode: the module, MLIR bytecode of StableHLO.
        rounds: how often a loop runs, 0 where that is not known; 1 for every other operation.
        inner_loops: loops that it runs in each round.
    """

    opcode: str
    instructions: NDArray[np.int64]
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    bytecode: bytes = field(repr=False)
    rounds: int = 1
    inner_loops: tuple[OneOp, ...] = ()
