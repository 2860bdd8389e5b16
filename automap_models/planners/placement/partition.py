"""Balanced parts of an undirected graph with little weight between them, by METIS (Karypis & Kumar, 1998)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np
from scipy.sparse import coo_array, csr_array

from automap_models.core.placement import FloatArray, IntArray
from automap_models.errors import BadInput

SEEDS = 4
"""Seeds of METIS, each bisected and refined at once."""
RESOLUTION = 10_000
"""METIS counts in whole numbers: the largest weight of an edge, and that of an even share of the time."""


def symmetric(ends: IntArray, weight: FloatArray, size: int) -> csr_array:
    """[size, size] weights between two nodes, either way, without a diagonal.

    Args:
        ends: [2, e] nodes that the edges join; an edge from a node to itself does not count.
        weight: [e] of each edge.
        size: how many nodes there are.
    """
    apart = ends[0] != ends[1]
    one_way = coo_array((weight[apart], (ends[0][apart], ends[1][apart])), shape=(size, size))
    both = csr_array((one_way + one_way.T).tocsr())
    both.sum_duplicates()
    return both


def metis_parts(graph: csr_array, weight: FloatArray, parts: int, seed: int, *, recursive: bool = False) -> IntArray:
    """[m] part of each node.

    Args:
        graph: [m, m] symmetric weights of the edges.
        weight: [m] of each node, of which every part is to have about as much; whole numbers from 1 on are told apart.
        parts: how many there are to be.
        seed: of the draws.
        recursive: bisect again and again instead of refining all parts at once.

    Raises:
        BadInput: pymetis is not installed.
    """
    try:
        pymetis = import_module("pymetis")
    except ImportError:
        do = "pip install 'automap-models[place]'"
        raise BadInput("pymetis is not installed", where="planner of placements", do=do) from None
    if parts < 2 or len(weight) <= parts:
        return np.arange(len(weight)) % max(parts, 1)
    heaviest = max(float(graph.data.max(initial=0.0)), np.finfo(float).tiny)
    _, part = pymetis.part_graph(
        parts,
        xadj=graph.indptr.tolist(),
        adjncy=graph.indices.tolist(),
        vweights=np.maximum(weight, 1).astype(np.int64).tolist(),
        eweights=np.maximum(RESOLUTION * graph.data / heaviest, 1).astype(np.int64).tolist(),
        recursive=recursive,
        options=pymetis.Options(seed=seed),
    )
    return np.array(part, dtype=np.int64)


def several_parts(graph: csr_array, weight: FloatArray, parts: int, seed: int) -> Iterator[IntArray]:
    """[m] `metis_parts` of several seeds, each refined at once and bisected."""
    for turn in range(2 * SEEDS if parts > 1 else 1):
        yield metis_parts(graph, weight, parts, seed + turn // 2, recursive=bool(turn % 2))


def numbered_along(place: FloatArray, parts: IntArray, count: int) -> IntArray:
    """[m] the parts renumbered by the mean place of their nodes, so that they follow an order.

    Args:
        place: [m] of each node in that order.
        parts: [m] part of each node.
        count: how many parts there are.
    """
    total, nodes = np.bincount(parts, weights=place, minlength=count), np.bincount(parts, minlength=count)
    mean = np.where(nodes > 0, total / np.maximum(nodes, 1), np.inf)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(count)
    return rank[parts]
