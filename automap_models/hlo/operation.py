"""The operations of a flat module as plain records: what the adapter reads out of MLIR, once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

_BITS = re.compile(r"(\d+)")


class Tensor(NamedTuple):
    """The type of a value; a token, which carries no data, has dtype `token`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> float:
        """Size of the value in bytes."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)


class Operation(NamedTuple):
    """One operation of the entry function.

    Attributes:
        name: HLO's name of the instruction (`dot_general.47`), unique in its module.
        opcode: StableHLO's word without the dialect.
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
