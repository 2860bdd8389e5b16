"""A lower bound of families with one virtual stage a rank, whose ranks hold whole blocks that follow one another.

    blocks    0 1 2 3 | 4 5 6 | 7 8 9 …
    rank      0         1       2

    rank r with the blocks from i to j, chain of its passes (simulate.rounds.Chain)
        n_before · seconds(0 … i) + n_own · seconds(i … j) + n_after · seconds(j …) + constant ≤ T

n_before and n_after are the fewest passes of the chain on any rank before and after r, and no more than its own. So a
rank that can have the blocks from i to j can have those from i' > i to j, and fewer. Therefore the first rank takes as
many blocks as it can in T, the next one as many of those left, and so on: where blocks are left at the end, no cuts
take T or less. The longest such T is found by bisection.

What fits no memory is recomputed at the rate that frees most bytes for its seconds (partition_kernel). The linear
program (relaxation) has other chains and better recomputation, and lets blocks be divided and lie in any order: of 48
blocks in 32 ranks it says 1.5 blocks a rank where there are ranks of 2.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.planners.strategies.bounds import fullest_moments, usual_chains
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.planners.strategies.partition_kernel import PartitionTables, least_step

HALVINGS = 14
"""Of the range between two bounds."""


def partition_bound(costs: FamilyCosts, recompute: list[int], least: list[int], low_s: float, high_s: float) -> float:
    """No strategy of the family is shorter, seconds; `high_s` where all are longer.

    Args:
        costs: of a family with one virtual stage a rank.
        recompute: kinds of recomputation that blocks may have.
        least: [S] blocks that a rank has at least.
        low_s: another bound.
        high_s: of a longer bound it is enough to know that it is as long as this.
    """
    once_s = costs.ranks.even_update_s + costs.tied_s
    tables = _tables(costs, recompute, least)
    return max(low_s, least_step(low_s - once_s, high_s - once_s, HALVINGS, tables) + once_s)


def _tables(costs: FamilyCosts, recompute: list[int], least: list[int]) -> PartitionTables:
    ranks = costs.ranks
    columns = [0, *(kind for kind in recompute if kind)]
    order = np.array(ranks.work.order[1:-1], dtype=np.int64)
    seconds = np.ascontiguousarray(ranks.passes[:, :, columns])
    if 0 not in recompute:  # the least that blocks may do is what all of them do
        seconds[:, :, 0] = seconds[:, :, 1:].min(axis=2)
    shortest = seconds[:, :, 0].min(axis=0)
    before = np.concatenate([np.zeros((1, 3)), np.cumsum(shortest[order], axis=0)])
    bytes_of = np.stack(
        [
            np.broadcast_to(ranks.state[:, None], (ranks.state.size, len(columns))),
            ranks.saved[:, columns],
            ranks.kept[:, columns],
        ]
    )
    if 0 not in recompute:
        bytes_of[1:, :, 0] = bytes_of[1:, :, 1:].min(axis=2)
    moments, room_of = _moments(costs)
    chains, constants = _chains(costs)
    return PartitionTables(
        order,
        np.array(least, dtype=np.int64),
        seconds,
        before,
        np.ascontiguousarray(ranks.gradients),
        np.ascontiguousarray(bytes_of),
        moments,
        room_of,
        chains,
        constants,
    )


def _ends(costs: FamilyCosts, rank: int) -> list[int]:
    """Layers of a rank beside blocks."""
    first, last = costs.ranks.ends
    return [first] * (rank == 0) + [last] * (rank == costs.strategy.pp - 1)


def _moments(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, m, 2] and [S, m], see PartitionTables."""
    strategy, ranks = costs.strategy, costs.ranks
    fullest = fullest_moments(strategy.schedule, strategy.pp, strategy.micro_batches, 1)
    most = max(len(moments) for _, moments in fullest)
    result, room_of = np.full((strategy.pp, most, 2), -1.0), np.zeros((strategy.pp, most))
    for rank, (_, moments) in enumerate(fullest):
        result[rank, : len(moments)] = moments[:, :, 0]
        room = np.full(most, costs.room[rank])
        for layer in _ends(costs, rank):
            waiting = np.maximum(result[rank], 0.0)
            room -= ranks.state[layer] + waiting @ np.array([ranks.saved[layer, 0], ranks.kept[layer, 0]])
        room_of[rank] = room
    return result, room_of


def _chains(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, c, 9] and [S, c], see PartitionTables."""
    strategy, ranks = costs.strategy, costs.ranks
    usual = usual_chains(strategy.schedule, strategy.pp, strategy.micro_batches, 1)
    of_ranks = [np.flatnonzero(usual.ranks == rank) for rank in range(strategy.pp)]
    most = max(of.size for of in of_ranks)
    chains, constants = np.zeros((strategy.pp, most, 9)), np.full((strategy.pp, most), -np.inf)
    for rank, own in enumerate(of_ranks):
        for i, c in enumerate(own.tolist()):
            counts = usual.counts[c]
            before, after = counts[:, :rank], counts[:, rank + 1 :]
            fewest = [of.min(axis=1) if of.size else np.zeros(3) for of in (before, after)]
            mine = counts[:, rank]
            chains[rank, i] = [*np.minimum(fewest[0], mine), *mine, *np.minimum(fewest[1], mine)]
            constant = float((counts[:2] * costs.sends).sum() + counts[0] @ costs.starts)
            constant += float(usual.messages[c] @ costs.messages)
            for stage, layer in ((0, ranks.ends.first), (strategy.pp - 1, ranks.ends.last)):
                constant += float(counts[:, stage] @ ranks.passes[stage, layer, 0])
            constant += sum(float(ranks.gradients[rank, layer]) for layer in _ends(costs, rank))
            constants[rank, i] = constant
    return chains, constants
