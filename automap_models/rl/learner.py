"""The one learner: offline training gives it a data set's replay, online training the episodes of one problem.

Online, the replay holds decisions, each with the state before it, the state n decisions later and the rewards on the
way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn

from automap_models.errors import BadInput
from automap_models.rl.agent import Agent, AgentConfig, Moment, ProblemsT, StatesT, Transitions
from automap_models.rl.replay import Items, PrioritisedReplay

BEFORE, AFTER = "s_tm1_", "s_t_"
"""Names of the replay's columns that hold the parts of states, by their number."""


def transitions(states: StatesT, moments: Sequence[Moment[StatesT]], config: AgentConfig) -> Items:
    """Rows for the replay: every decision of B episodes.

    Args:
        states: in which the episodes began, [B].
        moments: one at least, all that Agent.play went through from there.
        config: says how many rewards are summed, at most, and how they are discounted.
    """
    parts = [_dense([part, *(tuple(m.s_t)[i] for m in moments)], moments) for i, part in enumerate(states)]
    episodes = len(parts[0])
    start = torch.zeros(episodes)
    reward = _dense([start, *(m.r_t for m in moments)], moments)[:, 1:]
    explored = _dense([start.bool(), *(m.explored for m in moments)], moments)[:, 1:]
    action = _dense([start.long(), *(m.a_tm1 for m in moments)], moments)[:, 1:]
    end = torch.bincount(torch.cat([m.rows for m in moments]), minlength=episodes)
    r_t, reached = n_step_sums(reward, explored, end, config)
    episode, step = (torch.arange(len(moments)) < end.unsqueeze(1)).nonzero(as_tuple=True)
    until = reached[episode, step]
    columns = {
        "action": action[episode, step],
        "r_t": r_t[episode, step],
        "discount_t": torch.where(until == end[episode], 0.0, config.gamma ** (until - step).float()),
        "return_t": returns(reward, config.gamma)[episode, step],
    }
    for number, part in enumerate(parts):
        columns[f"{BEFORE}{number}"], columns[f"{AFTER}{number}"] = part[episode, step], part[episode, until]
    return {name: column.numpy() for name, column in columns.items()}


def empty_step(states: StatesT) -> Items:
    """One row of `transitions` as the replay wants to know it, from any one state or more."""
    number = np.zeros((), dtype=np.float32)
    scalars = {"action": np.zeros((), dtype=np.int64), "r_t": number, "discount_t": number, "return_t": number}
    parts = [part[0].numpy() for part in states]
    return {**scalars, **{f"{time}{i}": part for i, part in enumerate(parts) for time in (BEFORE, AFTER)}}


def replayed(items: Items, make: Callable[..., StatesT]) -> Transitions[StatesT]:
    """What an agent learns from rows of `transitions`; `make` puts the parts of states together again."""
    held = {name: torch.from_numpy(column) for name, column in items.items()}
    before, after = (make(*(held[name] for name in sorted(held) if name.startswith(t))) for t in (BEFORE, AFTER))
    return Transitions(before, held["action"], held["r_t"], held["discount_t"], after, held["return_t"])


def n_step_sums(reward: Tensor, explored: Tensor, end: Tensor, config: AgentConfig) -> tuple[Tensor, Tensor]:
    """[B, T] discounted sums of up to n rewards from each step on, and int64 [B, T] the step that they reach.

    A sum stops at the episode's end, int64 [B], and before the next exploratory action (Watkins 1989).
    """
    step = torch.arange(reward.shape[1]).expand_as(reward)
    total, reached = reward.clone(), step + 1
    going = torch.ones_like(explored)
    for ahead in range(1, min(config.n_steps, reward.shape[1])):
        place = (step + ahead).clamp(max=reward.shape[1] - 1)
        going = going & (step + ahead < end.unsqueeze(1)) & ~explored.gather(1, place)
        total = total + torch.where(going, config.gamma**ahead * reward.gather(1, place), 0.0)
        reached = reached + going
    return total, reached


def returns(reward: Tensor, gamma: float) -> Tensor:
    """[B, T] discounted sums of all rewards from each step on; 0 after an episode's end."""
    sums = torch.zeros_like(reward)
    following = torch.zeros_like(reward[:, 0])
    for step in reversed(range(reward.shape[1])):
        following = reward[:, step] + gamma * following
        sums[:, step] = following
    return sums


def _dense(values: Sequence[Tensor], moments: Sequence[Moment[StatesT]]) -> Tensor:
    """[B, T+1, …] of a first value for all episodes and one for each moment's rows; 0 after an episode's end."""
    filled = values[0].new_zeros((len(values[0]), len(values), *values[0].shape[1:]))
    filled[:, 0] = values[0]
    for t, moment in enumerate(moments):
        filled[moment.rows, t + 1] = values[t + 1]
    return filled


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
        config: how to train.
        rng: of the replay's draws.
        loss: see Loss.
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


class OnlineLearner(Learner, Generic[ProblemsT, StatesT]):
    """The learner of an agent that plays on one problem while it learns; its replay holds decisions.

    Args:
        agent: whose networks are modules; they are trained.
        problems: that it plays on; a replayed batch of them is whatever `problems.take` gives.
        like: any states, from which the replay takes shapes.
        make: puts the parts of states together.
        config: how to train.
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
        replay = PrioritisedReplay(config.replay, empty_step(like), config.alpha, config.beta)

        def loss(items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
            return agent.loss(problems, replayed(items, make), weights)

        super().__init__(agent.online, agent.target, replay, config, rng, loss)
        self.agent = agent

    def remember(self, states: StatesT, moments: list[Moment[StatesT]]) -> None:
        """Episodes into the replay; the oldest make room, and of too many only the last fit."""
        rows = transitions(states, moments, self.agent.config)
        self.replay.add({name: column[-self.config.replay :] for name, column in rows.items()})


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
