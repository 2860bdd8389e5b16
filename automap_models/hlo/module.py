"""A flat module and single operations of it, as the adapter hands them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument
from automap_models.hlo.operation import Operation, Tensor


@dataclass(frozen=True, eq=False)
class Module:
    """One flat function: no calls, operations in execution order, every location read.

    Attributes:
        name: the model's name.
        arguments: what the entry takes, in order.
        argument_types: their types.
        operations: every operation but the return; values are numbered as in `Operation`.
        outputs: value ids that the entry returns.
        signatures: int64 [n] operations with equal numbers do the same to operands of the same types.
        meta: where the module comes from.
        mlir: the module itself, an `mlir.ir.Module` of StableHLO (MHLO where that has no word for it, as for topk),
            for passes such as Shardy's.
        handles: the operations in it, `mlir.ir.Operation`s.
    """

    name: str
    arguments: tuple[Argument, ...]
    argument_types: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    signatures: NDArray[np.int64]
    meta: Mapping[str, object]
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
