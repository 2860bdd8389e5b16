"""A lower bound of families of models whose blocks are all alike, by how many whole blocks each rank may hold.

    rank r with n of the N blocks, in its virtual stages in any way, some of each recomputed in one way

        memory   Σ bytes of its blocks, at each moment of its order ≤ room
        chain    constant + Σ seconds of its blocks + least seconds of N - n blocks in the other ranks ≤ T

Seconds of the other ranks are those of the chain's passes there, of as many blocks as each has at least, and of what
else there is where it takes least. In T a rank may hold from so many blocks to so many. What it holds at least follows
from what all others hold at most, and the other way round: that narrows what is left to the others, until nothing
changes, or some rank is left nothing. So where 126 blocks are on 32 ranks of at most 4, 30 ranks have all 4, and chains
through them are as long as that.

    ranks    0     1 … 30    31
    blocks   3     4         3      the only way: every other one has a rank of 5

The linear program (relaxation) has 3.94 blocks on each of them, and pieces of blocks that recompute.
"""

from __future__ import annotations

import numpy as np

from automap_models.planners import effort
from automap_models.planners.strategies.bisection import Bisection
from automap_models.planners.strategies.bounds import usual_chains
from automap_models.planners.strategies.count_kernel import CountTables, can_be_dealt, rank_options
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.planners.strategies.partitions import chains_of_ranks, constants_of_chains, moments_of_ranks


class Counts(Bisection):
    """The bound of a family, which gets tighter call by call.

    Args:
        costs: of a family of a model with one kind of block (`all_alike`).
        recompute: kinds of recomputation that blocks may have.
        least: [V] blocks that a virtual stage has at least.
        high_s: of a longer bound it is enough to know that it is as long as this, in all calls.
    """

    def __init__(self, costs: FamilyCosts, recompute: list[int], least: list[int], high_s: float) -> None:
        super().__init__(costs)
        self.tables = _tables(costs, recompute, least)
        self.size = len(self.tables.gradients) * self.tables.blocks
        effort.count(effort.OPTIONS)
        self.options = rank_options(high_s - self.once_s, self.tables)

    def is_too_short(self, step_s: float) -> bool:
        """See Bisection."""
        effort.count(effort.DEALS, self.size)
        return not can_be_dealt(step_s, self.tables, self.options)


def all_alike(costs: FamilyCosts) -> bool:
    """Whether the model has one kind of block, and more than one rank holds them."""
    return costs.strategy.pp > 1 and np.flatnonzero(costs.ranks.blocks).size == 1


def _tables(costs: FamilyCosts, recompute: list[int], least: list[int]) -> CountTables:
    strategy, ranks = costs.strategy, costs.ranks
    (kind,) = np.flatnonzero(ranks.blocks).tolist()
    columns = [0, *(of for of in recompute if of)]
    seconds, saved, kept = ranks.passes[:, kind, columns], ranks.saved[kind, columns], ranks.kept[kind, columns]
    if 0 not in recompute:  # the least that blocks may do is what all of them do
        seconds[:, 0] = seconds[:, 1:].min(axis=1)
        saved[0], kept[0] = saved[1:].min(), kept[1:].min()
    usual = usual_chains(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    of_ranks = chains_of_ranks(usual, strategy.pp)
    moments, room_of = moments_of_ranks(costs)
    return CountTables(
        int(ranks.blocks[kind]),
        np.array([np.flatnonzero(costs.rank_of == rank) for rank in range(strategy.pp)]),
        np.array(least, dtype=np.int64),
        np.ascontiguousarray(seconds[costs.rank_of]),
        np.ascontiguousarray(ranks.gradients[:, kind]),
        np.stack([np.full(len(columns), ranks.state[kind]), saved, kept]),
        moments,
        room_of,
        np.where((of_ranks < 0)[:, :, None, None], 0.0, usual.counts[of_ranks]),
        np.where(of_ranks < 0, -np.inf, constants_of_chains(costs, usual)[of_ranks]),
    )
