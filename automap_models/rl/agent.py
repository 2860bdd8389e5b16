"""The Rainbow agent: explore, remember, learn (Auto-MAP §3.1: double, dueling, prioritised, ε-greedy).

An episode has a fixed number of decisions and one reward at its end, and a partial plan is the complete one
truncated. So the replay holds, per transition, the complete plan, the step and the final reward; the states
s_tm1 and s_t are derived from it, whatever n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline import Partial, PipelineEnv, Problems
from automap_models.errors import BadInput
from automap_models.rl import targets
from automap_models.rl.replay import Items

MAX_STEPS = 62
"""Decisions that fit the exploration bits of an episode."""


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
        epsilon_start, epsilon_end, epsilon_iterations: linear ε schedule, in learner iterations.
        local_share: share of exploratory actions drawn within `local_radius` of the greedy one instead of anywhere.
        value_low, value_high: support of a categorical head.
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
    value_low: float = -1.0
    value_high: float = 1.0
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
    q: Tensor, legal: Tensor, epsilon: float, config: AgentConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """[B] ε-greedy actions and whether each is another than the greedy one.

    An exploratory action is uniform over legal actions or near the greedy one.
    """
    greedy = targets.masked(q, legal).argmax(1)
    if epsilon == 0:
        return greedy, torch.zeros_like(greedy, dtype=torch.bool)
    draw = torch.rand(3, len(q), generator=generator).to(q.device)
    near = (torch.arange(q.shape[1], device=q.device) - greedy.unsqueeze(1)).abs() <= config.local_radius
    allowed = legal & (near | (draw[1] >= config.local_share).unsqueeze(1))
    allowed = torch.where(allowed.any(1, keepdim=True), allowed, legal)
    rank = (draw[2] * allowed.sum(1)).long()
    uniform = (allowed.cumsum(1) > rank.unsqueeze(1)).int().argmax(1)
    action = torch.where(draw[0] < epsilon, uniform, greedy)
    return action, action != greedy


class Episodes(NamedTuple):
    """B finished episodes.

    complete: the plans; reward: [B]; steps: int64 [B] decisions made; explored: int64 [B] whose bit t says that
    decision t was exploratory.
    """

    complete: Partial
    reward: Tensor
    steps: Tensor
    explored: Tensor


class QNetwork(Protocol):
    """What an agent asks of a network; see rl.q_network."""

    def prepare(self, problems: Problems) -> Problems:
        """The problems with whatever the network derives once for all their states."""

    def describe(self, problems: Problems, partial: Partial) -> Any:
        """What the network reads of a batch of states; free of weights."""

    def floor(self, described: Any) -> Tensor:
        """[B] value below which returns need not be told apart."""

    def __call__(self, described: Any) -> Tensor:
        """[B, A, Z] action values."""


class Agent:
    """A Q-network with its target network on one environment."""

    def __init__(self, env: PipelineEnv, online: QNetwork, target: QNetwork, config: AgentConfig) -> None:
        self.env, self.online, self.target, self.config = env, online, target, config

    def q(self, network: QNetwork, problems: Problems, partial: Partial) -> Tensor:
        """[B, A] expected returns; illegal actions are not masked here."""
        return self.expected(network(network.describe(problems, partial)))

    def expected(self, values: Tensor) -> Tensor:
        """[B, A, Z] outputs of a network → [B, A] expected returns."""
        return targets.expectation(values, self._atoms(values))

    def _atoms(self, values: Tensor) -> Tensor:
        return targets.support(self.config.value_low, self.config.value_high, values.shape[-1], values)

    @torch.no_grad()
    def rollout(self, problems: Problems, epsilon: float, generator: torch.Generator) -> Episodes:
        """Play one episode on each problem."""
        problems = self.online.prepare(problems)
        partial = self.env.reset(problems)
        reward = torch.zeros(len(partial.step), device=partial.step.device)
        explored = torch.zeros_like(partial.step)
        steps = self.env.episode_steps(problems)
        for t in range(int(steps.max())):
            rows = (steps > t).nonzero().squeeze(1)
            here, so_far = problems.take(rows), partial.take(rows)
            legal = self.env.legal(here, so_far)
            action, other = explore(self.q(self.online, here, so_far), legal, epsilon, self.config, generator)
            following, earned, _ = self.env.step(here, so_far, action)
            partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, following, strict=True)))
            reward = reward.index_put((rows,), earned)
            explored = explored.index_add(0, rows, other.long() << t)
        return Episodes(partial, reward, steps, explored)

    def loss(self, problems: Problems, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of a replayed batch and the absolute errors [B] that become priorities.

        Args:
            problems: the problems the items belong to, in their order.
            items: rows of `transitions`.
            weights: [B] importance weights.
        """
        complete, step, final, explored = unpack(items, problems.arrays.device)
        if self.config.log_values:
            final = targets.log_rescale(final)
        s_tm1 = complete.at_step(step)
        a_tm1 = action_at(complete, step, problems.points)
        steps = self.env.episode_steps(problems)
        gamma = self.config.gamma
        reached = torch.minimum(torch.minimum(step + self.config.n_steps, steps), next_explored(explored, step))
        ends = reached == steps
        r_t = torch.where(ends, gamma ** (steps - step - 1).float() * final, 0.0)
        discount_t = torch.where(ends, 0.0, gamma ** (reached - step).float())
        described = self.online.describe(problems, s_tm1)
        values = self.online(described)
        chosen = values.gather(1, a_tm1.view(-1, 1, 1).expand(-1, 1, values.shape[2])).squeeze(1)
        with torch.no_grad():
            target = self._target(problems, complete.at_step(reached), ends, r_t, discount_t, values.shape[2])
        if values.shape[2] > 1:
            error = -(target * chosen.log_softmax(1)).sum(1)
            return (weights * error).mean(), error.detach()
        if self.config.best_known:
            target = torch.maximum(target, gamma ** (steps - step - 1).float() * final)
        error = chosen.squeeze(1) - torch.maximum(target, self.online.floor(described))
        return (weights * targets.huber(error, self.config.huber)).mean(), error.detach().abs()

    def _target(
        self, problems: Problems, s_t: Partial, ends: Tensor, r_t: Tensor, discount_t: Tensor, atoms: int
    ) -> Tensor:
        """[B] targets, or [B, Z] target distributions of a categorical head; s_t counts only where it is no end."""
        rows = (~ends).nonzero().squeeze(1)
        here, so_far = problems.take(rows), s_t.take(rows)
        value = r_t.new_zeros((0, atoms))
        if len(rows):
            described = self.target.describe(here, so_far)
            value = self.target(described)
            chooser = self.online(described) if self.config.double else value
            value = targets.rated_choice(self.expected(chooser), value, self.env.legal(here, so_far))
        everywhere = r_t.new_zeros((len(r_t), atoms)).index_put((rows,), value)
        if atoms == 1:
            return targets.n_step_target(r_t, discount_t, everywhere.squeeze(1))
        return targets.categorical_projection(r_t, discount_t, everywhere.softmax(1), self._atoms(everywhere))


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
    made = (cuts >= 0).sum(1) + (device_cuts >= 0).sum(1)
    return Partial(cuts, device_cuts, made), step, torch.from_numpy(items["reward"]).to(device), explored


def action_at(complete: Partial, step: Tensor, points: int) -> Tensor:
    """[B] the action of the shared space that was taken at `step` of complete plans."""
    stage = (step // 2).unsqueeze(1)
    cut = complete.cuts.gather(1, stage).squeeze(1)
    device = complete.device_cuts.gather(1, stage).squeeze(1)
    return torch.where(step % 2 == 0, cut, device + points - 1)
