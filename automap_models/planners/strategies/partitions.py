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

from functools import lru_cache

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.schedules import SCHEDULES
from automap_models.planners import effort
from automap_models.planners.strategies.bisection import Bisection
from automap_models.planners.strategies.bounds import UsualChains, fullest_moments, usual_chains
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.planners.strategies.partition_kernel import PartitionTables, can_be_cut, sums_of


def can_bound(schedule: str, vp: int) -> bool:
    """Whether `partition_bound` is about such families: of one virtual stage a rank, or of two folded."""
    return vp == 1 or (vp == 2 and SCHEDULES[schedule].placement == "v")


class Partition(Bisection):
    """The bound of a family, which gets tighter call by call.

    Args:
        costs: of a family whose ranks have one virtual stage, or two folded (`can_bound`).
        recompute: kinds of recomputation that blocks may have.
        least: [V] blocks that a virtual stage has at least; where they are folded it is not used.
    """

    def __init__(self, costs: FamilyCosts, recompute: list[int], least: list[int]) -> None:
        super().__init__(costs)
        self.tables = _tables(costs, recompute, least)
        self.sums = sums_of(self.tables)

    def is_too_short(self, step_s: float) -> bool:
        """See Bisection."""
        effort.count(effort.CUTS, self.tables.gradients.shape[0] * self.tables.kinds.size)
        return not can_be_cut(step_s, self.tables, self.sums)


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
    moments, room_of = moments_of_ranks(costs)
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


def moments_of_ranks(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, m, 2, v] micro-batches that wait for I and for W in each virtual stage at each moment, rows of -1 are none;
    and [S, m] bytes for blocks then."""
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


def chains_of_ranks(chains: UsualChains, ranks: int) -> IntArray:
    """[S, c] the chains that end with each rank; -1 is none."""
    of_ranks = [np.flatnonzero(chains.ranks == rank) for rank in range(ranks)]
    padded = np.full((ranks, max(of.size for of in of_ranks)), -1)
    for rank, own in enumerate(of_ranks):
        padded[rank, : own.size] = own
    return padded


def constants_of_chains(costs: FamilyCosts, chains: UsualChains) -> FloatArray:
    """[n] seconds of each chain that are there whatever blocks virtual stages have."""
    ranks, counts = costs.ranks, chains.counts
    constants = np.einsum("npv,pv->n", counts[:, :2], costs.sends) + counts[:, 0] @ costs.starts
    constants += chains.messages @ costs.messages
    for stage, layer in _ends(costs):
        at = costs.rank_of[stage]
        constants += counts[:, :, stage] @ ranks.passes[at, layer, 0]
        constants += np.where(chains.ranks == at, ranks.gradients[at, layer], 0.0)
    return np.asarray(constants)


def _chains(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
    """[S, c, 5, 3] and [S, c], see PartitionTables."""
    strategy = costs.strategy
    usual = usual_chains(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    of_ranks, of_chains = chains_of_ranks(usual, strategy.pp), constants_of_chains(costs, usual)
    around = _around_chains(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    return around[of_ranks], np.where(of_ranks < 0, -np.inf, of_chains[of_ranks])


@lru_cache(maxsize=1024)
def _around_chains(schedule: str, ranks: int, micro_batches: int, vp: int) -> FloatArray:
    """[n, 5, 3] of usual chains, see PartitionTables.chains."""
    usual = usual_chains(schedule, ranks, micro_batches, vp)
    pairs = zip(usual.counts, usual.ranks.tolist(), strict=True)
    return np.array([_around(counts, rank, ranks, folded=vp == 2) for counts, rank in pairs])


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
