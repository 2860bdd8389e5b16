"""Learner iterations of an agent that learns while it plays: replayed transitions, Adam, the target network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import nn

from automap_models.errors import BadInput
from automap_models.rl.agent import Agent, Moment, ProblemsT, StatesT
from automap_models.rl.replay import PrioritisedReplay
from automap_models.rl.steps import empty_step, replayed, transitions


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


class Learner(Generic[ProblemsT, StatesT]):
    """An agent's replay and optimiser on one problem.

    Args:
        agent: whose networks are modules; they are trained.
        problems: that it plays on; a replayed batch of them is whatever `problems.take` gives.
        like: any states, from which the replay takes shapes.
        make: puts the parts of states together.
        rng: of the replay's draws.
    """

    def __init__(
        self,
        agent: Agent[ProblemsT, StatesT],
        problems: ProblemsT,
        like: StatesT,
        make: Callable[..., StatesT],
        config: LearnerConfig,
        rng: np.random.Generator,
    ) -> None:
        assert isinstance(agent.online, nn.Module) and isinstance(agent.target, nn.Module)
        self.agent, self.problems, self.config = agent, problems, config
        self.make, self.rng = make, rng
        self.online, self.target = agent.online, agent.target
        self.replay = PrioritisedReplay(config.replay, empty_step(like), config.alpha, config.beta)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate)
        self.iteration = 0

    def remember(self, states: StatesT, moments: list[Moment[StatesT]]) -> None:
        """Episodes into the replay; the oldest make room, and of too many only the last fit."""
        rows = transitions(states, moments, self.agent.config)
        self.replay.add({name: column[-self.config.replay :] for name, column in rows.items()})

    def learn(self) -> float:
        """One learner iteration; returns the loss."""
        if self.iteration % self.config.target_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        rows, items, weights = self.replay.sample(self.config.batch, self.rng)
        loss, error = self.agent.loss(self.problems, replayed(items, self.make), torch.from_numpy(weights).float())
        self.replay.update(rows, error.double().numpy())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.online.parameters(), self.config.gradient_clip)
        self.optimizer.step()
        self.iteration += 1
        return float(loss.detach())
