"""Pipeline plans in the replay: whole, since an earlier state of a plan is the plan cut short.

An episode has a fixed number of decisions and one reward at its end, and a partial plan is the complete one
truncated. So the replay holds, per transition, the complete plan, the step and the final reward; the states
s_tm1 and s_t are derived from it, whatever n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, episode_steps
from automap_models.rl import targets
from automap_models.rl.agent import Agent, AgentConfig, Transitions
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
