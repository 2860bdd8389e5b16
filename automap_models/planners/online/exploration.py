"""Exploration around the best plan so far, for online pipeline planning.

Thousands of pivots have nearly the same value, and a plan is only as good as all of its cuts together: ε-greedy
episodes alone rarely try the one change that a good plan needs. So some episodes go where good plans have been before
they explore (Ecoffet et al. 2021), in one of two ways:

    near   follow the best plan, move one of its pivots, then go on with it or with the agent
    jump   draw device cuts, half of them on node boundaries, and places to cut near which the agent does so

The last decision, whose value the look-ahead knows, is the agent's in either case. All are ordinary episodes for the
replay, each decision an exploratory one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from automap_models.envs.online_pipeline import Chosen, OnlinePipelineEnv, Pivots, legal_pivots
from automap_models.rl.agent import Agent, Moment

FIRST = 1e9
"""Added to the values of pivots that go before all others."""
REACH = 32
"""Instructions per largest move."""


def explore_around(
    agent: Agent[Pivots, Chosen],
    problems: Pivots,
    best: Tensor,
    episodes: int,
    generator: torch.Generator,
) -> tuple[Chosen, list[Moment[Chosen]]]:
    """Episodes around the best plan, int64 [S-1, 2] its pivots: the states they began in and all their decisions."""
    env = OnlinePipelineEnv(episodes)
    start = env.reset(problems)
    states, rows, moments = start, torch.arange(episodes), []
    moved_at = torch.randint(problems.stages - 1, (episodes,), generator=generator)
    for step in range(problems.stages - 2):
        with torch.no_grad():
            value = agent.q(agent.online, problems, states).double()
            legal = legal_pivots(problems, states)
            score = _scores(problems, step, best[step], value, rows, moved_at[rows], generator)
            action = torch.where(legal, score, -torch.inf).argmax(1)
            following, reward, ended = env.step(problems, states, action)
        moments.append(Moment(rows, states, action, torch.ones_like(ended), reward, following, ended))
        going = (~ended).nonzero().squeeze(1)
        rows, states = rows[going], following.take(going)
    moments += [m._replace(rows=rows[m.rows]) for m in agent.play(problems, states, 0.0, generator)]
    return start, moments


def _scores(
    problems: Pivots, step: int, best: Tensor, value: Tensor, rows: Tensor, moved_at: Tensor, generator: torch.Generator
) -> Tensor:
    """[R, P] the pivot to choose has the highest; even episodes stay near the best plan, odd ones jump."""

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def often(share: float) -> Tensor:
        return draw(count, 1) < share

    count, cut, exists = len(rows), problems.cut[step], problems.exists[step]
    device = problems.device[step][problems.slot[step]]
    largest = max(float(problems.cut.max()) / REACH, 2.0)
    jumps, moves = (rows % 2 == 1).unsqueeze(1), (moved_at == step).unsqueeze(1)
    away = torch.where(often(0.5), -1.0, 1.0) * (largest ** draw(count, 1)).round()
    to_cut = best[0] + torch.where(moves & often(0.7), away, 0.0)
    to_device = best[1] + torch.where(moves & often(0.4), torch.where(often(0.5), -1.0, 1.0), 0.0)

    kinds = torch.unique(device[exists])
    boundaries = kinds[kinds % problems.per_node == 0]
    drawn = _one_of(kinds, draw(count, 1))
    if len(boundaries):
        drawn = torch.where(often(0.5), _one_of(boundaries, draw(count, 1)), drawn)
    own = exists & (device == drawn)
    first, last = torch.where(own, cut, cut.max()).amin(1, keepdim=True), torch.where(own, cut, 0).amax(1, keepdim=True)
    to_cut = torch.where(jumps, first + draw(count, 1) * (last - first), to_cut)
    to_device = torch.where(jumps, drawn, to_device)

    distance = (cut - to_cut).abs() + FIRST * (device - to_device).abs()
    window = (moves & often(0.5) | jumps) & (distance <= largest ** draw(count, 1))
    follows = ~jumps & (moved_at < step).unsqueeze(1) & often(0.5)
    return torch.where(follows, value, torch.where(window, FIRST + value, -distance))


def _one_of(values: Tensor, share: Tensor) -> Tensor:
    """Of the values the one at that share, [R, 1] in [0, 1), of their number."""
    return values[(share * len(values)).long()]
