"""Branching episodes: several actions tried in one state, each followed by the greedy policy to its end.

An ordinary episode says how one action per state turned out; which of several good actions is best has to be pieced
together from many episodes. Here the returns of one state's actions stand side by side: samples of Q of the greedy
policy, as in rollout-sampling policy iteration (Dimitrakakis & Lagoudakis 2008), and one pass over the state learns
from all of them. Each branch is a complete episode of the environment.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import Partial, Problems, apply, episode_steps
from automap_models.rl import targets
from automap_models.rl.agent import explore
from automap_models.rl.replay import Items
from automap_models.rl.whole_plans import PipelineAgent

NEAR = 0.05
"""Actions valued this close to the best are tried first: which of them is best decides the plan."""
COMMON = 0.1
"""Weight of the error that all actions of a state share: it decides nothing."""
CHUNK = 512
"""States evaluated at a time: bounds the memory of the look-ahead's tables."""


def play(
    agent: PipelineAgent,
    problems: Problems,
    partial: Partial,
    until: Tensor,
    epsilon: float,
    generator: torch.Generator,
) -> Partial:
    """Go on with partial plans, ε-greedily, until each has made `until` decisions, int64 [B]."""
    while True:
        waiting = (partial.step < until).nonzero().squeeze(1)
        if not len(waiting):
            return partial
        for rows in torch.split(waiting, CHUNK):
            here, so_far = problems.take(rows), partial.take(rows)
            q = agent.q(agent.online, here, so_far)
            action, _ = explore(q, agent.env.legal(here, so_far), epsilon, agent.config, generator)
            following = apply(so_far, action, problems.points)
            partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, following, strict=True)))


def choose_branches(q: Tensor, legal: Tensor, branches: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """int64 [B, branches] different actions, the greedy one first, and bool [B, branches] which are legal.

    The others are drawn among those valued within NEAR of the best, and after these among all legal ones; the last one
    is drawn among all in any case.
    """
    q = targets.masked(q, legal)
    best, greedy = q.max(1, keepdim=True)
    noise = torch.empty(q.shape).exponential_(generator=generator).to(q.device)
    draw = -noise.log()  # Gumbel: the largest are a random subset
    order = torch.where(legal, draw + torch.where(q >= best - NEAR, 1e3, 0.0), -torch.inf).scatter(1, greedy, torch.inf)
    chosen = order.topk(branches, 1).indices
    if branches > 2:
        rest = torch.where(legal, draw, -torch.inf).scatter(1, chosen[:, :-1], -torch.inf)
        chosen[:, -1] = rest.argmax(1)
    taken = legal.gather(1, chosen)
    if branches > 2:
        taken[:, -1] &= rest.amax(1).isfinite()
    return chosen, taken


@torch.no_grad()
def branch(
    agent: PipelineAgent,
    index: Tensor,
    problems: Problems,
    branches: int,
    epsilon: float,
    generator: torch.Generator,
    skip_last: int = 0,
) -> tuple[Items, Tensor]:
    """One branching state per problem, at a random decision but the last `skip_last` ones.

    Args:
        index: int64 [B] which problem of the data set each is.

    Returns:
        Rows for the replay, and the rewards of the greedy branches [B].
    """
    problems = agent.online.prepare(problems)
    steps = episode_steps(problems)
    draw = torch.rand(len(steps), generator=generator).to(steps.device)
    at = (draw * (steps - skip_last)).long()
    state = play(agent, problems, agent.env.reset(problems), at, epsilon, generator)
    chunks = torch.split(torch.arange(len(steps), device=steps.device), CHUNK)
    q = torch.cat([agent.q(agent.online, problems.take(rows), state.take(rows)) for rows in chunks])
    actions, taken = choose_branches(q, agent.env.legal(problems, state), branches, generator)
    owner, place = taken.nonzero(as_tuple=True)
    own = problems.take(owner)
    complete = play(
        agent, own, apply(state.take(owner), actions[owner, place], problems.points), steps[owner], 0.0, generator
    )
    rewards = problems.arrays.new_zeros(actions.shape).index_put(
        (owner, place), agent.env.terminal_reward(own, complete)
    )
    items = {
        "problem": index,
        "cuts": state.cuts.short(),
        "device_cuts": state.device_cuts.short(),
        "step": state.step.short(),
        "actions": actions.short(),
        "taken": taken,
        "rewards": rewards,
    }
    return {name: column.cpu().numpy() for name, column in items.items()}, rewards[:, 0]


def empty_branches(max_stages: int, branches: int) -> Items:
    """One row of `branch` as the replay wants to know it."""
    cuts = np.zeros(max_stages - 1, dtype=np.int16)
    return {
        "problem": np.zeros((), dtype=np.int64),
        "cuts": cuts,
        "device_cuts": cuts,
        "step": np.zeros((), dtype=np.int16),
        "actions": np.zeros(branches, dtype=np.int16),
        "taken": np.zeros(branches, dtype=bool),
        "rewards": np.zeros(branches, dtype=np.float32),
    }


def branch_loss(agent: PipelineAgent, problems: Problems, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted loss of replayed rows of `branch` and their mean absolute errors [B], which become priorities.

    The error is taken apart into what the actions of a state have in common and the rest: only the rest orders them.
    """
    device = problems.arrays.device
    cuts, device_cuts, step, actions = (
        torch.from_numpy(items[name]).long().to(device) for name in ("cuts", "device_cuts", "step", "actions")
    )
    taken = torch.from_numpy(items["taken"]).to(device)
    returns = torch.from_numpy(items["rewards"]).to(device)
    if agent.config.log_values:
        returns = targets.log_rescale(returns)
    described = agent.online.describe(problems, Partial(cuts, device_cuts, step))
    value = agent.expected(agent.online(described)).gather(1, actions)
    error = torch.where(taken, value - torch.maximum(returns, agent.online.floor(described).unsqueeze(1)), 0.0)
    count = taken.sum(1).clamp(min=1)
    common = error.sum(1) / count
    apart = torch.where(taken, error - common.unsqueeze(1), 0.0)
    huber = agent.config.huber
    loss = targets.huber(apart, huber).sum(1) / count + COMMON * targets.huber(common, huber)
    return (weights * loss).mean(), (error.detach().abs().sum(1) / count)
