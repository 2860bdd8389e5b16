"""Differentiation's marks tell forward from backward, dataflow tells the update."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.module import Operation, Tensor
from automap_models.hlo.order import phases
from automap_models.hlo.step import TrainingStep

ARGUMENTS = (Argument("p", "parameter"), Argument("x", "input"), Argument("step", "state"))
P, X, STEP = range(3)


def phases_of(*rows: tuple[str, tuple[int, ...]]) -> list[Phase]:
    """Phases of operations with one result each, given as (path, operands); the first result is value 3."""
    scalar = (Tensor((), "f32"),)
    operations = [Operation(f"i{i}", "add", path, (), reads, scalar) for i, (path, reads) in enumerate(rows)]
    return [Phase(phase) for phase in phases(operations, ARGUMENTS).tolist()]


def test_marks_and_dataflow_tell_the_three_phases() -> None:
    assert phases_of(
        ("jit(f)/jvp(Net)/mul", (P, X)), ("jit(f)/transpose(jvp(Net))/mul", (3, P)), ("jit(f)/optimizer/sub", (P, 4))
    ) == [Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE]


def test_what_reads_a_gradient_outside_of_differentiation_is_update() -> None:
    assert (
        phases_of(("transpose(jvp())/mul", (P, X)), ("jit(f)/mul", (3, STEP)), ("", (4, P)))[1:] == [Phase.UPDATE] * 2
    )


@pytest.mark.parametrize("scope", ["", "jit(f)/sgd/sub", "jit(f)/jit(optimizer)/sub"])
def test_the_update_needs_no_name(scope: str) -> None:
    assert phases_of(("jvp(N)/mul", (P, X)), ("transpose(jvp(N))/mul", (3, P)), (scope, (P, 4)))[2] is Phase.UPDATE


def test_what_stands_in_a_scope_called_optimizer_is_no_update_for_that() -> None:
    rows = [("jit(f)/optimizer/mul", (P, STEP)), ("jvp(N)/mul", (3, X)), ("optimizer/transpose(jvp(N))/mul", (4, P))]
    assert phases_of(*rows) == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD]


GRADIENT = ("transpose(jvp())/mul", (P, X))


def test_an_unmarked_operation_between_two_gradients_is_backward() -> None:
    rows = [("transpose(jvp())/mul", (P, X)), ("", (3,)), ("transpose(jvp())/mul", (4, P)), ("", (5,))]
    assert phases_of(*rows) == [Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.UPDATE]


def test_weight_decay_belongs_to_the_update_that_reads_it() -> None:
    assert phases_of(("jit(f)/mul", (P,)), ("transpose(jvp())/mul", (P, X)), ("jit(f)/sub", (3, 4)))[0] is Phase.UPDATE


def test_an_average_of_the_parameters_is_update() -> None:
    assert phases_of(GRADIENT, ("jit(f)/mul", (P, STEP))) == [Phase.BACKWARD, Phase.UPDATE]


def test_constants_belong_to_their_first_reader() -> None:
    rows = [("", ()), ("", ()), ("jvp(N)/mul", (P, 3)), ("transpose(jvp(N))/mul", (5, 4)), ("optimizer/mul", (6, 3))]
    assert phases_of(*rows)[:2] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_step_counter_is_update_unless_the_forward_pass_reads_it() -> None:
    assert phases_of(GRADIENT, ("jit(f)/add", (STEP,)))[1:] == [Phase.UPDATE]
    assert phases_of(GRADIENT, ("jit(f)/add", (STEP,)), ("jvp(N)/mul", (P, 4)))[1:] == [Phase.FORWARD, Phase.FORWARD]


def test_without_a_gradient_everything_is_forward() -> None:
    """The result of a forward pass has the type of its input, which looks like state that it updates."""
    assert phases_of(("jit(f)/mul", (P, STEP)), ("jit(f)/add", (STEP,))) == [Phase.FORWARD, Phase.FORWARD]


def test_metrics_of_the_model_are_forward() -> None:
    assert phases_of(("jit(f)/N/mul", (P, X))) == [Phase.FORWARD]


def test_no_forward_instruction_reads_a_later_one(transformer_graph: InstructionGraph) -> None:
    graph = transformer_graph
    producer_phases = np.where(graph.producers >= 0, graph.phases[graph.producers], Phase.FORWARD)
    forward = graph.phases[graph.consumers] == Phase.FORWARD
    assert (producer_phases[graph.operands[forward]] == Phase.FORWARD).all()
    assert set(graph.phases.tolist()) == {0, 1, 2}


def test_rematerialised_forward_work_is_backward(rematerialised: TrainingStep, transformer: TrainingStep) -> None:
    plain, again = (instruction_graph(trace(step)) for step in (transformer, rematerialised))
    for phase, factor in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, 1.2)):
        before, after = (graph.flop[graph.phases == phase].sum() for graph in (plain, again))
        assert after >= factor * before * 0.9
    assert plain.flop[plain.phases == 0].sum() >= again.flop[again.phases == 0].sum()
    assert again.flop.sum() > plain.flop.sum()
    assert set(again.layers) >= {"block_0/in", "block_1/out"}
