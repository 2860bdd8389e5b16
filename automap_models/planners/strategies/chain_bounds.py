"""Chains of passes: the rows of a subspace's program (relaxation), of equal stages and of whatever was simulated.

    rank 0   F F F F . . . . . I W       a chain: each of its passes waits for the one before it
    rank 1   . F . . F I W F I W         no rank ends before a chain of its passes does, whatever passes take

Chains of equal stages are known for each schedule. A mean of them with weights that add up to 1, as the program makes
it, has the schedule's bubble wherever blocks lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.schedules import SCHEDULES, ranks_of_stages, repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.cost.stage_costs import SENDING_ALONE
from automap_models.simulate.rounds import Chain, PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING


def passes_laid_out(strategy: Strategy) -> int:
    """Of each kind, of all virtual stages: those that show all of its schedule."""
    s = strategy
    micro_batches, _ = repeating_micro_batches(s.schedule, s.pp, s.micro_batches)
    return micro_batches * s.stages


class Chains(NamedTuple):
    """Chains of passes (simulate.rounds.Chain): no step is shorter than any of them.

    Attributes:
        passes: [n, 3, V] how many F, I and W of each virtual stage; from the first pass of their rank on where ranks do
            not wait for one another.
        messages: [n, V-1] how many between neighbouring virtual stages, where ranks compute while they send.
        ranks: [n, S] 1 for the rank whose last pass is the last of them.
    """

    passes: FloatArray
    messages: FloatArray
    ranks: FloatArray


def as_arrays(name: str, ranks: int, chains: Iterable[Chain]) -> Chains:
    """Chains of a schedule with S ranks."""
    chains = [chain.from_first_pass() if name in WITHOUT_WAITING else chain for chain in chains]
    passes, messages = np.array([c.passes for c in chains]), np.array([c.messages for c in chains])
    return Chains(passes, messages, np.eye(ranks)[[c.rank for c in chains]])


@lru_cache(maxsize=4096)
def usual_chains(name: str, ranks: int, micro_batches: int, vp: int) -> Chains:
    """Of each rank the chain of equal stages, and its own passes after the forward passes before it."""
    stages = ranks * vp
    rank_of = np.array(ranks_of_stages(stages, ranks, SCHEDULES[name].placement))
    chains = []
    for rank in range(ranks):
        passes = np.zeros((3, stages))
        passes[0, :rank] = 1.0
        passes[:, rank_of == rank] = micro_batches
        chains.append(Chain(passes, np.zeros(stages - 1), rank))
    if ranks > 1:
        # Messages of a hundredth of a pass: of chains that are as long, those of more messages.
        equal, short = np.ones(stages), np.full(stages - 1, 0.0 if name in SENDING_ALONE else 0.01)
        _, longest = longest_chains(name, micro_batches, vp, PassTimes(equal, equal, equal, short))
        chains += filter(None, map(longest, range(ranks)))
    return as_arrays(name, ranks, chains)
