"""The Rainbow agent: explore, remember, learn (Auto-MAP §3.1: double, dueling, prioritised, ε-greedy).

It plays on any environment of this shape, batched in torch: a batch of problems and a batch of states are named tuples
of tensors with `take`, actions are the columns of a mask. How an episode is kept in a replay is the environment's
matter (rl.learner); the agent learns from `Transitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from automap_models.errors import BadInput
from automap_models.rl import targets


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
    greedy = targets.masked(q, legal).argmax(1)
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


class Batch(Protocol):
    """B problems or B states: a tuple of tensors."""

    def take(self, index: Tensor, /) -> Any:
        """Those selected by an index."""

    def __iter__(self) -> Iterator[Any]:
        """Its parts."""


ProblemsT = TypeVar("ProblemsT", bound=Batch)
StatesT = TypeVar("StatesT", bound=Batch)
ReadT_contra = TypeVar("ReadT_contra", bound=Batch, contravariant=True)
SeenT_contra = TypeVar("SeenT_contra", bound=Batch, contravariant=True)


class Environment(Protocol[ReadT_contra, StatesT]):
    """What an agent asks of an environment: pure functions of problems and states."""

    def reset(self, problems: ReadT_contra) -> StatesT:
        """The first states."""

    def legal(self, problems: ReadT_contra, states: StatesT) -> Tensor:
        """bool [B, A]; none after the end of an episode."""

    def step(self, problems: ReadT_contra, states: StatesT, action: Tensor) -> tuple[StatesT, Tensor, Tensor]:
        """The next states, rewards [B], whether the episode ended, bool [B]."""


class QNetwork(Protocol[ReadT_contra, SeenT_contra]):
    """What an agent asks of a network; see rl.networks.sharding."""

    def describe(self, problems: ReadT_contra, states: SeenT_contra) -> Any:
        """What the network reads of a batch of states; free of weights."""

    def __call__(self, described: Any) -> Tensor:
        """[B, A] action values."""


class Moment(NamedTuple, Generic[StatesT]):
    """One decision in each of R running episodes.

    rows: int64 [R] which of the episodes; s_tm1, a_tm1 [R], explored: bool [R], whether the action is another than the
    greedy one; r_t [R], s_t; ended: bool [R].
    """

    rows: Tensor
    s_tm1: StatesT
    a_tm1: Tensor
    explored: Tensor
    r_t: Tensor
    s_t: StatesT
    ended: Tensor


class Transitions(NamedTuple, Generic[StatesT]):
    """B transitions over n decisions.

    s_tm1, a_tm1 [B]; r_t: [B] the n rewards, discounted; discount_t: [B] γⁿ, 0 after the end; s_t: counts only where
    discount_t does; return_t: [B] what the episode itself went on to earn, discounted.
    """

    s_tm1: StatesT
    a_tm1: Tensor
    r_t: Tensor
    discount_t: Tensor
    s_t: StatesT
    return_t: Tensor


class Agent(Generic[ProblemsT, StatesT]):
    """A Q-network with its target network on one environment."""

    def __init__(
        self,
        env: Environment[ProblemsT, StatesT],
        online: QNetwork[ProblemsT, StatesT],
        target: QNetwork[ProblemsT, StatesT],
        config: AgentConfig,
    ) -> None:
        self.env, self.online, self.target, self.config = env, online, target, config

    def q(self, network: QNetwork[ProblemsT, StatesT], problems: ProblemsT, states: StatesT) -> Tensor:
        """[B, A] expected returns; illegal actions are not masked here."""
        return network(network.describe(problems, states))

    def play(
        self, problems: ProblemsT, states: StatesT, epsilon: float | Tensor, generator: torch.Generator
    ) -> Iterator[Moment[StatesT]]:
        """Go on from `states` to the end of every episode, one decision in each at a time.

        Args:
            epsilon: one number, or one for each episode, [B].
        """
        with torch.no_grad():
            rows = self.env.legal(problems, states).any(1).nonzero().squeeze(1)
            here, s_tm1 = problems.take(rows), states.take(rows)
        while len(rows):
            with torch.no_grad():  # never across a yield: it would reach into the caller
                q, legal = self.q(self.online, here, s_tm1), self.env.legal(here, s_tm1)
                often = epsilon[rows] if isinstance(epsilon, Tensor) else epsilon
                action, explored = explore(q, legal, often, self.config, generator)
                s_t, reward, ended = self.env.step(here, s_tm1, action)
            yield Moment(rows, s_tm1, action, explored, reward, s_t, ended)
            going = (~ended).nonzero().squeeze(1)
            rows, here, s_tm1 = rows[going], here.take(going), s_t.take(going)

    def loss(self, problems: ProblemsT, transitions: Transitions[StatesT], weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of replayed transitions and the absolute errors [B] that become priorities.

        Args:
            problems: the problems that they belong to, in their order.
            weights: [B] importance weights.
        """
        described = self.online.describe(problems, transitions.s_tm1)
        chosen = self.online(described).gather(1, transitions.a_tm1.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            target = self._target(problems, transitions)
        if self.config.best_known:
            target = torch.maximum(target, transitions.return_t)
        error = chosen - target
        return (weights * targets.huber(error, self.config.huber)).mean(), error.detach().abs()

    def _target(self, problems: ProblemsT, transitions: Transitions[StatesT]) -> Tensor:
        """[B] targets."""
        r_t, discount_t = transitions.r_t, transitions.discount_t
        rows = discount_t.nonzero().squeeze(1)
        here, s_t = problems.take(rows), transitions.s_t.take(rows)
        value = r_t.new_zeros(0)
        if len(rows):
            described = self.target.describe(here, s_t)
            value = self.target(described)
            chooser = self.online(described) if self.config.double else value
            value = targets.rated_choice(chooser, value, self.env.legal(here, s_t))
        return targets.n_step_target(r_t, discount_t, torch.zeros_like(r_t).index_put((rows,), value))
