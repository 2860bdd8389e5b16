"""The price of a sharding plan: against sums term by term, and of two dense layers as worked out by hand."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import UNUSED
from automap_models.core.sharding_classes import ShardingWork
from automap_models.cost.collectives import all_reduce_s_per_byte, mesh_all_reduce_s_per_byte
from automap_models.cost.sharding import AxisCost, axis_costs, sharding_price

CLUSTER = Cluster(2, 8, intra=100e9, inter=2e9, memory=16e9, name="pair")


class Term(NamedTuple):
    """An instruction: its time, bytes kept of its result, classes, and the class that it sums over (-1: none)."""

    time_s: float
    nbytes: float
    classes: tuple[int, ...]
    over: int
    gradient: bool


def draw_terms(random: np.random.Generator, k: int) -> list[Term]:
    terms = []
    for _ in range(30):
        classes = tuple(sorted(random.choice(k, int(random.integers(0, min(3, k) + 1)), replace=False).tolist()))
        over = int(random.choice(classes)) if classes and random.random() < 0.5 else -1
        terms.append(Term(random.random(), float(random.integers(1, 99)), classes, over, bool(random.random() < 0.5)))
    return terms


def work_of(terms: list[Term], k: int) -> ShardingWork:
    compute, held, activations, gradients = np.zeros((4, k, k))
    starts = np.zeros(k)
    for term in terms:
        kept = [c for c in term.classes if c != term.over]
        for i, j in product(term.classes, repeat=2):
            compute[i, j] += term.time_s
        for i, j in product(kept, repeat=2):
            held[i, j] += term.nbytes
        if term.over >= 0:
            sums = gradients if term.gradient else activations
            sums[term.over, [term.over, *kept]] += term.nbytes
            starts[term.over] += not term.gradient
    total_s, total_bytes = sum(t.time_s for t in terms), sum(t.nbytes for t in terms)
    return ShardingWork(total_s, 0.25, compute, total_bytes, held, activations, gradients, starts)


def term_by_term(terms: list[Term], axes: tuple[AxisCost, ...], axis_of: np.ndarray) -> tuple[float, float, float]:
    """Compute and all-reduce times and memory, each instruction on its own."""

    def parts(classes: list[int]) -> float:
        return math.prod(axes[axis_of[c]].size for c in classes if axis_of[c] != UNUSED)

    compute_s, reduce_s, memory = 0.25, 0.0, 0.0
    for term in terms:
        kept = [c for c in term.classes if c != term.over]
        compute_s += term.time_s / parts(list(term.classes))
        memory += term.nbytes / parts(kept)
        if term.over >= 0 and axis_of[term.over] != UNUSED:
            axis = axes[axis_of[term.over]]
            reduce_s += term.nbytes / parts(kept) * axis.s_per_byte + axis.start_s * (not term.gradient)
    return compute_s, reduce_s, memory


def legal(terms: list[Term], axis_of: np.ndarray) -> bool:
    """Whether every instruction has at most one class on each axis."""
    used = [[axis_of[c] for c in term.classes if axis_of[c] != UNUSED] for term in terms]
    return all(len(set(axes)) == len(axes) for axes in used)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sizes", [(4,), (2, 4)])
def test_the_price_is_the_sum_over_instructions_for_every_legal_choice(seed: int, sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    terms = draw_terms(random, k := 5)
    work, axes, checked = work_of(terms, k), axis_costs(CLUSTER, sizes, 1e-3), 0
    for choice in product(range(UNUSED, len(sizes)), repeat=k):
        axis_of = np.array(choice)
        if legal(terms, axis_of):
            price = sharding_price(work, axes, axis_of)
            figures = price.compute_s, sum(price.all_reduce_s), price.memory_bytes
            assert figures == pytest.approx(term_by_term(terms, axes, axis_of), rel=1e-12)
            checked += 1
    assert checked > 1


@pytest.mark.parametrize("size", [2, 3, 8, 12, 16])
def test_one_axis_is_the_all_reduce_of_the_cost_model(size: int) -> None:
    assert mesh_all_reduce_s_per_byte(CLUSTER, [size]) == pytest.approx((all_reduce_s_per_byte(CLUSTER, 0, size),))


def test_groups_that_leave_a_node_share_its_link() -> None:
    data, model = mesh_all_reduce_s_per_byte(CLUSTER, [2, 8])
    assert data == pytest.approx(8 * (2 * 1 / 2) / 2e9)  # eight pairs, each across the two nodes
    assert model == pytest.approx(2 * 7 / 8 / 100e9)  # a whole node
    model, data = mesh_all_reduce_s_per_byte(CLUSTER, [2, 4])  # eight devices, all in one node
    assert (model, data) == pytest.approx((2 * 1 / 2 / 100e9, 2 * 3 / 4 / 100e9))


def test_an_all_reduce_starts_as_often_as_a_tree_is_deep() -> None:
    assert [axis.start_s for axis in axis_costs(CLUSTER, [2, 8], 1e-6)] == pytest.approx([2e-6, 6e-6])
