"""The price of a sharding plan: against sums term by term, and of two dense layers as worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import UNUSED
from automap_models.core.sharding_classes import MergedSums, ShardingWork
from automap_models.cost.collectives import mesh_all_reduce_s_per_byte
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


def chain_price(overs: list[int], nbytes: list[float], kept: int, axes: tuple[AxisCost, ...], on: np.ndarray) -> float:
    """All-reduce time of ((r_0 + r_1) + r_2) + …, where r_i is summed over class overs[i], step by step.

    A sum that is due waits for the addition if the other side is due along the same axis, and is then as large as the
    addition's result, here the larger of the two.
    """
    due: tuple[int, float] | None = None
    reduced: list[tuple[int, float]] = []
    for i, (over, size) in enumerate(zip(overs, nbytes, strict=True)):
        own = (int(on[over]), size) if on[over] != UNUSED else None
        if i and due and own and due[0] == own[0]:
            due = (due[0], max(due[1], own[1]))
        else:
            reduced += [part for part in (due, own) if part] if i else []
            due = own if not i else None
    reduced += [due] if due else []

    def bytes_of(axis: int, size: float) -> float:
        return size / axes[on[kept]].size if on[kept] not in (UNUSED, axis) else size

    return sum(bytes_of(axis, size) * axes[axis].s_per_byte + axes[axis].start_s for axis, size in reduced)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sizes", [(4,), (2, 4)])
def test_results_that_are_added_are_summed_once_where_one_axis_shards_all_their_classes(
    seed: int, sizes: tuple[int, ...]
) -> None:
    random = np.random.default_rng(seed)
    k, kept, overs = 5, 4, random.permutation(4).tolist()
    nbytes = [float(size) for size in random.integers(1, 99, 4)]
    terms = [Term(0.0, size, (over, kept), over, False) for over, size in zip(overs, nbytes, strict=True)]
    merged = tuple(
        MergedSums(tuple(sorted(overs[: i + 1])), (kept,), max(nbytes[:i]) + nbytes[i] - max(nbytes[: i + 1]), 1, False)
        for i in range(1, 4)
    )
    work, axes = replace(work_of(terms, k), merged=merged), axis_costs(CLUSTER, sizes, 1e-3)
    for choice in product(range(UNUSED, len(sizes)), repeat=k):
        axis_of = np.array(choice)
        if legal(terms, axis_of):
            price = sharding_price(work, axes, axis_of)
            expected = chain_price(overs, nbytes, kept, axes, axis_of)
            assert sum(price.all_reduce_s) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [2, 3, 8, 12, 16])
def test_one_axis_is_the_all_reduce_of_the_cost_model(size: int) -> None:
    assert mesh_all_reduce_s_per_byte(CLUSTER, (size,)) == pytest.approx((all_reduce_s_per_byte(CLUSTER, 0, size),))


def test_groups_that_leave_a_node_share_its_link() -> None:
    data, model = mesh_all_reduce_s_per_byte(CLUSTER, (2, 8))
    assert data == pytest.approx(8 * (2 * 1 / 2) / 2e9)  # eight pairs, each across the two nodes
    assert model == pytest.approx(2 * 7 / 8 / 100e9)  # a whole node
    model, data = mesh_all_reduce_s_per_byte(CLUSTER, (2, 4))  # eight devices, all in one node
    assert (model, data) == pytest.approx((2 * 1 / 2 / 100e9, 2 * 3 / 4 / 100e9))


def test_an_all_reduce_starts_as_often_as_a_tree_is_deep() -> None:
    assert [axis.start_s for axis in axis_costs(CLUSTER, [2, 8], 1e-6)] == pytest.approx([2e-6, 6e-6])
