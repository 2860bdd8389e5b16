"""A lower bound of families whose ranks hold whole blocks that follow one another, in one virtual stage or two folded.

    blocks    0 1 2 3 | 4 5 6 | 7 8 9 …              blocks    0 1 | 2 3 | 4 5 6 | 7 8 | 9 10
    rank      0         1       2                    rank      0     1     2       1     0

    rank r with the blocks from i to k, and folded from l to j, too; chain of its passes (simulate.rounds.Chain)
        n_before · seconds(… i) + n_own · seconds(i … k) + n_between · seconds(k … l)
        + n_own' · seconds(l … j) + n_after · seconds(j …) + constant ≤ T

n_before, n_between and n_after are the fewest passes of the chain on any virtual stage there. Where one rank after the
other takes blocks from the ends of what is left, it is as good in all to be left with a part of other blocks: so only
the ranges that contain no other one are gone on from, of one virtual stage a single one. That holds if a block which
another rank takes costs a chain no more than one of its own or one between, which n_before and n_after are lowered to;
n_between is lowered to n_own. A rank may always take nothing. Where blocks are left at the end, no cuts take T or less.
The longest such T is found by bisection.

What fits no memory is recomputed at the rate that frees most bytes for its seconds (partition_kernel). The linear
program (relaxation) has other chains and better recomputation, and lets blocks be divided and lie in any order: of 48
blocks in 32 ranks it says 1.5 blocks a rank where there are ranks of 2.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.schedules import SCHEDULES
from automap_models.planners.strategies.bounds import fullest_moments, usual_chains
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.planners.strategies.partition_kernel import PartitionTables, least_step

HALVINGS, FOLDED_HALVINGS = 10, 4
"""Of the range between two bounds; folded stages take a hundred times as long."""


def can_bound(schedule: str, vp: int) -> bool:
    """Whether `partition_bound` is about such families: of one virtual stage a rank, or of two folded."""
    return vp == 1 or (vp == 2 and SCHEDULES[schedule].placement == "v")


def partition_bound(costs: FamilyCosts, recompute: list[int], least: list[int], low_s: float, high_s: float) -> float:
    """No strategy of the family is shorter, seconds; `high_s` where all are longer.

    Args:
        costs: of a family whose ranks have one virtual stage, or two folded (`can_bound`).
        recompute: kinds of recomputation that blocks may have.
        least: [V] blocks that a virtual stage has at least; where they are folded it is not used.
        low_s: another bound.
        high_s: of a longer bound it is enough to know that it is as long as this.
    """
    once_s = costs.ranks.even_update_s + costs.tied_s
    tables, halvings = _tables(costs, recompute, least), FOLDED_HALVINGS if costs.strategy.vp == 2 else HALVINGS
    return max(low_s, least_step(low_s - once_s, high_s - once_s, halvings, tables) + once_s)


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
        costs.strategy.vp == 2,
        order,
        sum(least) - np.cumsum(least[: costs.strategy.pp]),
        seconds,
        before,
        np.ascontiguousarray(ranks.gradients),
        np.ascontiguousarray(bytes_of),
        moments,
        room_of,
        chains,
        constants,
    )


def _ends(costs: FamilyCosts) -> tuple[tuple[int, int], ...]:
    """The virtual stage and the layer of each end of the model."""
    first, last = costs.ranks.ends
    return (0, first), (costs.strategy.stages - 1, last)


def _moments(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, m, 2, v] and [S, m], see PartitionTables."""
    strategy, ranks = costs.strategy, costs.ranks
    fullest = fullest_moments(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    most = max(len(moments) for _, moments in fullest)
    result, room_of = np.full((strategy.pp, most, 2, strategy.vp), -1.0), np.zeros((strategy.pp, most))
    for rank, (stages, moments) in enumerate(fullest):
        result[rank, : len(moments)] = moments
        room_of[rank] = costs.room[rank]
        for stage, layer in _ends(costs):
            if stage in stages:
                waiting = np.maximum(result[rank, :, :, stages.index(stage)], 0.0)
                held = waiting @ np.array([ranks.saved[layer, 0], ranks.kept[layer, 0]])
                room_of[rank] -= ranks.state[layer] + held
    return result, room_of


def _chains(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, c, 5, 3] and [S, c], see PartitionTables."""
    strategy, ranks = costs.strategy, costs.ranks
    usual = usual_chains(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    of_ranks = [np.flatnonzero(usual.ranks == rank) for rank in range(strategy.pp)]
    most = max(of.size for of in of_ranks)
    chains, constants = np.zeros((strategy.pp, most, 5, 3)), np.full((strategy.pp, most), -np.inf)
    for rank, own in enumerate(of_ranks):
        for i, c in enumerate(own.tolist()):
            counts = usual.counts[c]
            chains[rank, i] = _around(counts, rank, strategy.pp, folded=strategy.vp == 2)
            constant = float((counts[:2] * costs.sends).sum() + counts[0] @ costs.starts)
            constant += float(usual.messages[c] @ costs.messages)
            for stage, layer in _ends(costs):
                at = costs.rank_of[stage]
                constant += float(counts[:, stage] @ ranks.passes[at, layer, 0])
                constant += float(ranks.gradients[rank, layer]) if at == rank else 0.0
            constants[rank, i] = constant
    return chains, constants


def _around(counts: FloatArray, rank: int, ranks: int, *, folded: bool) -> FloatArray:
    """[5, 3] see PartitionTables.chains.

    Args:
        counts: [3, V] of a chain.
        rank: with whose last pass it ends.
        ranks: S.
    """

    def fewest(stages: slice) -> FloatArray:
        some = counts[:, stages]
        return np.asarray(some.min(axis=1) if some.size else np.zeros(3))

    own, before = counts[:, rank], fewest(slice(rank))
    if not folded:
        between = np.minimum(fewest(slice(rank + 1, None)), own)
        return np.stack((np.minimum(before, own), own, between, np.zeros(3), np.zeros(3)))
    second = counts.shape[1] - 1 - rank
    both = np.minimum(own, counts[:, second])
    between = np.minimum(fewest(slice(rank + 1, second)), both)
    most = between if rank < ranks - 1 else both
    after = np.minimum(fewest(slice(second + 1, None)), most)
    return np.stack((np.minimum(before, most), own, between, counts[:, second], after))
