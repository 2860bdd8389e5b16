"""What the lower bound of L alone says in online pipeline planning: a first plan, and which pivots are worth a try."""

from __future__ import annotations

import torch
from torch import Tensor

from automap_models.envs.online_costs import pivot_costs
from automap_models.envs.online_pipeline import OnlinePipelineEnv, legal_pivots
from automap_models.envs.online_tables import Chosen, Pivots

WIDTH = 8
"""Unfinished plans that the first plan is chosen from at a time."""
OUT_OF_MEMORY_S = 1e300
"""Stands for the length of plans that do not fit: longer than any, and yet legal."""


def bounds_s(problems: Pivots, states: Chosen) -> Tensor:
    """[B, P] lower bounds of L over all plans that go on with a pivot; infinite where it is not legal."""
    bound = pivot_costs(problems, states).bound_s.nan_to_num(nan=OUT_OF_MEMORY_S, posinf=OUT_OF_MEMORY_S)
    return torch.where(legal_pivots(problems, states), bound, torch.inf)


def first_plans(problems: Pivots, width: int = WIDTH) -> Chosen:
    """Ends of episodes: of each state and candidate device cut the pivot with the least bound, then the `width` best.

    That many, because a bound does not see all that a device cut brings about; and one for each device cut, because
    neighbouring instructions would fill the places of all others.
    """
    env = OnlinePipelineEnv()
    states = env.reset(problems)
    for step in range(problems.stages - 1):
        least, pivot = _least_of_each_device_cut(problems, step, bounds_s(problems, states))
        _, best = least.flatten().sort(stable=True)
        best = best[: min(width, max(1, int(least.isfinite().sum())))]
        states, _, _ = env.step(problems, states.take(best // least.shape[1]), pivot.flatten()[best])
    return states


def _least_of_each_device_cut(problems: Pivots, step: int, bound: Tensor) -> tuple[Tensor, Tensor]:
    """[B, J] the least bound of pivots with each device cut, and int64 [B, J] which pivot has it."""
    slots = range(problems.device.shape[1])
    each = [torch.where(problems.slot[step] == slot, bound, torch.inf).min(1) for slot in slots]
    return torch.stack([least.values for least in each], 1), torch.stack([least.indices for least in each], 1)
