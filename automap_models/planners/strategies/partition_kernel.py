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
        kinds: [n] of each block.
        least: [S] blocks that a rank has at least.
        seconds: [S, k, R, 3] of F, I and W of a block on a rank.
        before: [n+1, 3] seconds of the first blocks, without recomputation, on whatever rank they are shortest.
        gradients: [S, k] seconds of a block once a step.
        bytes_of: [3, k, R] of a block: state, saved from F to I, and kept from I to W.
        room: [S] for blocks, without what the ends of the model take.
        moments: [S, m, 2] micro-batches that wait for I and for W; rows of -1 are none.
        room_of: [S, m] of each moment.
        chains: [S, c, 9] of chains that end with a rank: how many F, I and W of a block before the rank, of its own,
            and after it, at least.
        constants: [S, c] seconds of a chain that are there whatever blocks a rank has; -inf is no chain.
    """

    kinds: IntArray
    least: IntArray
    seconds: FloatArray
    before: FloatArray
    gradients: FloatArray
    bytes_of: FloatArray
    moments: FloatArray
    room_of: FloatArray
    chains: FloatArray
    constants: FloatArray


@jit
def _holds(rank: int, counts: FloatArray, chain: FloatArray, tables: PartitionTables) -> float:
    """Seconds of a chain that the memory asks for beside passes without recomputation; infinite where nothing fits.

    Each moment alone frees what is too much by the recomputation of any kind of block that frees most for its seconds:
    so it is never less with more blocks.
    """
    most = 0.0
    kinds, recomputed = tables.bytes_of.shape[1], tables.bytes_of.shape[2]
    for moment in range(tables.moments.shape[1]):
        for_input, for_weight = tables.moments[rank, moment, 0], tables.moments[rank, moment, 1]
        if for_input < 0:
            break
        held, freed, rate = 0.0, 0.0, 0.0
        for kind in range(kinds):
            state, saved, kept = tables.bytes_of[0, kind], tables.bytes_of[1, kind], tables.bytes_of[2, kind]
            held += counts[kind] * (state[0] + for_input * saved[0] + for_weight * kept[0])
            best = 0.0
            for j in range(1, recomputed):
                less = for_input * (saved[0] - saved[j]) + for_weight * (kept[0] - kept[j])
                if less <= 0.0:
                    continue
                best = max(best, less)
                longer = 0.0
                for p in range(3):
                    longer += chain[3 + p] * (tables.seconds[rank, kind, j, p] - tables.seconds[rank, kind, 0, p])
                rate = max(rate, less / longer if longer > 0.0 else np.inf)
            freed += counts[kind] * best
        need = held - tables.room_of[rank, moment] * (1 + SLACK)
        if need > freed * (1 + SLACK):
            return np.inf
        if need > 0.0 and rate < np.inf:
            most = max(most, need / rate)
    return most


@jit
def _fits(step_s: float, rank: int, begin: int, stop: int, counts: FloatArray, tables: PartitionTables) -> bool:
    """Whether a rank may hold the blocks from begin to stop in a step of so many seconds."""
    for c in range(tables.constants.shape[1]):
        if tables.constants[rank, c] == -np.inf:
            continue
        chain = tables.chains[rank, c]
        seconds = tables.constants[rank, c]
        for p in range(3):
            seconds += chain[p] * tables.before[begin, p]
            seconds += chain[6 + p] * (tables.before[-1, p] - tables.before[stop, p])
        for kind in range(counts.size):
            own = tables.gradients[rank, kind]
            for p in range(3):
                own += chain[3 + p] * tables.seconds[rank, kind, 0, p]
            seconds += counts[kind] * own
        if seconds > step_s:
            return False
        if seconds + _holds(rank, counts, chain, tables) > step_s:
            return False
    return True


@jit
def can_be_cut(step_s: float, tables: PartitionTables) -> bool:
    """Whether the blocks can be cut so that every rank ends within so many seconds.

    Each rank takes as many blocks as it can: with fewer, those after it have more to do.
    """
    blocks, begin = tables.kinds.size, 0
    needed = tables.least.sum()
    for rank in range(tables.least.size):
        needed -= tables.least[rank]
        counts = np.zeros(tables.gradients.shape[1])
        stop = begin
        for _ in range(tables.least[rank]):
            if stop < blocks:
                counts[tables.kinds[stop]] += 1.0
                stop += 1
        if not _fits(step_s, rank, begin, stop, counts, tables):
            return False
        while stop < blocks - needed:
            counts[tables.kinds[stop]] += 1.0
            if not _fits(step_s, rank, begin, stop + 1, counts, tables):
                break
            stop += 1
        begin = stop
    return bool(begin == blocks)


@jit
def least_step(low_s: float, high_s: float, rounds: int, tables: PartitionTables) -> float:
    """The longest step known to be too short for any cuts, by so many halvings between two."""
    if not can_be_cut(high_s, tables):
        return high_s
    if can_be_cut(low_s, tables):
        return low_s
    for _ in range(rounds):
        middle = 0.5 * (low_s + high_s)
        if can_be_cut(middle, tables):
            high_s = middle
        else:
            low_s = middle
    return low_s
