"""Topological orders and cycles of random graphs; orders with little crossing against brute force over all orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.dag import (
    crossing_bytes,
    find_cycle,
    order_with_little_crossing,
    predecessors_of,
    topological_order,
)


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


Dag = tuple[list[float], list[list[int]]]


@st.composite
def _sized_dags(draw: st.DrawFn, max_nodes: int) -> Dag:
    successors = draw(_dags(max_nodes))
    sizes = draw(st.lists(st.integers(0, 20), min_size=len(successors), max_size=len(successors)))
    return [float(size) for size in sizes], successors


def _legal(order: list[int], successors: list[list[int]]) -> bool:
    return sorted(order) == list(range(len(successors))) and all(
        order.index(a) < order.index(b) for a, after in enumerate(successors) for b in after
    )


def _all_orders(successors: list[list[int]]) -> Iterator[list[int]]:
    for order in itertools.permutations(range(len(successors))):
        if _legal(list(order), successors):
            yield list(order)


def _crossing_by_sets(order: list[int], sizes: list[float], successors: list[list[int]]) -> list[float]:
    """Straight from the definition: nodes before the cut with a consumer after it, each once."""
    return [
        sum(sizes[node] for node in order[: i + 1] if set(successors[node]) & set(order[i + 1 :]))
        for i in range(len(order))
    ]


@given(_sized_dags(max_nodes=6))
def test_no_order_has_fewer_crossing_bytes(dag: Dag) -> None:
    sizes, successors = dag
    best = min(sum(_crossing_by_sets(order, sizes, successors)) for order in _all_orders(successors))
    order = order_with_little_crossing(sizes, successors)
    assert _legal(order, successors)
    assert sum(_crossing_by_sets(order, sizes, successors)) == best


@given(_sized_dags(max_nodes=10))
def test_crossing_bytes_are_what_the_definition_says(dag: Dag) -> None:
    sizes, successors = dag
    order = order_with_little_crossing(sizes, successors)
    assert _legal(order, successors)
    assert crossing_bytes(order, sizes, successors) == _crossing_by_sets(order, sizes, successors)


@given(_sized_dags(max_nodes=25), st.integers(1, 200))
def test_a_search_without_time_is_still_legal_and_no_worse_than_depth_first(dag: Dag, work: int) -> None:
    sizes, successors = dag
    order = order_with_little_crossing(sizes, successors, work)
    assert _legal(order, successors)
    depth_first = _recursive_depth_first(successors)
    assert _legal(depth_first, successors)
    assert sum(_crossing_by_sets(order, sizes, successors)) <= sum(_crossing_by_sets(depth_first, sizes, successors))


def _recursive_depth_first(successors: list[list[int]]) -> list[int]:
    order: list[int] = []

    def visit(node: int) -> None:
        if node not in order:
            for before, after in enumerate(successors):
                if node in after:
                    visit(before)
            order.append(node)

    for node, after in enumerate(successors):
        if not after:
            visit(node)
    return order


def test_one_branch_is_finished_before_the_other_is_begun() -> None:
    """Two branches of large tensors that end in small ones: breadth-first keeps both large ones alive at a time."""
    #   0 ─ 1 ─ 2 ─┐
    #   └── 3 ─ 4 ─ 5
    sizes = [1.0, 100.0, 1.0, 100.0, 1.0, 1.0]
    successors = [[1, 3], [2], [5], [4], [5], []]
    assert order_with_little_crossing(sizes, successors) == [0, 1, 2, 3, 4, 5]
    assert sum(crossing_bytes([0, 1, 3, 2, 4, 5], sizes, successors)) > sum(
        crossing_bytes([0, 1, 2, 3, 4, 5], sizes, successors)
    )


def test_bytes_that_are_dead_leave_no_rounding_error_behind() -> None:
    """0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is not zero in floating point; the last cut must be."""
    assert crossing_bytes([0, 1, 2, 3], [0.1, 0.2, 0.3, 5.0], [[3], [3], [3], []])[-1] == 0.0


def test_ten_thousand_nodes_in_a_row_need_no_recursion() -> None:
    n = 10_000
    successors = [[i + 1] for i in range(n - 1)] + [[]]
    assert order_with_little_crossing([1.0] * n, successors) == list(range(n))
