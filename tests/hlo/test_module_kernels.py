"""Kernels of a module are one: it reads its inputs once and writes what others need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.cost.kernel_traffic import Traffic, kernel_traffic
from automap_models.hlo.module_kernels import module_traffic

SIZE, ROW = 4096.0, 4.0
"""Bytes of a matrix, and of a number for each of its rows."""


def _graph(instructions: Sequence[tuple[str, Sequence[int], float, Phase]], outputs: Sequence[int]) -> InstructionGraph:
    """A graph of instructions with one result each, after one argument, value 0, of SIZE bytes."""
    operands = [v for _, read, _, _ in instructions for v in read]
    ends = np.cumsum([0, *(len(read) for _, read, _, _ in instructions)])
    sizes = np.array([SIZE, *(nbytes for _, _, nbytes, _ in instructions)])
    accessed = np.array([sum(sizes[list(read)]) + nbytes for _, read, nbytes, _ in instructions])
    return InstructionGraph(
        model="m",
        names=tuple(f"{opcode}.{i}" for i, (opcode, *_) in enumerate(instructions)),
        opcodes=tuple(opcode for opcode, *_ in instructions),
        layers=("",) * len(instructions),
        phases=np.array([phase for *_, phase in instructions], dtype=np.int8),
        result_offsets=np.arange(1, len(instructions) + 2),
        operand_offsets=ends,
        operands=np.array(operands, dtype=np.int64),
        shapes=((1,),) * len(sizes),
        dtypes=("f32",) * len(sizes),
        value_bytes=sizes,
        arguments=(Argument("x", "input"),),
        outputs=np.array(outputs, dtype=np.int64),
        flop=np.zeros(len(instructions)),
        bytes_accessed=accessed,
    )


def _softmax() -> InstructionGraph:
    """Product, softmax, product, and a backward pass that reads the exponentials.

    1 = 0 · 0   2 = max 1   3 = exp(1 - 2)   4 = sum 3   5 = 3 / 4   6 = 5 · 0   7 = 3 · 6 of the backward pass
    """
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    return _graph(
        [
            ("dot_general", [0, 0], SIZE, forward),
            ("reduce", [1], ROW, forward),
            ("exponential", [1, 2], SIZE, forward),
            ("reduce", [3], ROW, forward),
            ("divide", [3, 4], SIZE, forward),
            ("dot_general", [5, 0], SIZE, forward),
            ("multiply", [3, 6], SIZE, backward),
        ],
        outputs=[7],
    )


def _modules(graph: InstructionGraph, groups: Sequence[int], kept: Sequence[int]) -> Traffic:
    of_values = np.isin(np.arange(len(graph.shapes)), kept)
    return module_traffic(graph, kernel_traffic(graph, written=kept), np.array(groups), of_values)


def test_a_softmax_reads_scores_once_and_writes_weights_once() -> None:
    graph = _softmax()
    traffic = _modules(graph, [0, 0, 0, 0, 0, 0, 1], kept=[1, 5])
    own = traffic.kernels == 4
    assert dict(zip(traffic.values[own].tolist(), traffic.nbytes[own].tolist(), strict=True)) == {1: SIZE, 5: SIZE}


def test_the_backward_pass_reads_what_is_saved_for_what_is_not() -> None:
    """The exponentials, value 3, are made again from the scores, value 1."""
    traffic = _modules(_softmax(), [0, 0, 0, 0, 0, 0, 1], kept=[1, 5])
    assert sorted(traffic.values[traffic.kernels == 6].tolist()) == [1, 6, 7]


def test_what_is_saved_is_written_and_read() -> None:
    traffic = _modules(_softmax(), [0, 0, 0, 0, 0, 0, 1], kept=[3, 5])
    assert 3 in traffic.values[traffic.kernels == 4].tolist()
    assert sorted(traffic.values[traffic.kernels == 6].tolist()) == [3, 6, 7]


@pytest.mark.parametrize("opcode", ["dot_general", "gather"])
def test_kernels_on_either_side_of_another_one_stay_apart(opcode: str) -> None:
    forward = Phase.FORWARD
    graph = _graph(
        [("negate", [0], SIZE, forward), (opcode, [1, 1], SIZE, forward), ("add", [1, 2], SIZE, forward)], outputs=[3]
    )
    assert set(_modules(graph, [0, 0, 0], kept=[]).kernels.tolist()) == {0, 1, 2}


def test_alone_every_kernel_moves_what_it_moved() -> None:
    """With nothing to be made again and every kernel in a module of its own."""
    graph = _softmax()
    traffic = _modules(graph, range(len(graph)), kept=range(1, 8))
    np.testing.assert_allclose(traffic.moved, kernel_traffic(graph, written=range(1, 8)).moved)
