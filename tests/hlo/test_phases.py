"""Forward, backward and update are told apart by location first and by dataflow second."""

from __future__ import annotations

import numpy as np

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.operation import Operation, Tensor
from automap_models.hlo.phases import phases
from automap_models.hlo.step import TrainingStep

ARGUMENTS = (Argument("p", "parameter"), Argument("x", "input"), Argument("step", "state"))
P, X, STEP = range(3)


def found(*rows: tuple[str, tuple[int, ...]]) -> list[Phase]:
    """Phases of operations with one result each, given as (path, operands); the first result is value 3."""
    scalar = (Tensor((), "f32"),)
    operations = [Operation(f"i{i}", "add", path, (), reads, scalar) for i, (path, reads) in enumerate(rows)]
    return [Phase(phase) for phase in phases(operations, ARGUMENTS).tolist()]


def test_locations_decide() -> None:
    assert found(
        ("jit(f)/jvp(Net)/mul", (P, X)),
        ("jit(f)/transpose(jvp(Net))/mul", (3, P)),
        ("jit(f)/optimizer/sub", (P, 4)),
    ) == [Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE]


def test_what_reads_a_gradient_outside_of_differentiation_is_update() -> None:
    assert found(("transpose(jvp())/mul", (P, X)), ("jit(f)/mul", (3, STEP)), ("", (4, P)))[1:] == [Phase.UPDATE] * 2


def test_constants_belong_to_their_first_reader() -> None:
    rows = [("", ()), ("", ()), ("jvp(N)/mul", (P, 3)), ("transpose(jvp(N))/mul", (5, 4)), ("optimizer/mul", (6, 3))]
    assert found(*rows)[:2] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_step_counter_is_update_unless_the_forward_pass_reads_it() -> None:
    assert found(("jit(f)/add", (STEP,))) == [Phase.UPDATE]
    assert found(("jit(f)/add", (STEP,)), ("jvp(N)/mul", (P, 3))) == [Phase.FORWARD, Phase.FORWARD]


def test_metrics_of_the_model_are_forward() -> None:
    assert found(("jit(f)/N/mul", (P, X))) == [Phase.FORWARD]


def test_no_forward_instruction_reads_a_later_one(transformer_graph: InstructionGraph) -> None:
    graph = transformer_graph
    made = np.where(graph.producers >= 0, graph.phases[graph.producers], Phase.FORWARD)
    forward = graph.phases[graph.consumers] == Phase.FORWARD
    assert (made[graph.operands[forward]] == Phase.FORWARD).all()
    assert set(graph.phases.tolist()) == {0, 1, 2}


def test_rematerialised_forward_work_is_backward(rematerialised: TrainingStep, transformer: TrainingStep) -> None:
    plain, again = (instruction_graph(trace(step)) for step in (transformer, rematerialised))
    for phase, factor in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, 1.2)):
        before, after = (graph.flop[graph.phases == phase].sum() for graph in (plain, again))
        assert after >= factor * before * 0.9
    assert plain.flop[plain.phases == 0].sum() >= again.flop[again.phases == 0].sum()
    assert again.flop.sum() > plain.flop.sum()
    assert set(again.layers) >= {"block_0/in", "block_1/out"}
