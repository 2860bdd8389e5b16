"""Offline training on pipelines: whole plans in the replay, and branching episodes.

An episode has a fixed number of decisions and one reward at its end, and a partial plan is the complete one
truncated. So the replay holds, per transition, the complete plan, the step and the final reward; the states
s_tm1 and s_t are derived from it, whatever n.

A branching episode tries several actions in one state and follows each with the greedy policy to its end. An ordinary
episode says how one action per state turned out; which of several good actions is best has to be pieced together from
many episodes. Here the returns of one state's actions stand side by side: samples of Q of the greedy policy, as in
rollout-sampling policy iteration (Dimitrakakis & Lagoudakis 2008), and one pass over the state learns from all of them.
Each branch is a complete episode of the environment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, apply, episode_steps
from automap_models.rl import targets
from automap_models.rl.agent import Agent, AgentConfig, Transitions, explore
from automap_models.rl.replay import Items

MAX_STEPS = 62
"""Decisions that fit the exploration bits of an episode."""


class PipelineAgent(Agent[Problems, Partial]):
    """An agent on the pipeline environment, which can pay for whole plans."""

    env: PipelineEnv


class Episodes(NamedTuple):
    """B finished episodes.

    complete: the plans; reward: [B]; steps: int64 [B] decisions made; explored: int64 [B] whose bit t says that
    decision t was exploratory.
    """

    complete: Partial
    reward: Tensor
    steps: Tensor
    explored: Tensor


def rollout(agent: PipelineAgent, problems: Problems, epsilon: float, generator: torch.Generator) -> Episodes:
    """Play one episode on each problem."""
    complete = agent.env.reset(problems)
    reward = torch.zeros(len(complete.step), device=complete.step.device)
    explored = torch.zeros_like(complete.step)
    for t, moment in enumerate(agent.play(problems, complete, epsilon, generator)):
        rows = moment.rows
        complete = Partial(*(old.index_put((rows,), new) for old, new in zip(complete, moment.s_t, strict=True)))
        reward = reward.index_put((rows,), moment.r_t)
        explored = explored.index_add(0, rows, moment.explored.long() << t)
    return Episodes(complete, reward, episode_steps(problems), explored)


def replayed(config: AgentConfig, problems: Problems, items: Items) -> Transitions[Partial]:
    """What an agent learns from rows of `transitions`; `problems` are theirs, in their order."""
    complete, step, final, explored = unpack(items, problems.arrays.device)
    if config.log_values:
        final = targets.log_rescale(final)
    steps = episode_steps(problems)
    reached = torch.minimum(torch.minimum(step + config.n_steps, steps), next_explored(explored, step))
    ends = reached == steps
    return_t = config.gamma ** (steps - step - 1).float() * final
    return Transitions(
        s_tm1=complete.at_step(step),
        a_tm1=action_at(complete, step, problems.points),
        r_t=torch.where(ends, return_t, 0.0),
        discount_t=torch.where(ends, 0.0, config.gamma ** (reached - step).float()),
        s_t=complete.at_step(reached),
        return_t=return_t,
    )


def next_explored(explored: Tensor, step: Tensor) -> Tensor:
    """[B] the first exploratory decision after `step`; beyond any episode where there is none."""
    t = torch.arange(MAX_STEPS, device=step.device)
    later = ((explored.unsqueeze(1) >> t) & 1).bool() & (t > step.unsqueeze(1))
    return torch.where(later, t, MAX_STEPS).amin(1)


def transitions(index: Tensor, episodes: Episodes, skip_last: int = 0) -> Items:
    """Rows for the replay: every decision of every episode, but for the last `skip_last`.

    Args:
        index: int64 [B] which problem of the data set an episode was played on.
        skip_last: decisions at an episode's end that the network takes without having to learn them.
    """
    t = torch.arange(int(episodes.steps.max()))
    episode, step = (t < (episodes.steps.cpu() - skip_last).unsqueeze(1)).nonzero(as_tuple=True)
    columns = {
        "problem": index,
        "cuts": episodes.complete.cuts.short(),
        "device_cuts": episodes.complete.device_cuts.short(),
        "reward": episodes.reward,
        "explored": episodes.explored,
    }
    rows = {name: column.cpu()[episode].numpy() for name, column in columns.items()}
    return {**rows, "step": step.short().numpy()}


def empty_transition(max_stages: int) -> Items:
    """One row of `transitions` as the replay wants to know it."""
    cuts = np.zeros(max_stages - 1, dtype=np.int16)
    return {
        "problem": np.int64(0),  # type: ignore[dict-item]
        "cuts": cuts,
        "device_cuts": cuts,
        "reward": np.float32(0),  # type: ignore[dict-item]
        "explored": np.int64(0),  # type: ignore[dict-item]
        "step": np.int16(0),  # type: ignore[dict-item]
    }


def unpack(items: Items, device: torch.device) -> tuple[Partial, Tensor, Tensor, Tensor]:
    """Complete plans, steps, final rewards and exploration bits, [B] each, of replayed rows."""
    cuts, device_cuts, step, explored = (
        torch.from_numpy(items[name]).long().to(device) for name in ("cuts", "device_cuts", "step", "explored")
    )
    decisions = (cuts >= 0).sum(1) + (device_cuts >= 0).sum(1)
    return Partial(cuts, device_cuts, decisions), step, torch.from_numpy(items["reward"]).to(device), explored


def action_at(complete: Partial, step: Tensor, points: int) -> Tensor:
    """[B] the action of the shared space that was taken at `step` of complete plans."""
    stage = (step // 2).unsqueeze(1)
    cut = complete.cuts.gather(1, stage).squeeze(1)
    device = complete.device_cuts.gather(1, stage).squeeze(1)
    return torch.where(step % 2 == 0, cut, device + points - 1)


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
    value = agent.online(described).gather(1, actions)
    error = torch.where(taken, value - torch.maximum(returns, agent.online.floor(described).unsqueeze(1)), 0.0)
    count = taken.sum(1).clamp(min=1)
    common = error.sum(1) / count
    apart = torch.where(taken, error - common.unsqueeze(1), 0.0)
    huber = agent.config.huber
    loss = targets.huber(apart, huber).sum(1) / count + COMMON * targets.huber(common, huber)
    return (weights * loss).mean(), (error.detach().abs().sum(1) / count)
