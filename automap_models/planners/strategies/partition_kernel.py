"""The loops of planners.strategies.partitions, compiled by numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray

SLACK = 1e-9
"""Relative; what does not fit by less counts as fitting."""


class PartitionTables(NamedTuple):
    """What the layers of n blocks in S ranks take; k kinds of blocks, R of recomputation, c chains, m moments.

    Attributes:
        folded: whether ranks have two virtual stages each, the second ones in reverse order.
        kinds: [n] of each block.
        needed: [S] blocks that the ranks after one have at least.
        seconds: [S, k, R, 3] of F, I and W of a block on a rank.
        before: [n+1, 3] seconds of the first blocks, without recomputation, on whatever rank they are shortest.
        gradients: [S, k] seconds of a block once a step.
        bytes_of: [3, k, R] of a block: state, saved from F to I, and kept from I to W.
        moments: [S, m, 2, v] micro-batches that wait for I and for W in each virtual stage; rows of -1 are none.
        room_of: [S, m] bytes for blocks at each moment.
        chains: [S, c, 5, 3] of chains that end with a rank: how many F, I and W of a block before the rank's first
            virtual stage, in it, between its two, in its second one, and after that, at least.
        constants: [S, c] seconds of a chain that are there whatever blocks a rank has; -inf is no chain.
    """

    folded: bool
    kinds: IntArray
    needed: IntArray
    seconds: FloatArray
    before: FloatArray
    gradients: FloatArray
    bytes_of: FloatArray
    moments: FloatArray
    room_of: FloatArray
    chains: FloatArray
    constants: FloatArray


class _Sums(NamedTuple):
    """What a rank's blocks add up from; v virtual stages.

    Attributes:
        own: [S, c, v, k] seconds that a block adds to a chain in a virtual stage of the rank, without recomputation.
        around: [S, c, 3, n+1] seconds of the first blocks by the chain's passes before, between and after its stages.
        held: [S, m, v, k] bytes of a block at a moment, without recomputation.
        freed: [S, m, v, k] how many of them recomputation frees at most.
        rate: [S, m, c] bytes that it frees for a second of a chain, at most.
    """

    own: FloatArray
    around: FloatArray
    held: FloatArray
    freed: FloatArray
    rate: FloatArray


OWN, AROUND = (1, 3), (0, 2, 4)
"""Where in PartitionTables.chains a rank's virtual stages are, and what is before, between and after them."""


@jit
def _recomputation(rank: int, moment: int, v: int, kind: int, tables: PartitionTables, rate: FloatArray) -> float:
    """Bytes that recomputing a block frees at most.

    Args:
        rate: [c] bytes that recomputation frees for a second of a chain; it rises to that of this block.
    """
    for_input, for_weight = tables.moments[rank, moment, 0, v], tables.moments[rank, moment, 1, v]
    bytes_of, most = tables.bytes_of, 0.0
    for j in range(1, bytes_of.shape[2]):
        less = for_input * (bytes_of[1, kind, 0] - bytes_of[1, kind, j])
        less += for_weight * (bytes_of[2, kind, 0] - bytes_of[2, kind, j])
        if less <= 0.0:
            continue
        most = max(most, less)
        for c in range(rate.size):
            longer = 0.0
            for p in range(3):
                more = tables.seconds[rank, kind, j, p] - tables.seconds[rank, kind, 0, p]
                longer += tables.chains[rank, c, OWN[v], p] * more
            rate[c] = max(rate[c], less / longer if longer > 0.0 else np.inf)
    return most


@jit
def sums_of(tables: PartitionTables) -> _Sums:
    """What adds up over the blocks of a model on each rank: worked out once for all steps that are asked about."""
    ranks, chains = tables.constants.shape
    stages, moments = 2 if tables.folded else 1, tables.moments.shape[1]
    kinds, blocks = tables.bytes_of.shape[1], tables.kinds.size
    own, around = np.zeros((ranks, chains, stages, kinds)), np.zeros((ranks, chains, 3, blocks + 1))
    held, freed = np.zeros((ranks, moments, stages, kinds)), np.zeros((ranks, moments, stages, kinds))
    rate = np.zeros((ranks, moments, chains))
    for rank in range(ranks):
        for c in range(chains):
            for part in range(3):
                for block in range(blocks + 1):
                    for p in range(3):
                        passes = tables.chains[rank, c, AROUND[part], p]
                        around[rank, c, part, block] += passes * tables.before[block, p]
            for v in range(stages):
                for kind in range(kinds):
                    own[rank, c, v, kind] = tables.gradients[rank, kind]
                    for p in range(3):
                        own[rank, c, v, kind] += tables.chains[rank, c, OWN[v], p] * tables.seconds[rank, kind, 0, p]
        for moment in range(moments):
            for v in range(stages):
                for_input, for_weight = tables.moments[rank, moment, 0, v], tables.moments[rank, moment, 1, v]
                for kind in range(kinds):
                    of_block = tables.bytes_of[:, kind, 0]
                    held[rank, moment, v, kind] = of_block[0] + for_input * of_block[1] + for_weight * of_block[2]
                    most = _recomputation(rank, moment, v, kind, tables, rate[rank, moment])
                    freed[rank, moment, v, kind] = most
    return _Sums(own, around, held, freed, rate)


@jit
def _seconds(rank: int, c: int, ends: IntArray, counts: FloatArray, sums: _Sums) -> float:
    """Of a chain without recomputation, but for its constant; arguments as of `_fits`."""
    around = sums.around[rank, c]
    seconds = around[0, ends[0]] + around[1, ends[2]] - around[1, ends[1]]
    seconds += around[2, around.shape[1] - 1] - around[2, ends[3]]
    for v in range(counts.shape[0]):
        for kind in range(counts.shape[1]):
            seconds += counts[v, kind] * sums.own[rank, c, v, kind]
    return float(seconds)


