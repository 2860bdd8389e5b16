"""Imitation of a planner: the action values as scores whose softmax should choose what its plans choose.

Behaviour cloning (Pomerleau 1991): every decision of a plan is a labelled state. Scores are Q / temperature, so that
whoever acts greedily on Q takes the likeliest action, and a network that learned one way can go on the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from automap_models.envs.pipeline.env import Partial, Problems, episode_steps
from automap_models.rl import targets
from automap_models.rl.replay import Items
from automap_models.rl.whole_plans import Episodes, PipelineAgent, action_at, unpack


def as_episodes(agent: PipelineAgent, problems: Problems, cuts: Tensor, device_cuts: Tensor) -> Episodes:
    """A planner's plans as the episodes that make them.

    Args:
        problems: B problems.
        cuts, device_cuts: int64 [B, max_stages - 1] as in Partial; all -1 where there is no plan: an episode without
            decisions, which leaves no rows in a replay and earns the penalty.
    """
    planned = cuts[:, 0] >= 0
    steps = torch.where(planned, episode_steps(problems), 0)
    complete = Partial(cuts, device_cuts, steps)
    reward = agent.env.terminal_reward(problems, complete)
    return Episodes(complete, torch.where(planned, reward, -1.0), steps, torch.zeros_like(steps))


def imitation_loss(
    agent: PipelineAgent, problems: Problems, items: Items, weights: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of replayed decisions over the legal actions, and that of each, [B].

    Args:
        problems: those of the rows, in their order.
        items: rows of whole_plans.transitions.
        weights: [B].
        temperature: differences of Q that count; > 0.
    """
    complete, step, _, _ = unpack(items, problems.arrays.device)
    state = complete.at_step(step)
    q = agent.q(agent.online, problems, state)
    scores = targets.masked(q, agent.env.legal(problems, state)) / temperature
    error = functional.cross_entropy(scores, action_at(complete, step, problems.points), reduction="none")
    return (weights * error).mean(), error.detach()
