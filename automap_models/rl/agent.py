"""How Rainbow agents explore and what they learn (Auto-MAP §3.1: double, dueling, prioritised, ε-greedy).

There are two agents: one plans pipelines (rl.episodes), the other decides how dimensions are sharded (rl.decisions).
Learning targets are functions of values; shapes are checked, nothing else is known of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from automap_models.errors import BadInput

ILLEGAL = -torch.inf


@dataclass(frozen=True)
class AgentConfig:
    """Hyper-parameters of learning and exploration.

    Attributes:
        gamma: discount per decision.
        log_values: learn log_rescale(reward) instead of the reward itself; needs gamma 1.
        epsilon_start, epsilon_end, epsilon_iterations: linear ε schedule, in iterations of whoever
            asks: learner iterations, or decisions made.
        local_share: share of exploratory actions drawn within `local_radius` of the greedy one instead of anywhere.
        huber: error from which the loss grows linearly: the rare large errors must not drown the small differences
            among good actions.
    """

    gamma: float = 1.0
    log_values: bool = True
    epsilon_start: float = 1.0
    epsilon_end: float = 0.1
    epsilon_iterations: int = 2000
    local_share: float = 0.5
    local_radius: int = 4
    huber: float = 1.0

    def __post_init__(self) -> None:
        if self.log_values and self.gamma != 1:
            raise BadInput(f"log_values with gamma {self.gamma}", where="agent", do="set gamma=1 or log_values=false")

    def epsilon(self, iteration: int) -> float:
        """ε at a learner iteration."""
        done = min(1.0, iteration / max(1, self.epsilon_iterations))
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


def explore(
    q: Tensor, legal: Tensor, epsilon: float | Tensor, config: AgentConfig, generator: torch.Generator
) -> Tensor:
    """[B] ε-greedy actions; an exploratory one is uniform over legal actions or near the greedy one.

    Args:
        epsilon: one number, or one for each row, [B].
    """
    greedy = masked(q, legal).argmax(1)
    if isinstance(epsilon, float | int) and epsilon == 0:
        return greedy
    draw = torch.rand(3, len(q), generator=generator).to(q.device)
    near = (torch.arange(q.shape[1], device=q.device) - greedy.unsqueeze(1)).abs() <= config.local_radius
    allowed = legal & (near | (draw[1] >= config.local_share).unsqueeze(1))
    allowed = torch.where(allowed.any(1, keepdim=True), allowed, legal)
    rank = (draw[2] * allowed.sum(1)).long()
    uniform = (allowed.cumsum(1) > rank.unsqueeze(1)).int().argmax(1)
    return torch.where(draw[0] < epsilon, uniform, greedy)


# ---- learning targets


def masked(q: Tensor, legal: Tensor) -> Tensor:
    """[B, A] action values with -∞ for illegal actions (cost-model.md)."""
    if q.shape != legal.shape:
        raise ValueError(f"values {tuple(q.shape)} and mask {tuple(legal.shape)} differ in shape")
    return torch.where(legal, q, ILLEGAL)


def rated_choice(q_chooser: Tensor, rated: Tensor, legal: Tensor) -> Tensor:
    """What one network says of the action that another would take: [B, A], [B, A], [B, A] → [B].

    Double Q-learning lets the online network choose and the target network rate (van Hasselt et al. 2016, eq. 4). 0
    where no action is legal: an episode's end.
    """
    best = masked(q_chooser, legal).argmax(1)
    value = rated.gather(1, best.unsqueeze(1)).squeeze(1)
    return torch.where(legal.any(1), value, 0.0)


def log_rescale(reward: Tensor) -> Tensor:
    """h(r) = log r on [e^-5, 1], -6 for a penalty: equal ratios of L become equal differences of value.

    A transformed Bellman operator (Pohlen et al. 2018) with γ = 1 and one reward at the end needs no inverse.
    Without it plans that communication dominates, whose rewards are all small, hardly count in the loss.
    """
    return torch.where(reward > 0, reward.clamp(min=1e-9).log().clamp(min=-5.0), -6.0)
