"""How Rainbow agents explore and learn (Auto-MAP §3.1: double, dueling, prioritised, ε-greedy).

There are two: one plans pipelines (rl.episodes), the other decides how dimensions are sharded (rl.decisions).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from automap_models.errors import BadInput
from automap_models.rl import td_targets


@dataclass(frozen=True)
class AgentConfig:
    """Hyper-parameters of learning and exploration.

    Attributes:
        gamma: discount per decision.
        n_steps: rewards summed before bootstrapping, at most; the sum stops before the next exploratory action, so
            that long returns are those of the greedy policy (Watkins 1989). At least the episode's length means: as
            far as exploration allows.
        log_values: learn log_rescale(reward) instead of the reward itself; needs gamma 1.
        double: whether the online network chooses the action that the target network rates.
        epsilon_start, epsilon_end, epsilon_iterations: linear ε schedule, in iterations of whoever
            asks: learner iterations, or decisions made.
        local_share: share of exploratory actions drawn within `local_radius` of the greedy one instead of anywhere.
        huber: error from which the loss grows linearly: the rare large errors must not drown the small differences
            among good actions.
        best_known: raise a bootstrapped target to the episode's own return when that was better
            (it is a lower bound of the optimal value in a deterministic environment; He et al. 2017).
    """

    gamma: float = 1.0
    n_steps: int = 1
    log_values: bool = True
    double: bool = True
    epsilon_start: float = 1.0
    epsilon_end: float = 0.1
    epsilon_iterations: int = 2000
    local_share: float = 0.5
    local_radius: int = 4
    best_known: bool = False
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
) -> tuple[Tensor, Tensor]:
    """[B] ε-greedy actions and whether each is another than the greedy one.

    An exploratory action is uniform over legal actions or near the greedy one.

    Args:
        epsilon: one number, or one for each row, [B].
    """
    greedy = td_targets.masked(q, legal).argmax(1)
    if isinstance(epsilon, float | int) and epsilon == 0:
        return greedy, torch.zeros_like(greedy, dtype=torch.bool)
    draw = torch.rand(3, len(q), generator=generator).to(q.device)
    near = (torch.arange(q.shape[1], device=q.device) - greedy.unsqueeze(1)).abs() <= config.local_radius
    allowed = legal & (near | (draw[1] >= config.local_share).unsqueeze(1))
    allowed = torch.where(allowed.any(1, keepdim=True), allowed, legal)
    rank = (draw[2] * allowed.sum(1)).long()
    uniform = (allowed.cumsum(1) > rank.unsqueeze(1)).int().argmax(1)
    action = torch.where(draw[0] < epsilon, uniform, greedy)
    return action, action != greedy
