"""A training step as a graph of instructions in flat arrays, whatever compiler it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Phase(IntEnum):
    """Where in a training step an instruction belongs."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


ArgumentKind = Literal["parameter", "state", "input"]
"""A trainable parameter, state of the optimiser or the like, or an input of this step."""


@dataclass(frozen=True)
class Argument:
    """An argument of a training step.

    Attributes:
        name: path in the step's arguments, such as `params/encoder/block_3/kernel`.
        kind: see `ArgumentKind`.
    """

    name: str
    kind: ArgumentKind


@dataclass(frozen=True, eq=False)
class InstructionGraph:
    """n instructions in execution order over v values; the arguments are values 0 … len(arguments) - 1.

    Attributes:
        model: the model's name.
        names: [n] unique names (HLO: `dot.1664`).
        opcodes: [n] what they do (StableHLO's or ATen's word without the dialect: `dot_general`); `part` takes a slice
            of an argument that lies in one piece of memory, such as a layer's of stacked parameters, and `random_bits`
            is a loop over the rounds of a generator.
        layers: [n] path of the module they belong to (`encoder/block_3/attention`); "" where unknown.
        phases: int8 [n], see Phase.
        result_offsets: [n+1] instruction i makes the values result_offsets[i] … result_offsets[i+1] - 1; the first
            entry is len(arguments), the last v.
        operand_offsets: [n+1] instruction i reads the values operands[operand_offsets[i]:operand_offsets[i+1]].
        operands: value ids.
        shapes: [v] of every value.
        dtypes: [v] element types (`f32`, `bf16`, `i32`, …).
        value_bytes: [v] size of every value.
        arguments: what the step takes.
        outputs: value ids that the step returns.
        flop: [n] floating-point operations of each instruction.
        bytes_accessed: [n] bytes that each reads and writes.
        meta: where the graph comes from.
        in_core: [n] whether an instruction is part of an attention core, which a flash kernel computes as a whole; none
            is unless given.
    """

    model: str
    names: tuple[str, ...]
    opcodes: tuple[str, ...]
    layers: tuple[str, ...]
    phases: NDArray[np.int8]
    result_offsets: IntArray
    operand_offsets: IntArray
    operands: IntArray
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    value_bytes: FloatArray
    arguments: tuple[Argument, ...]
    outputs: IntArray
    flop: FloatArray
    bytes_accessed: FloatArray
    meta: Mapping[str, object] = field(default_factory=dict)
    in_core: NDArray[np.bool_] = None  # type: ignore[assignment]  # never None after __post_init__

    def __post_init__(self) -> None:
        if self.in_core is None:
            object.__setattr__(self, "in_core", np.zeros(len(self), dtype=bool))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def producers(self) -> IntArray:
        """[v] the instruction that makes each value; -1 for an argument."""
        by_instruction = np.repeat(np.arange(len(self)), np.diff(self.result_offsets))
        return np.concatenate([np.full(len(self.arguments), -1), by_instruction])

    @cached_property
    def in_microbatch(self) -> NDArray[np.bool_]:
        """[n] whether an instruction runs for every micro-batch; the update runs once for a global batch."""
        return np.asarray(self.phases != Phase.UPDATE)

    @cached_property
    def consumers(self) -> IntArray:
        """The instruction that reads each entry of `operands`."""
        return np.repeat(np.arange(len(self)), np.diff(self.operand_offsets))
