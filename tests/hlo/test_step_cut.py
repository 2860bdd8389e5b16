"""Cutting a step: whatever the graph, the programs together make what the step makes, and read nothing too early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.errors import BadInput
from automap_models.hlo.step_cut import ProgramKey, StepCut, cut_step, gradients
from tests.hlo.conftest import graph_of, graphs

F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE
MODULUS = 2**61 - 1


def computed(graph: InstructionGraph, values: dict[int, int], operations: range | tuple[int, ...]) -> dict[int, int]:
    """The values of some instructions, given others: each is a number that tells how it was made; + is additive."""
    values = dict(values)
    for i in operations:
        read = [values[v] for v in graph.operands[graph.operand_offsets[i] : graph.operand_offsets[i + 1]].tolist()]
        first, end = graph.result_offsets[i : i + 2].tolist()
        for v in range(first, end):
            if graph.opcodes[i] == "add":
                values[v] = sum(read) % MODULUS
            elif graph.opcodes[i] == "reshape":
                values[v] = read[0]
            else:
                values[v] = hash((i, v - first, *read)) % MODULUS
    return values


def by_programs(graph: InstructionGraph, cut: StepCut) -> dict[int, int]:
    """The values that the programs return, run one after the other; each has its own inputs and nothing else."""
    arguments = {v: v + 1 for v in range(len(graph.arguments))}
    outputs: dict[tuple[ProgramKey, int], int] = {}
    values = dict(arguments)
    for key, program in cut.programs.items():
        given_values = {
            v: arguments[v] if v in arguments else outputs[cut.source[v, key.stage], v] for v in program.inputs
        }
        after = computed(graph, given_values, program.operations)
        outputs |= {(key, v): after[v] for v in program.outputs}
        values |= {v: after[v] for v in program.outputs}
    return values


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[InstructionGraph, list[int], dict[int, int]]:
    """A step, where it is cut, and which of its values replace parameters and state."""
    graph = draw(graphs())
    values, forward = len(graph.shapes), int((graph.phases == F).sum())
    outputs = draw(st.lists(st.integers(0, values - 1), min_size=1, max_size=6, unique=True))
    kept = [a for a, argument in enumerate(graph.arguments) if argument.kind != "input"]
    returned = dict(zip(draw(st.permutations(kept)), outputs, strict=False))
    cuts = sorted(draw(st.sets(st.integers(0, forward - 2), max_size=3)))
    return replace(graph, outputs=np.array(outputs)), cuts, returned


@given(cut_graphs(), st.booleans())
def test_programs_make_what_the_step_makes(
    case: tuple[InstructionGraph, list[int], dict[int, int]], split_backward: bool
) -> None:
    graph, cuts, returned = case
    try:
        cut = cut_step(graph, cuts, returned, split_backward=split_backward)
    except BadInput as error:
        assert "is made by stage" in str(error)  # state of one stage that another one reads
        return
    whole = computed(graph, {v: v + 1 for v in range(len(graph.arguments))}, range(len(graph)))
    values = by_programs(graph, cut)
    for v in graph.outputs.tolist():
        assert values[v] == whole[v]


@given(cut_graphs())
def test_only_what_computes_nothing_new_is_in_two_programs(
    case: tuple[InstructionGraph, list[int], dict[int, int]],
) -> None:
    graph, cuts, returned = case
    try:
        cut = cut_step(graph, cuts, returned)
    except BadInput:
        return
    counts = np.zeros(len(graph), dtype=int)
    for program in cut.programs.values():
        counts[list(program.operations)] += 1
    kinds = {argument.kind for argument in graph.arguments} - {"state", "parameter"}
    for i in np.flatnonzero(counts > 1):
        ancestors, pending = set[int](), [int(i)]
        while pending:
            at = pending.pop()
            read = graph.operands[graph.operand_offsets[at] : graph.operand_offsets[at + 1]]
            ancestors |= {int(v) for v in read if v < len(graph.arguments)}
            pending += [int(graph.producers[v]) for v in read if v >= len(graph.arguments)]
        producers = {graph.arguments[v].kind for v in ancestors}
        assert graph.opcodes[i] == "reshape" or not producers & kinds


@pytest.fixture
def three_layers() -> InstructionGraph:
    """x·a·b·c with a tied to c: forward 4, 5, 6; backward; sums; updates.

    arguments: a 0, b 1, count 2, x 3
    """
    return graph_of(
        [
            ("dot", "l0", F, (3, 0), 8),  # 4
            ("dot", "l1", F, (4, 1), 8),  # 5
            ("dot", "l2", F, (5, 0), 8),  # 6, the loss
            ("dot", "l2", B, (6, 5), 8),  # 7: gradient of a by its last use
            ("dot", "l2", B, (6, 0), 8),  # 8: of what came in
            ("dot", "l1", B, (8, 4), 8),  # 9: gradient of b
            ("dot", "l1", B, (8, 1), 8),  # 10
            ("dot", "l0", B, (10, 3), 8),  # 11: gradient of a by its first use
            ("add", "l0", B, (7, 11), 8),  # 12: of both
            ("subtract", "", U, (0, 12), 8),  # 13
            ("subtract", "", U, (1, 9), 8),  # 14
            ("add", "", U, (2, 2), 8),  # 15
        ],
        [("parameter", 8), ("parameter", 8), ("state", 8), ("input", 8)],
        outputs=(13, 14, 15, 6),
    )


def test_gradients_of_tied_weights_are_added_up_in_the_update(three_layers: InstructionGraph) -> None:
    cut = cut_step(three_layers, [0, 1], {0: 13, 1: 14, 2: 15})
    outputs = {key: program.outputs for key, program in cut.programs.items()}
    assert outputs[ProgramKey("B", 2)] == (7, 8)
    assert outputs[ProgramKey("B", 1)] == (9, 10)
    assert outputs[ProgramKey("B", 0)] == (11,)
    update = cut.programs[ProgramKey("U", 0)]
    assert set(update.inputs) == {0, 2, 7, 11}
    assert set(update.outputs) == {13, 15}
    assert cut.holders(0) == (0, 2)
    assert cut.averaged() == (6, 7, 9, 11)
    assert gradients(three_layers, {0: 13, 1: 14, 2: 15}) == {0: 12, 1: 9}


def test_a_split_backward_pass_first_makes_what_the_stage_before_waits_for(three_layers: InstructionGraph) -> None:
    cut = cut_step(three_layers, [0, 1], {0: 13, 1: 14, 2: 15}, split_backward=True)
    operations = {key: program.operations for key, program in cut.programs.items() if key.kind in "IW"}
    assert operations == {
        ProgramKey("I", 2): (4,),
        ProgramKey("W", 2): (3,),
        ProgramKey("I", 1): (6,),
        ProgramKey("W", 1): (5,),
        ProgramKey("W", 0): (7,),  # nobody waits for the first stage
    }


def test_a_scalar_of_all_gradients_belongs_to_the_first_stage_and_what_reads_it_waits() -> None:
    """Clipping by the norm of all gradients: each stage's part, their sum, then each stage's update."""
    graph = graph_of(
        [
            ("dot", "l0", F, (2, 0), 8),  # 3
            ("dot", "l1", F, (3, 1), 8),  # 4
            ("dot", "l1", B, (4, 3), 8),  # 5: gradient of the second parameter
            ("dot", "l1", B, (4, 1), 8),  # 6
            ("dot", "l0", B, (6, 2), 8),  # 7: gradient of the first
            ("reduce", "", U, (7,), 4),  # 8
            ("reduce", "", U, (5,), 4),  # 9
            ("add", "", U, (8, 9), 4),  # 10
            ("multiply", "", U, (7, 10), 8),  # 11
            ("multiply", "", U, (5, 10), 8),  # 12
            ("subtract", "", U, (0, 11), 8),  # 13
            ("subtract", "", U, (1, 12), 8),  # 14
        ],
        [("parameter", 8), ("parameter", 8), ("input", 8)],
        outputs=(13, 14, 4),
    )
    shapes = tuple(() if v in (8, 9, 10) else shape for v, shape in enumerate(graph.shapes))
    cut = cut_step(replace(graph, shapes=shapes), [0], {0: 13, 1: 14})
    operations = {key: program.operations for key, program in cut.programs.items() if key.kind == "U"}
    assert operations == {
        ProgramKey("U", 0, 0): (5,),
        ProgramKey("U", 1, 0): (6,),
        ProgramKey("U", 0, 1): (7, 8, 10),
        ProgramKey("U", 1, 2): (9, 11),
    }


def test_state_that_the_forward_pass_reads_goes_from_micro_batch_to_micro_batch() -> None:
    """Batch statistics do, a count of steps does not."""
    graph = graph_of(
        [
            ("dot", "l0", F, (3, 0), 8),  # 4
            ("multiply", "l0", F, (1, 1), 8),  # 5: the statistics, decayed
            ("add", "l0", F, (5, 4), 8),  # 6: … and new
            ("dot", "l1", F, (4, 4), 8),  # 7: the loss
            ("dot", "l0", B, (7, 3), 8),  # 8
            ("subtract", "", U, (0, 8), 8),  # 9
            ("add", "", U, (2, 2), 8),  # 10
        ],
        [("parameter", 8), ("state", 8), ("state", 8), ("input", 8)],
        outputs=(9, 6, 10, 7),
    )
    cut = cut_step(graph, [2], {0: 9, 1: 6, 2: 10})
    assert cut.threaded == {1: 6}
    assert 6 in cut.programs[ProgramKey("F", 0)].outputs
    assert cut.averaged() == (7, 8)
    late = replace(graph, opcodes=tuple("dot" if i == 3 else opcode for i, opcode in enumerate(graph.opcodes)))
    late.operands[6:8] = (4, 1)  # the loss, in the second stage, reads the statistics, too
    with pytest.raises(BadInput, match="state state/1 is made by stage 0 and read by stage 1"):
        cut_step(late, [2], {0: 9, 1: 6, 2: 10})


def test_cuts_outside_the_forward_pass_are_refused(three_layers: InstructionGraph) -> None:
    with pytest.raises(BadInput, match="not among the 3 forward instructions"):
        cut_step(three_layers, [2], {0: 13})
