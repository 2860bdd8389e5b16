"""A, W and stash against brute force on random graphs, and by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.hlo.liveness import VIEWS, Liveness

F, B = Phase.FORWARD, Phase.BACKWARD


class Naive:
    """The definitions of liveness.py, spelled out one value and one cut at a time."""

    def __init__(self, graph: InstructionGraph) -> None:
        self.graph = graph
        self.arguments = len(graph.arguments)
        offsets = graph.operand_offsets
        self.reads = [graph.operands[offsets[i] : offsets[i + 1]].tolist() for i in range(len(graph))]
        self.forward = [i for i in range(len(graph)) if graph.phases[i] == F]

    def storage(self, value: int) -> int:
        i = value - self.arguments
        return self.storage(self.reads[i][0]) if i >= 0 and self.graph.opcodes[i] in VIEWS else value

    def from_arguments(self, value: int) -> bool:
        i = value - self.arguments
        return i < 0 or any(self.from_arguments(v) for v in self.reads[i])

    def activations(self, producers: list[int], readers: list[int]) -> set[int]:
        read = {self.storage(v) for i in readers for v in self.reads[i]}
        return {v for v in read if v - self.arguments in producers and self.from_arguments(v)}

    def bytes_of(self, values: set[int]) -> float:
        return float(sum(self.graph.value_bytes[v] for v in values))


@settings(deadline=None)
@given(data=st.data())
def test_every_activation_counts_once_at_every_cut_it_crosses(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    naive, liveness = Naive(graph), Liveness(graph)
    forward = naive.forward
    assert liveness.forward.tolist() == forward
    expected = [naive.bytes_of(naive.activations(forward[: k + 1], forward[k + 1 :])) for k in range(len(forward))]
    assert liveness.crossing().tolist() == expected
    assert expected[-1] == 0.0


@settings(deadline=None)
@given(data=st.data())
def test_a_parameter_is_shared_by_the_instructions_that_use_it_or_a_view_of_it(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    naive = Naive(graph)
    expected = []
    for value, argument in enumerate(graph.arguments):
        readers = [
            k
            for k, i in enumerate(naive.forward)
            if graph.opcodes[i] not in VIEWS and value in {naive.storage(v) for v in naive.reads[i]}
        ]
        if argument.kind == "parameter" and len(readers) > 1:
            first_use = min(k for k, i in enumerate(naive.forward) if value in naive.reads[i])
            expected.append((value, (first_use, *readers[1:])))
    assert list(Liveness(graph).trained.shared) == expected


@settings(deadline=None)
@given(data=st.data())
def test_every_activation_that_the_backward_pass_reads_is_kept_once_where_it_is_made(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    naive = Naive(graph)
    backward = [i for i in range(len(graph)) if graph.phases[i] == B]
    expected = [naive.bytes_of(naive.activations([i], backward)) for i in naive.forward]
    assert Liveness(graph).keeping().tolist() == expected


@settings(deadline=None)
@given(data=st.data())
def test_parameters_are_first_used_where_a_search_finds_them(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    naive = Naive(graph)
    for v in range(naive.arguments):
        users = [k for k, i in enumerate(naive.forward) if v in naive.reads[i]]
        assert Liveness(graph).first_use[v] == min(users, default=-1)


def test_a_residual_counts_beside_the_branch_and_a_view_as_what_it_shows(
    by_hand: Callable[..., InstructionGraph],
) -> None:
    P, X = 0, 1
    graph = by_hand(
        [
            ("dot", "a", F, [P, X], 100),  # value 2: the residual
            ("reshape", "a", F, [2], 100),  # value 3 shows it
            ("dot", "b", F, [3, P], 40),  # value 4: the branch
            ("constant", "b", F, [], 7),  # value 5: a mask
            ("add", "b", F, [4, 5], 40),  # value 6
            ("add", "c", F, [2, 6], 100),  # value 7
            ("mul", "c", B, [7, 4, 5, P], 8),
        ],
        [("parameter", 1000), ("input", 500)],
    )
    liveness = Liveness(graph)
    assert liveness.crossing().tolist() == [100, 100, 140, 140, 140, 0]
    assert liveness.keeping().tolist() == [0, 0, 40, 0, 0, 100]
    assert np.array_equal(liveness.first_use, [0, 0])


def test_parts_of_a_parameter_count_where_they_are_used_and_cross_nothing(
    by_hand: Callable[..., InstructionGraph],
) -> None:
    """Two layers of 8 of a stack of three; the first runs twice, so that it is shared, and nothing uses the third."""
    graph = by_hand(
        [
            ("part", "a", F, [0], 8),
            ("dot", "a", F, [1, 2], 4),
            ("part", "b", F, [0], 8),
            ("dot", "b", F, [3, 4], 4),
            ("dot", "c", F, [5, 2], 4),
            ("mul", "c", B, [6, 2], 4),
        ],
        [("parameter", 24), ("input", 4)],
    )
    liveness = Liveness(graph)
    assert liveness.trained.first_using(graph.value_bytes).tolist() == [8 + 8, 0, 8, 0, 0]
    assert liveness.trained.first_using(graph.value_bytes / 2).tolist() == [4 + 4, 0, 4, 0, 0]
    assert liveness.trained.shared == ((2, (0, 4)),)
    assert liveness.crossing().tolist() == [0, 4, 4, 4, 0]
    assert liveness.keeping().tolist() == [0, 0, 0, 0, 4]


def test_overlapping_parts_are_held_as_the_whole_parameter(by_hand: Callable[..., InstructionGraph]) -> None:
    graph = by_hand(
        [("part", "a", F, [0], 8), ("dot", "a", F, [1], 4), ("part", "b", F, [0], 8), ("dot", "b", F, [2, 3], 4)],
        [("parameter", 12)],
    )
    liveness = Liveness(graph)
    assert liveness.trained.first_using(graph.value_bytes).tolist() == [12, 0, 0, 0]
    assert liveness.trained.shared == ((0, (0, 3)),)
