"""Chains of passes, and a lower bound of a family's steps by a mean of them.

    rank 0   F F F F . . . . . I W       a chain: each of its passes waits for the one before it
    rank 1   . F . . F I W F I W         no rank ends before a chain of its passes does, whatever passes take

Chains of equal stages are known for each schedule. A mean of them with weights that add up to 1 is a bound, too: the
weights are those with which the step has the schedule's bubble wherever blocks lie.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.pass_tables import pass_table
from automap_models.core.schedules import SCHEDULES, ranks_of_stages, repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.cost.stage_costs import SENDING_ALONE
from automap_models.planners import effort
from automap_models.planners.strategies.bounds import SLACK
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.simulate.rounds import Chain, PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING

MOMENTS = 12
"""Of a rank's order, whose memory is a row."""
SHORT = 0.01
"""Seconds of a message where passes take one: of chains that are as long, those of more messages."""


def passes_laid_out(strategy: Strategy) -> int:
    """Of each kind, of all virtual stages: those that show all of its schedule."""
    s = strategy
    shown, _ = repeating_micro_batches(s.schedule, s.pp, s.micro_batches, s.vp)
    return shown * s.stages


@lru_cache(maxsize=4096)
def fullest_moments(name: str, ranks: int, micro_batches: int, vp: int) -> tuple[tuple[tuple[int, ...], IntArray], ...]:
    """[S] virtual stages of a rank, and [m, 2, vp] the moments of its order (Schedule.waiting) that no other has more
    of everything than, MOMENTS at most."""
    shown, _ = repeating_micro_batches(name, ranks, micro_batches, vp)
    return tuple((stages, moments[:MOMENTS]) for stages, moments in pass_table(name, ranks, shown, vp).fullest)


class UsualChains(NamedTuple):
    """Chains of passes (simulate.rounds.Chain) that make ranks end where all stages take equally long.

    Attributes:
        counts: [n, 3, V] how many F, I and W of each virtual stage; from the first pass of their rank on where ranks do
            not wait for one another.
        messages: [n, V-1] how many between neighbouring virtual stages, where ranks compute while they send.
        ranks: [n] whose last pass is the last of them.
        rank_of: [V] the rank of each virtual stage.
    """

    counts: FloatArray
    messages: FloatArray
    ranks: IntArray
    rank_of: tuple[int, ...]


@lru_cache(maxsize=4096)
def usual_chains(name: str, ranks: int, micro_batches: int, vp: int) -> UsualChains:
    """Of each rank the chain of equal stages, and its own passes after the forward passes before it."""
    stages = ranks * vp
    lies = ranks_of_stages(stages, ranks, SCHEDULES[name].placement)
    chains = []
    for rank in range(ranks):
        passes = np.zeros((3, stages))
        passes[0, :rank] = 1.0
        passes[:, [stage for stage, on in enumerate(lies) if on == rank]] = micro_batches
        chains.append(Chain(passes, np.zeros(stages - 1), rank))
    if ranks > 1:
        equal, short = np.ones(stages), np.full(stages - 1, 0.0 if name in SENDING_ALONE else SHORT)
        _, longest = longest_chains(name, micro_batches, vp, PassTimes(equal, equal, equal, short))
        chains += filter(None, map(longest, range(ranks)))
    if name in WITHOUT_WAITING:
        chains = [chain.from_first_pass() for chain in chains]
    passes, messages = np.array([of.passes for of in chains]), np.array([of.messages for of in chains])
    return UsualChains(passes, messages, np.array([of.rank for of in chains]), lies)


class WeightedChain(NamedTuple):
    """A mean of chains with weights that add up to 1: no step is shorter than it, because none is shorter than any.

    Attributes:
        counts: [3, V] how many F, I and W of each virtual stage.
        messages: [V-1] how many between neighbouring virtual stages.
        ranks: [S] weights of the chains that end with each rank.
        rank_of: [V] the rank of each virtual stage.
    """

    counts: FloatArray
    messages: FloatArray
    ranks: FloatArray
    rank_of: IntArray


