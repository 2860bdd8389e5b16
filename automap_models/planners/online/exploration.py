"""How an agent with a look-ahead explores in online pipeline planning: lower bounds of L, a first plan, exploration.

Of thousands of pivots hardly any leads to a plan shorter than the best one so far, and the lower bound of L rules most
of the others out. So an exploratory decision is drawn from the promising pivots, those with a lower bound below the
best length. Each of their device cuts is as likely as any other, and so is each instruction cut with it. Besides, some
episodes go where the best plan has been before they explore (Ecoffet et al. 2021): they take over its first pivots,
and half of them then stay near its others. The last decision, whose value the look-ahead knows, is never exploratory.

    episode              decision 1   …   decision S-1      what it chooses
    1 greedy             greedy           least bound       the pivot of the largest value
    round - 1 ε-greedy   ε: drawn         least bound       drawn from all promising pivots
    around               kept or drawn    least bound       the best plan's pivots, then drawn, half of them near it
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.core.staged import StagedPlan
from automap_models.envs.online.costs import pivot_costs
from automap_models.envs.online.env import OnlinePipelineEnv, legal_pivots
from automap_models.envs.online.tables import Chosen, Pivots
from automap_models.rl.agent import Agent, Moment

WIDTH = 8
"""Unfinished plans that the first plan is chosen from at a time."""
OUT_OF_MEMORY_S = 1e300
"""Stands for the length of plans that do not fit: longer than any, and yet legal."""
REACH = 8
"""Instructions per largest distance that is near."""


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
    least = [torch.where(problems.slot[step] == slot, bound, torch.inf).min(1) for slot in slots]
    return torch.stack([of.values for of in least], 1), torch.stack([of.indices for of in least], 1)


class Exploration(NamedTuple):
    """How B episodes explore.

    Attributes:
        epsilon: [B] share of exploratory decisions.
        kept: bool [B, S-1], which of those take over the best plan's pivot.
        near: bool [B], whether the others lie near the best plan's.
    """

    epsilon: Tensor
    kept: Tensor
    near: Tensor


def draw_exploration(
    epsilon: float, episodes: int, around: int, stages: int, generator: torch.Generator
) -> Exploration:
    """One greedy episode, ε-greedy ones, and others `around` the best plan, which keep few or many of its pivots."""
    share = torch.tensor([0.0, *[epsilon] * (episodes - 1), *[1.0] * around])
    kept = torch.zeros(episodes + around, stages - 1, dtype=torch.bool)
    often = torch.rand(around, 1, generator=generator)
    kept[episodes:] = torch.rand(around, stages - 1, generator=generator) < often
    near = torch.zeros(episodes + around, dtype=torch.bool)
    near[episodes::2] = True
    return Exploration(share, kept, near)


def explore(
    agent: Agent[Pivots, Chosen],
    problems: Pivots,
    start: Chosen,
    how: Exploration,
    best: StagedPlan | None,
    best_s: float,
    generator: torch.Generator,
) -> list[Moment[Chosen]]:
    """All decisions of episodes, which begin in B states.

    Args:
        best: the plan to explore around, none if there is none.
        best_s: pivots that no shorter plan can have are not explored.
    """
    env = OnlinePipelineEnv(len(how.epsilon))
    known = torch.full((problems.stages - 1, 2), -1) if best is None else torch.tensor([best.cuts, best.device_cuts]).T
    states, rows, moments = start, torch.arange(len(how.epsilon)), []
    for step in range(problems.stages - 1):
        if step == problems.stages - 2:
            action, explored = _least_bound(problems, states), torch.zeros(len(rows), dtype=torch.bool)
        else:
            here = Exploration(*(part[rows] for part in how))
            action, explored = _decide(agent, problems, states, here, known[step], best_s, generator)
        following, reward, ended = env.step(problems, states, action)
        moments.append(Moment(rows, states, action, explored, reward, following, ended))
        going = (~ended).nonzero().squeeze(1)
        rows, states = rows[going], following.take(going)
        if not len(rows):
            break
    return moments


def _decide(
    agent: Agent[Pivots, Chosen],
    problems: Pivots,
    states: Chosen,
    how: Exploration,
    known: Tensor,
    best_s: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """[R] what running episodes choose, and whether they explore with it; known is the best plan's pivot, int64 [2]."""
    explored = torch.rand(len(how.epsilon), generator=generator) < how.epsilon
    action = torch.zeros(len(how.epsilon), dtype=torch.int64)
    if len(greedy := (~explored).nonzero().squeeze(1)):
        action[greedy] = _greedy(agent, problems, states.take(greedy))
    if len(own := explored.nonzero().squeeze(1)):
        action[own] = _drawn(
            problems, states.take(own), Exploration(*(part[own] for part in how)), known, best_s, generator
        )
    return action, explored


def _greedy(agent: Agent[Pivots, Chosen], problems: Pivots, states: Chosen) -> Tensor:
    """[R] the legal pivots with the largest values."""
    distinct, which = states.distinct()
    with torch.no_grad():
        value = agent.q(agent.online, problems, distinct)
    return torch.where(legal_pivots(problems, distinct), value, -torch.inf).argmax(1)[which]


def _least_bound(problems: Pivots, states: Chosen) -> Tensor:
    """[R] the legal pivots with the least bounds."""
    distinct, which = states.distinct()
    return bounds_s(problems, distinct).argmin(1)[which]


def _drawn(
    problems: Pivots, states: Chosen, how: Exploration, known: Tensor, best_s: float, generator: torch.Generator
) -> Tensor:
    """[R] promising pivots: the best plan's or one near it, as the episode wants, if they are promising, else any.

    Where no pivot is promising it is that with the least bound.
    """
    step = int(states.step[0])
    distinct, which = states.distinct()
    bound = bounds_s(problems, distinct)
    promising, slot = (bound < best_s).double(), problems.slot[step]
    number = promising.new_zeros(len(bound), problems.device.shape[1]).index_add_(1, slot, promising)
    share = (promising / number.clamp(min=1.0)[:, slot])[which]

    cuts, devices = (problems.cut[step] - known[0]).abs(), (problems.device[step][slot] - known[1]).abs()
    reach = max(float(problems.cut.max()) / REACH, 1.0) ** torch.rand(len(share), 1, generator=generator)
    near = share * ((cuts <= reach) & (devices <= 1) & how.near.unsqueeze(1))
    same = share * ((cuts + devices == 0) & how.kept[:, step].unsqueeze(1))
    least = torch.nn.functional.one_hot(bound.argmin(1), share.shape[1])[which].double()
    for preferred in (share, near, same):
        least = torch.where(preferred.any(1, keepdim=True), preferred, least)
    return torch.multinomial(least, 1, generator=generator).squeeze(1)
