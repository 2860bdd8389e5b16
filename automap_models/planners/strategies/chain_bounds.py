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

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.schedules import SCHEDULES, ranks_of_stages, repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.cost.stage_costs import SENDING_ALONE
from automap_models.planners import effort
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.simulate.rounds import Chain, PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING

SHORT = 0.01
"""Seconds of a message where passes take one: of chains that are as long, those of more messages."""


def passes_laid_out(strategy: Strategy) -> int:
    """Of each kind, of all virtual stages: those that show all of its schedule."""
    s = strategy
    shown, _ = repeating_micro_batches(s.schedule, s.pp, s.micro_batches, s.vp)
    return shown * s.stages


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


def chain_bound(family: FamilyCosts, recompute: list[int]) -> float:
    """No step of the family is shorter than its weighted chain, with all blocks where they add least to it.

    Args:
        family: costs of the family.
        recompute: kinds of recomputation that blocks may have.
    """
    costs, strategy = family.ranks, family.strategy
    effort.count(effort.CHAINS, strategy.stages)
    chain = weighted_chain(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    of_layers = np.einsum("pv,vkjp->vkj", chain.counts, costs.passes[chain.rank_of])  # [V, k, R]
    of_layers += (chain.ranks[:, None] * costs.gradients)[chain.rank_of, :, None]
    seconds = float((chain.counts[:2] * family.sends).sum() + chain.counts[0] @ family.starts)
    seconds += float(chain.messages @ family.messages) + costs.even_update_s + family.tied_s
    seconds += float(of_layers[0, costs.ends.first, 0] + of_layers[-1, costs.ends.last, 0])
    return seconds + float(of_layers[:, :, recompute].min(axis=(0, 2)) @ costs.blocks)
