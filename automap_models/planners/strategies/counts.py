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

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.planners import effort
from automap_models.planners.strategies.chain_bounds import UsualChains, fullest_moments, usual_chains
from automap_models.planners.strategies.count_kernel import CountTables, can_be_dealt, rank_options
from automap_models.planners.strategies.family_costs import FamilyCosts

CLOSE = 1e-3
"""Relative difference of the two ends of the range that the bisection stops at."""


class Counts:
    """The bound of a family, which gets tighter call by call.

    Args:
        costs: of a family of a model with one kind of block (`all_alike`).
        recompute: kinds of recomputation that blocks may have.
        least: [V] blocks that a virtual stage has at least.
        high_s: of a longer bound it is enough to know that it is as long as this, in all calls.
    """

    def __init__(self, costs: FamilyCosts, recompute: list[int], least: list[int], high_s: float) -> None:
        self.once_s = costs.ranks.even_update_s + costs.tied_s
        self.possible_s = float("inf")  # as far as is known, a strategy may take as long
        self.tables = _tables(costs, recompute, least)
        self.size = len(self.tables.gradients) * self.tables.blocks
        effort.count(effort.OPTIONS)
        self.options = rank_options(high_s - self.once_s, self.tables)

    def is_too_short(self, step_s: float) -> bool:
        """Whether nothing of the family ends within so many seconds, but for what is done once a step."""
        effort.count(effort.DEALS, self.size)
        return not can_be_dealt(step_s, self.tables, self.options)

    def shorter_range(self, low_s: float, high_s: float) -> tuple[float, float]:
        """A part of a range of steps: what is below it is too short, what ends it may not be.

        The range is halved until one step more is known to be too short, or its ends are CLOSE.
        """
        while high_s - low_s > CLOSE * high_s:
            middle_s = 0.5 * (low_s + high_s)
            if self.is_too_short(middle_s):
                return middle_s, high_s
            high_s = middle_s
        return low_s, high_s

    def tighter(self, low_s: float, high_s: float) -> float:
        """No strategy of the family is shorter, seconds: `low_s` where nothing more is to be known.

        Args:
            low_s: another bound.
            high_s: finite; of a longer bound it is enough to know that it is as long as this.
        """
        if high_s < self.possible_s:
            if self.is_too_short(high_s - self.once_s):
                return max(low_s, high_s)
            self.possible_s = high_s
        low, possible = self.shorter_range(low_s - self.once_s, self.possible_s - self.once_s)
        self.possible_s = possible + self.once_s
        return max(low_s, low + self.once_s)

    def bound(self, low_s: float, high_s: float) -> float:
        """The bound in the end; arguments as of `tighter`."""
        while (bound_s := self.tighter(low_s, high_s)) > low_s and bound_s < high_s:
            low_s = bound_s
        return bound_s


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
    of_ranks = _chains_of_ranks(usual, strategy.pp)
    moments, room_of = _moments_of_ranks(costs)
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
        np.where(of_ranks < 0, -np.inf, _constants_of_chains(costs, usual)[of_ranks]),
    )


def _ends(costs: FamilyCosts) -> tuple[tuple[int, int], ...]:
    """The virtual stage and the layer of each end of the model."""
    first, last = costs.ranks.ends
    return (0, first), (costs.strategy.stages - 1, last)


def _moments_of_ranks(costs: FamilyCosts) -> tuple[FloatArray, FloatArray]:
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


def _chains_of_ranks(chains: UsualChains, ranks: int) -> IntArray:
    """[S, c] the chains that end with each rank; -1 is none."""
    of_ranks = [np.flatnonzero(chains.ranks == rank) for rank in range(ranks)]
    padded = np.full((ranks, max(of.size for of in of_ranks)), -1)
    for rank, own in enumerate(of_ranks):
        padded[rank, : own.size] = own
    return padded


def _constants_of_chains(costs: FamilyCosts, chains: UsualChains) -> FloatArray:
    """[n] seconds of each chain that are there whatever blocks virtual stages have."""
    ranks, counts = costs.ranks, chains.counts
    constants = np.einsum("npv,pv->n", counts[:, :2], costs.sends) + counts[:, 0] @ costs.starts
    constants += chains.messages @ costs.messages
    for stage, layer in _ends(costs):
        at = costs.rank_of[stage]
        constants += counts[:, :, stage] @ ranks.passes[at, layer, 0]
        constants += np.where(chains.ranks == at, ranks.gradients[at, layer], 0.0)
    return np.asarray(constants)