@lru_cache(maxsize=4096)
def weighted_chain(name: str, ranks: int, micro_batches: int, vp: int) -> WeightedChain:
    """The mean in which the virtual stage of fewest passes has most of them.

    It is the optimal strategy of a game in which one side chooses a chain and the other where to put a block: wherever
    blocks lie, the step has the schedule's bubble.
    """
    from scipy.optimize import linprog

    chains = usual_chains(name, ranks, micro_batches, vp)
    passes = chains.counts.sum(axis=1)
    count, stages = passes.shape
    weights = np.ones(1)
    if count > 1:
        rows = np.concatenate([-passes.T / micro_batches, np.ones((stages, 1))], axis=1)
        aim, total = np.zeros(count + 1), np.ones((1, count + 1))
        aim[-1], total[0, -1] = -1.0, 0.0
        solution = linprog(
            aim,
            A_ub=rows,
            b_ub=np.zeros(stages),
            A_eq=total,
            b_eq=[1.0],
            method="highs",
            options={"presolve": False},  # takes a sixth of the time of so small and dense a program
        )
        weights = np.maximum(solution.x[:-1], 0.0) if solution.x is not None else np.eye(count)[0]
        weights /= weights.sum()
    return WeightedChain(
        np.tensordot(weights, chains.counts, axes=1),
        weights @ chains.messages,
        np.bincount(chains.ranks, weights, minlength=ranks).astype(np.float64),
        np.array(chains.rank_of),
    )


def chain_bound(costs: RankCosts, recompute: list[int], in_flight: FloatArray, family: FamilyCosts) -> float:
    """No step of the family is shorter than its weighted chain, with as little recomputation as all memory asks for.

    Blocks lie where they add least to the chain, in any pieces. Seconds of n blocks on a rank are convex in n: first
    those without recomputation until its room is full, then more that recompute instead. So blocks are dealt out by
    what the next piece adds, whatever the rank. Each kind of block has all room for itself.

        seconds  |         ╱  all of them recompute
                 |      ╱
                 |  ╱  some recompute
                 └───┴──────┴──── blocks of a rank

    Args: as of `closed_bound`.
    """
    strategy = family.strategy
    effort.count(effort.CHAINS, strategy.stages)
    shape = (strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    chain = weighted_chain(*shape)
    constant = float((chain.counts[:2] * family.sends).sum() + chain.counts[0] @ family.starts)
    constant += float(chain.messages @ family.messages) + costs.even_update_s + family.tied_s
    room = family.room.copy()
    for stage, layer in ((0, costs.ends.first), (-1, costs.ends.last)):
        rank = chain.rank_of[stage]
        constant += float(chain.counts[:, stage] @ costs.passes[rank, layer, 0])
        constant += float(chain.ranks[rank] * costs.gradients[rank, layer])
        room[rank] -= costs.state[layer] + in_flight[rank] * costs.saved[layer, 0]
    if (room < 0).any():
        return float("inf")
    for kind in np.flatnonzero(costs.blocks).tolist():
        of_stages = np.einsum("pv,vjp->vj", chain.counts, costs.passes[chain.rank_of, kind][:, recompute])
        seconds = np.full((strategy.pp, len(recompute)), np.inf)
        np.minimum.at(seconds, chain.rank_of, of_stages)
        seconds += (chain.ranks * costs.gradients[:, kind])[:, None]
        held = costs.state[kind] + in_flight[:, None] * costs.saved[kind, recompute][None]
        most = room[:, None] / np.maximum(held, 1e-30)
        constant += dealt_out(seconds, most, float(costs.blocks[kind]))
    return constant


@jit
def sorted_by(keys: FloatArray, count: int) -> IntArray:
    """The first so many places in the order of their keys, equal ones as they come: a few, by insertion.

    numpy's sorts take seconds to compile.
    """
    order = np.empty(count, np.int64)
    for i in range(count):
        place = i
        while place > 0 and keys[order[place - 1]] > keys[i]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i
    return order


@jit
def dealt_out(seconds: FloatArray, most: FloatArray, blocks: float) -> float:
    """Least seconds of so many blocks on all ranks; infinite where there is no room.

    A rank's pieces lie along the lower hull of (most, seconds of most), from nothing on.

    Args:
        seconds: [S, R] of a block with each kind of recomputation.
        most: [S, R] how many blocks of a kind there is room for.
    """
    ranks, kinds = seconds.shape
    rates, sizes, count = np.empty(ranks * kinds), np.empty(ranks * kinds), 0
    for rank in range(ranks):
        here, spent = 0.0, 0.0
        while True:
            chosen, rate = -1, np.inf
            for j in range(kinds):
                if most[rank, j] > here * (1 + SLACK):
                    slope = (most[rank, j] * seconds[rank, j] - spent) / (most[rank, j] - here)
                    if slope < rate:
                        chosen, rate = j, slope
            if chosen < 0:
                break
            rates[count], sizes[count] = rate, most[rank, chosen] - here
            count += 1
            spent, here = most[rank, chosen] * seconds[rank, chosen], most[rank, chosen]
    filled, total = 0.0, 0.0
    for i in sorted_by(rates, count):
        piece = min(sizes[i], blocks - filled)
        total += piece * rates[i]
        filled += sizes[i]
        if filled >= blocks:
            return float(total)
    return total if filled >= blocks * (1 - SLACK) else np.inf
