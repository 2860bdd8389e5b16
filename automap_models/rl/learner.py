"""The one learner: offline training gives it a data set's replay, online training the episodes of one problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automap_models.errors import BadInput
from automap_models.rl.replay import Items, PrioritisedReplay


@dataclass(frozen=True)
class LearnerConfig:
    """How a network is trained.

    Attributes:
        learning_rate: of Adam at the start.
        batch: replayed transitions per learner iteration.
        iterations: learner iterations, each an optimiser step, after every batch of episodes.
        replay: capacity in transitions.
        alpha, beta: exponents of prioritised replay; alpha 0 is a uniform one.
        target_every: learner iterations between copies to the target network.
        gradient_clip: largest norm of a gradient.

    Raises:
        BadInput: one that must be positive is not.
    """

    learning_rate: float = 1e-3
    batch: int = 256
    iterations: int = 4
    replay: int = 100_000
    alpha: float = 0.5
    beta: float = 0.5
    target_every: int = 100
    gradient_clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batch", "iterations", "replay", "target_every", "learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise BadInput(f"is {getattr(self, name)}", where=f"agent.learner.{name}", do="give more than 0")


Loss = Callable[[Items, Tensor], tuple[Tensor, Tensor]]
"""Replayed rows and their importance weights, [B] → the weighted loss and the errors, [B], that become priorities."""


class Learner:
    """Learner iterations (Hessel et al. 2018): draw from the replay, improve the network, renew priorities and target.

    Args:
        online, target: the network that learns and its copy that rates; both of one kind.
        replay: whose rows `loss` reads.
        optimise: what a loss does to the weights of `online`; a step of Adam with gradients clipped where it is None.
            Whoever spreads the step over processes gives another.
    """

    def __init__(
        self,
        online: nn.Module,
        target: nn.Module,
        replay: PrioritisedReplay,
        config: LearnerConfig,
        rng: np.random.Generator,
        loss: Loss,
        optimise: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.online, self.target, self.replay, self.config, self.rng = online, target, replay, config, rng
        self.loss, self.optimise = loss, optimise or adam_steps(online, config)
        self.iteration = 0

    def learn(self) -> Tensor:
        """One learner iteration; returns the loss, a single number."""
        if self.iteration % self.config.target_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        rows, items, weights = self.replay.sample(self.config.batch, self.rng)
        loss, error = self.loss(items, torch.from_numpy(weights).float())
        self.replay.update(rows, error.double().cpu().numpy())
        self.optimise(loss)
        self.iteration += 1
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on needs beside the networks, the optimiser and `iteration`."""
        return {"replay": self.replay.state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave."""
        self.replay.load_state_dict(state["replay"])
        self.rng.bit_generator.state = state["rng"]


def adam_steps(network: nn.Module, config: LearnerConfig) -> Callable[[Tensor], None]:
    """Steps of Adam on a network's weights, with clipped gradients and a constant learning rate."""
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), config.gradient_clip)
        optimizer.step()

    return step


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, in the whole process, as long as the context lasts.

    The small networks of a search are quicker with one: threads wait for each other, and where other programs keep the
    cores busy they wait for long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