@jit
def _fits(step_s: float, rank: int, ends: IntArray, counts: FloatArray, tables: PartitionTables, sums: _Sums) -> bool:
    """Whether a rank may hold some blocks in a step of so many seconds.

    Each moment alone frees what is too much by the recomputation of any kind of block that frees most for its seconds:
    so it never takes less with more blocks.

    Args:
        ends: [4] it holds the blocks from the first to the second, and from the third to the fourth.
        counts: [v, k] of these.
    """
    constants = tables.constants[rank]
    for c in range(constants.size):
        if constants[c] + _seconds(rank, c, ends, counts, sums) > step_s:
            return False
    for moment in range(tables.moments.shape[1]):
        if tables.moments[rank, moment, 0, 0] < 0:
            break
        need, freed = -tables.room_of[rank, moment] * (1 + SLACK), 0.0
        for v in range(counts.shape[0]):
            for kind in range(counts.shape[1]):
                need += counts[v, kind] * sums.held[rank, moment, v, kind]
                freed += counts[v, kind] * sums.freed[rank, moment, v, kind]
        if need > freed * (1 + SLACK):
            return False
        for c in range(constants.size if need > 0.0 else 0):
            rate = sums.rate[rank, moment, c]
            if rate < np.inf and constants[c] + _seconds(rank, c, ends, counts, sums) + need / rate > step_s:
                return False
    return True


@jit
def _extend(step_s: float, rank: int, i: int, j: int, least: IntArray, tables: PartitionTables, sums: _Sums) -> None:
    """What is left after a rank that takes blocks from both ends of those from i to j.

    Args:
        least: [n+1] by where the blocks that are left begin, the least place where they end; it falls to what is found
            here. A rank that takes nothing counts as fitting.
    """
    counts, kinds, needed = np.zeros((2 if tables.folded else 1, tables.gradients.shape[1])), tables.kinds, 0
    if not tables.folded:
        needed = tables.needed[rank]
    ends = np.empty(4, np.int64)
    ends[0] = ends[1] = i
    ends[2] = ends[3] = j
    least[i] = min(least[i], j)
    while tables.folded and ends[2] > ends[1]:
        ends[2] -= 1
        counts[1, kinds[ends[2]]] += 1.0
        if not _fits(step_s, rank, ends, counts, tables, sums):
            counts[1, kinds[ends[2]]] -= 1.0
            ends[2] += 1
            break
        least[i] = min(least[i], ends[2])
    while ends[1] < ends[2] - needed:
        counts[0, kinds[ends[1]]] += 1.0
        ends[1] += 1
        while not _fits(step_s, rank, ends, counts, tables, sums):
            if ends[2] == j:
                return
            counts[1, kinds[ends[2]]] -= 1.0
            ends[2] += 1
        least[ends[1]] = min(least[ends[1]], ends[2])


@jit
def _most(step_s: float, rank: int, tables: PartitionTables, sums: _Sums) -> int:
    """So many blocks at most a rank may hold in a step of so many seconds: those of the least kind, nothing around."""
    chains, rows = tables.constants.shape[1], tables.constants.shape[1] + tables.moments.shape[1]
    stages, blocks = sums.own.shape[2], tables.kinds.size
    limits, of_block = np.zeros(rows), np.zeros((rows, 2))
    for c in range(chains):
        limits[c] = step_s - tables.constants[rank, c]
        for v in range(stages):
            of_block[c, v] = np.inf
            for kind in range(sums.own.shape[3]):
                of_block[c, v] = min(of_block[c, v], sums.own[rank, c, v, kind])
    for moment in range(rows - chains):
        if tables.moments[rank, moment, 0, 0] >= 0:
            limits[chains + moment] = tables.room_of[rank, moment]
            for v in range(stages):
                least = np.inf
                for kind in range(sums.own.shape[3]):
                    kept = sums.held[rank, moment, v, kind] - (1 + SLACK) * sums.freed[rank, moment, v, kind]
                    least = min(least, kept)
                of_block[chains + moment, v] = max(least, 0.0)
    most = 0
    for first in range(blocks + 1):
        second = float(blocks)
        for row in range(rows):
            left = limits[row] + SLACK * abs(limits[row]) - first * of_block[row, 0]
            if left < 0.0:
                return most
            if of_block[row, 1] > 0.0:
                second = min(second, left / of_block[row, 1])
        most = max(most, first + (int(second) if stages > 1 else 0))
    return most


@jit
def can_be_cut(step_s: float, tables: PartitionTables, sums: _Sums) -> bool:
    """Whether the blocks can be cut so that every rank ends within so many seconds."""
    blocks, ranks = tables.kinds.size, tables.gradients.shape[0]
    later = np.zeros(ranks, dtype=np.int64)
    together = 0
    for rank in range(ranks - 1, -1, -1):
        later[rank] = together
        together += _most(step_s, rank, tables, sums)
    if together < blocks:
        return False
    least, after = np.empty(blocks + 1, np.int64), np.empty(blocks + 1, np.int64)
    for i in range(blocks + 1):
        least[i] = blocks + 1 if i else blocks
    for rank in range(ranks):
        for i in range(blocks + 1):
            after[i] = blocks + 1
        for i in range(blocks + 1):
            if least[i] <= blocks:
                _extend(step_s, rank, i, least[i], after, tables, sums)
        fewest = blocks + 1
        for k in range(blocks, -1, -1):  # what is part of other blocks that may be left is as good in all
            if after[k] <= k:
                return True
            if after[k] >= fewest or after[k] - k > later[rank]:
                after[k] = blocks + 1
            fewest = min(fewest, after[k])
        least, after = after, least
    return False
