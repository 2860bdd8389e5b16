"""Agents for online pipeline planning: the paper's, and what measures best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from automap_models.errors import BadInput
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig


@dataclass(frozen=True)
class OnlineConfig:
    """How an agent trains online.

    Attributes:
        hidden: width of the network.
        look_ahead: whether it reads a lower bound of L, learns log(ideal / L) and plays only on pivots that a shorter
            plan than a known one can have; without, the paper's features and all pivots that its masks leave.
        reward: what a plan earns: ideal / L, which no unit scales, or 1 / L.
        episodes: how many to play, by default.
        round: ε-greedy episodes between learner iterations; the first of several is greedy.
        around: further ones that explore around the best plan so far (planners.online.exploration).
        agent, learner: hyper-parameters.
    """

    hidden: int
    look_ahead: bool
    reward: Literal["ideal/L", "1/L"]
    episodes: int
    round: int
    around: int
    agent: AgentConfig
    learner: LearnerConfig


AGENTS: Mapping[str, OnlineConfig] = {
    "default": OnlineConfig(
        hidden=16,
        look_ahead=True,
        reward="ideal/L",
        episodes=2048,
        round=16,
        around=32,
        agent=AgentConfig(
            n_steps=64,
            epsilon_start=1.0,
            epsilon_end=0.2,
            epsilon_iterations=100,
            local_share=0.7,
            local_radius=30,
            best_known=True,
            huber=0.02,
        ),
        learner=LearnerConfig(
            learning_rate=3e-3, batch=32, iterations=1, replay=2000, alpha=0.2, beta=0.6, target_every=10
        ),
    ),
    "paper": OnlineConfig(
        hidden=16,
        look_ahead=False,
        reward="1/L",
        episodes=10_000,
        round=1,
        around=0,
        agent=AgentConfig(
            gamma=0.6,
            n_steps=1,
            log_values=False,
            epsilon_start=1.0,
            epsilon_end=0.1,
            epsilon_iterations=10_000,
            local_share=0.0,
            local_radius=0,
        ),
        learner=LearnerConfig(
            learning_rate=1e-3,
            batch=64,
            iterations=1,
            replay=2000,
            alpha=0.2,
            beta=0.6,
            target_every=100,
            gradient_clip=10.0,
        ),
    ),
}
"""paper: hyper-parameters as printed (arXiv 2007.04069, §5.1), which give no layer sizes; default: what measures best
(benchmarks/RESULTS.md)."""


def online_config(name: str) -> OnlineConfig:
    """The shipped agent of that name.

    Raises:
        BadInput: there is none.
    """
    if name not in AGENTS:
        raise BadInput(f"unknown agent {name!r}", where="--agent", do=f"choose from {', '.join(AGENTS)}")
    return AGENTS[name]
