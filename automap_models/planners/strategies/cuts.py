"""Cuts into virtual stages that take about equally long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.planners.strategies.family_costs import RankCosts


def balanced_cuts(costs: RankCosts, blocks: Sequence[int], stages: int) -> tuple[int, ...]:
    """[V] blocks of each virtual stage: each boundary is where the seconds before it are nearest to an equal share.

    Virtual stages may come out empty.

    Args:
        costs: of the ranks; seconds are those without recomputation on the fastest rank.
        blocks: the layer of each block, in order.
        stages: V.
    """
    seconds: FloatArray = costs.passes[:, :, 0].sum(axis=-1).min(axis=0)
    first, last = seconds[list(costs.ends)]
    before = np.concatenate([[0.0], np.cumsum(seconds[list(blocks)])])
    share = (first + before[-1] + last) / stages
    places = np.abs(before[None, :] - (np.arange(1, stages)[:, None] * share - first)).argmin(axis=1)
    return tuple(stop - begin for begin, stop in pairwise([0, *places.tolist(), len(blocks)]))
