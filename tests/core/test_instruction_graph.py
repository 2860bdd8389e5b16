"""The instruction graph's derived arrays."""

from __future__ import annotations

import numpy as np

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase


def test_producers_and_consumers_follow_from_the_offsets() -> None:
    graph = InstructionGraph(
        model="by hand",
        names=("split.1", "add.2"),
        opcodes=("split", "add"),
        layers=("a", "b"),
        phases=np.array([Phase.FORWARD, Phase.FORWARD], dtype=np.int8),
        result_offsets=np.array([2, 4, 5]),  # two results, one result
        operand_offsets=np.array([0, 1, 4]),
        operands=np.array([0, 2, 3, 1]),
        shapes=((4,), (2,), (2,), (2,), (2,)),
        dtypes=("f32",) * 5,
        value_bytes=np.array([16.0, 8.0, 8.0, 8.0, 8.0]),
        arguments=(Argument("w", "parameter"), Argument("x", "input")),
        outputs=np.array([4]),
        flop=np.array([0.0, 4.0]),
        bytes_accessed=np.array([32.0, 32.0]),
    )
    assert len(graph) == 2
    assert graph.producers.tolist() == [-1, -1, 0, 0, 1]
    assert graph.consumers.tolist() == [0, 1, 1, 1]
    assert graph.meta == {}


def test_phases_are_in_the_order_of_a_step() -> None:
    assert list(Phase) == sorted(Phase)
    assert [phase.name for phase in Phase] == ["FORWARD", "BACKWARD", "UPDATE"]
