"""Cycles and topological orders of small graphs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.dag import find_cycle, predecessors_of, topological_order


@st.composite
def _dags(draw: st.DrawFn, max_nodes: int) -> list[list[int]]:
    n = draw(st.integers(1, max_nodes))
    pairs = list(itertools.combinations(range(n), 2))
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    relabel = draw(st.permutations(range(n)))
    successors: list[list[int]] = [[] for _ in range(n)]
    for a, b in chosen:
        successors[relabel[a]].append(relabel[b])
    return [sorted(after) for after in successors]


@given(_dags(max_nodes=12))
def test_each_node_comes_after_its_predecessors(successors: list[list[int]]) -> None:
    order = topological_order(successors)
    assert sorted(order) == list(range(len(successors)))
    for node, before in enumerate(predecessors_of(successors)):
        assert all(order.index(p) < order.index(node) for p in before)


def test_of_all_orders_the_smallest_comes_first() -> None:
    successors = [[], [0], [0], [2]]
    legal = [
        o for o in itertools.permutations(range(4)) if o.index(0) > o.index(1) and o.index(0) > o.index(2) > o.index(3)
    ]
    assert tuple(topological_order(successors)) == min(legal)


def test_nodes_on_a_cycle_and_behind_it_have_no_place_in_the_order() -> None:
    assert topological_order([[1], [2], [1, 3], [], []]) == [0, 4]


@pytest.mark.parametrize(
    ("successors", "cycle"),
    [
        ([[1], [2], []], None),
        ([[]], None),
        ([[0]], [0]),
        ([[1], [0]], [0, 1]),
        ([[1], [2], [3, 4], [1], []], [1, 2, 3]),
        ([[3], [], [0], [1, 2]], [0, 3, 2]),
    ],
)
def test_a_cycle_is_found_in_the_direction_of_its_edges(successors: list[list[int]], cycle: list[int] | None) -> None:
    assert find_cycle(successors) == cycle


@given(_dags(max_nodes=12))
def test_a_dag_has_no_cycle_and_one_edge_back_makes_one(successors: list[list[int]]) -> None:
    assert find_cycle(successors) is None
    for node, after in enumerate(successors):
        if after:
            closed = [list(others) for others in successors]
            closed[after[0]].append(node)
            cycle = find_cycle(closed)
            assert cycle is not None
            assert all(b in closed[a] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
