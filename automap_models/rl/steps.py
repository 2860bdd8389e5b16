"""Decisions in the replay, each with the state before it, the state n decisions later and the rewards on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from automap_models.rl.agent import AgentConfig, Moment, StatesT, Transitions
from automap_models.rl.replay import Items

BEFORE, AFTER = "s_tm1_", "s_t_"
"""Names of the replay's columns that hold the parts of states, by their number."""


def transitions(states: StatesT, moments: Sequence[Moment[StatesT]], config: AgentConfig) -> Items:
    """Rows for the replay: every decision of B episodes.

    Args:
        states: in which the episodes began, [B].
        moments: one at least, all that Agent.play went through from there.
        config: says how many rewards are summed, at most, and how they are discounted.
    """
    parts = [_dense([part, *(tuple(m.s_t)[i] for m in moments)], moments) for i, part in enumerate(states)]
    episodes = len(parts[0])
    start = torch.zeros(episodes)
    reward = _dense([start, *(m.r_t for m in moments)], moments)[:, 1:]
    explored = _dense([start.bool(), *(m.explored for m in moments)], moments)[:, 1:]
    action = _dense([start.long(), *(m.a_tm1 for m in moments)], moments)[:, 1:]
    end = torch.bincount(torch.cat([m.rows for m in moments]), minlength=episodes)
    r_t, reached = n_step_sums(reward, explored, end, config)
    episode, step = (torch.arange(len(moments)) < end.unsqueeze(1)).nonzero(as_tuple=True)
    until = reached[episode, step]
    columns = {
        "action": action[episode, step],
        "r_t": r_t[episode, step],
        "discount_t": torch.where(until == end[episode], 0.0, config.gamma ** (until - step).float()),
        "return_t": returns(reward, config.gamma)[episode, step],
    }
    for number, part in enumerate(parts):
        columns[f"{BEFORE}{number}"], columns[f"{AFTER}{number}"] = part[episode, step], part[episode, until]
    return {name: column.numpy() for name, column in columns.items()}


def empty_step(states: StatesT) -> Items:
    """One row of `transitions` as the replay wants to know it, from any one state or more."""
    number = np.zeros((), dtype=np.float32)
    scalars = {"action": np.zeros((), dtype=np.int64), "r_t": number, "discount_t": number, "return_t": number}
    parts = [part[0].numpy() for part in states]
    return {**scalars, **{f"{time}{i}": part for i, part in enumerate(parts) for time in (BEFORE, AFTER)}}


def replayed(items: Items, make: Callable[..., StatesT]) -> Transitions[StatesT]:
    """What an agent learns from rows of `transitions`; `make` puts the parts of states together again."""
    held = {name: torch.from_numpy(column) for name, column in items.items()}
    before, after = (make(*(held[name] for name in sorted(held) if name.startswith(t))) for t in (BEFORE, AFTER))
    return Transitions(before, held["action"], held["r_t"], held["discount_t"], after, held["return_t"])


def n_step_sums(reward: Tensor, explored: Tensor, end: Tensor, config: AgentConfig) -> tuple[Tensor, Tensor]:
    """[B, T] discounted sums of up to n rewards from each step on, and int64 [B, T] the step that they reach.

    A sum stops at the episode's end, int64 [B], and before the next exploratory action (Watkins 1989).
    """
    step = torch.arange(reward.shape[1]).expand_as(reward)
    total, reached = reward.clone(), step + 1
    going = torch.ones_like(explored)
    for ahead in range(1, min(config.n_steps, reward.shape[1])):
        place = (step + ahead).clamp(max=reward.shape[1] - 1)
        going = going & (step + ahead < end.unsqueeze(1)) & ~explored.gather(1, place)
        total = total + torch.where(going, config.gamma**ahead * reward.gather(1, place), 0.0)
        reached = reached + going
    return total, reached


def returns(reward: Tensor, gamma: float) -> Tensor:
    """[B, T] discounted sums of all rewards from each step on; 0 after an episode's end."""
    sums = torch.zeros_like(reward)
    following = torch.zeros_like(reward[:, 0])
    for step in reversed(range(reward.shape[1])):
        following = reward[:, step] + gamma * following
        sums[:, step] = following
    return sums


def _dense(values: Sequence[Tensor], moments: Sequence[Moment[StatesT]]) -> Tensor:
    """[B, T+1, …] of a first value for all episodes and one for each moment's rows; 0 after an episode's end."""
    filled = values[0].new_zeros((len(values[0]), len(values), *values[0].shape[1:]))
    filled[:, 0] = values[0]
    for t, moment in enumerate(moments):
        filled[moment.rows, t + 1] = values[t + 1]
    return filled
