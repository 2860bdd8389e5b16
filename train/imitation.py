"""The same network and the same training, but taught by the exact planner's plans instead of its own episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from automap_models.envs.pipeline.env import Problems
from automap_models.errors import BadInput
from automap_models.rl.imitation import as_episodes, imitation_loss
from automap_models.rl.replay import Items
from automap_models.rl.whole_plans import transitions

from .exact_plans import ExactPlans
from .module import RainbowModule


@dataclass(frozen=True)
class ImitationConfig:
    """How plans are imitated.

    Attributes:
        plans: folder in which exact plans are kept between runs (train.exact_plans).
        temperature: differences of action values that count (rl.imitation).

    Raises:
        BadInput: the temperature is not positive.
    """

    plans: str = "runs/exact_plans"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise BadInput(f"is {self.temperature}", where="imitation.temperature", do="give more than 0")


class ImitationModule(RainbowModule):
    """RainbowModule whose replay holds the decisions of exact plans, and whose loss is their cross-entropy.

    What has to do with exploring and with returns (the agent's ε, γ, n, the target network) does nothing here.

    Args:
        network, size, agent, learner, seed: see RainbowModule; an episode a problem is all there is (branches 1).
        imitation: a plain mapping of ImitationConfig.
    """

    plans: ExactPlans

    def __init__(
        self,
        network: str,
        size: dict[str, Any],
        agent: dict[str, Any],
        learner: dict[str, Any],
        seed: int,
        imitation: dict[str, Any],
    ) -> None:
        super().__init__(network, size, agent, learner, seed)
        self.imitation = ImitationConfig(**imitation)
        if self.settings.branches != 1:
            raise BadInput(
                f"is {self.settings.branches}", where="agent.learner.branches", do="set 1: there is one exact plan"
            )

    def _episodes(self, index: Tensor, problems: Problems, epsilon: float) -> tuple[Items, Tensor]:
        """The exact plan of each problem as an episode."""
        cuts, device_cuts = (
            torch.from_numpy(table).long().to(self.device)
            for table in self.plans.of(index.numpy(), self.size.max_stages)
        )
        episodes = as_episodes(self.agent, problems, cuts, device_cuts)
        return transitions(index, episodes, skip_last=self.exact_decisions), episodes.reward

    def _loss(self, problems: Problems, items: Items, importance: Tensor) -> tuple[Tensor, Tensor]:
        return imitation_loss(self.agent, problems, items, importance, self.imitation.temperature)
