"""Execution order: topological, stable, and with little alive at the cuts even where the trace is unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.instruction_graph import Argument
from automap_models.hlo.module import Operation, Tensor
from automap_models.hlo.order import execution_order, renumbered

F32 = (Tensor((4,), "f32"),)
ARGUMENTS = (Argument("p", "parameter"), Argument("x", "input"))


def operation(name: str, operands: tuple[int, ...], trace_order: tuple[int, ...] = ()) -> Operation:
    return Operation(name, "add", "jit(f)/jvp(N)/add", trace_order, operands, F32)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    operations = []
    traced = draw(st.booleans())
    for i in range(draw(st.integers(1, 20))):
        reads = tuple(draw(st.lists(st.integers(0, i + 1), max_size=3)))
        operations.append(operation(f"i{i}", reads, (draw(st.integers(0, 30)),) if traced else ()))
    return operations


@given(operations())
def test_every_order_is_topological_and_the_same_on_every_run(operations: list[Operation]) -> None:
    outputs = [len(operations) + 1]
    order = execution_order(operations, ARGUMENTS, outputs)
    assert sorted(order) == list(range(len(operations)))
    assert order == execution_order(operations, ARGUMENTS, outputs)
    moved, moved_outputs = renumbered(operations, outputs, order, 2)
    for i, op in enumerate(moved):
        assert all(value < 2 + i for value in op.operands)
    assert moved[moved_outputs[0] - 2].name == operations[-1].name
    names = ["p", "x", *(op.name for op in operations)]
    moved_names = ["p", "x", *(op.name for op in moved)]
    reads = {op.name: [names[v] for v in op.operands] for op in operations}
    assert reads == {op.name: [moved_names[v] for v in op.operands] for op in moved}


def test_the_trace_decides_where_it_is_known() -> None:
    operations = [
        operation("second", (0, 1), (2,)),
        operation("first", (0, 1), (1, 5)),
        operation("last", (2, 3), (3,)),
    ]
    assert [operations[i].name for i in execution_order(operations, ARGUMENTS, [4])] == ["first", "second", "last"]


def test_what_needs_no_input_runs_right_before_its_first_reader() -> None:
    operations = [
        operation("cast", (0,), (0,)),  # of a parameter, traced first, read last
        operation("a", (0, 1), (1,)),
        operation("b", (3,), (2,)),
        operation("reader", (2, 4), (3,)),
    ]
    assert [operations[i].name for i in execution_order(operations, ARGUMENTS, [5])] == ["a", "b", "cast", "reader"]


def test_without_a_trace_an_encoder_runs_before_the_decoder_that_reads_it() -> None:
    # In post-order from the result, as HLO text comes: the decoder's own input first.
    operations = [
        operation("decoder_in", (0, 1)),
        operation("encoder_1", (0, 1)),
        operation("encoder_2", (3,)),
        operation("encoder_3", (4,)),
        operation("decoder", (2, 5)),
    ]
    order = [operations[i].name for i in execution_order(operations, ARGUMENTS, [6])]
    assert order == ["encoder_1", "encoder_2", "encoder_3", "decoder_in", "decoder"]


def test_without_a_trace_what_only_the_backward_pass_reads_follows_what_it_reads() -> None:
    operations = [
        operation("a", (0, 1)),
        operation("b", (2,)),
        operation("loss", (3,)),
        operation("mask", (2,)),
        Operation("gradient", "mul", "transpose(jvp(N))/mul", (), (4, 5), F32),
    ]
    order = [operations[i].name for i in execution_order(operations, ARGUMENTS, [4, 6])]
    assert order.index("mask") < order.index("loss") < order.index("gradient")
