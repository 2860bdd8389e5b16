"""Decisions on shardings: how a network makes them, what of them a replay holds, and what is learned of that.

moments      what every running episode decides at a time
replay       a row a decision: the state before it, the state n decisions later, and the rewards on the way
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.rl.agent import AgentConfig, explore, huber, n_step_target, rated_choice
from automap_models.rl.learner import Learner, LearnerConfig
from automap_models.rl.networks.pipeline import dueling
from automap_models.rl.replay import Items, PrioritisedReplay


class ShardingQNetwork(nn.Module):
    """A dueling perceptron on the m decisions in their order and the share of them that lies behind (Auto-MAP §3.2).

    Args:
        dims: m.
        hidden: width of a layer.
        layers: number of layers below the two heads.
    """

    def __init__(self, dims: int, hidden: int, layers: int) -> None:
        super().__init__()
        body: list[nn.Module] = []
        width = dims + 1
        for _ in range(layers):
            body += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        self.body = nn.Sequential(*body)
        self.advantage, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    @torch.no_grad()
    def describe(self, tables: ShardingTables, states: Decided) -> tuple[Tensor, Tensor]:
        """[B, m+1] the flattened state, and [B, 2] the legal actions, over which advantages are centred."""
        position = states.position.unsqueeze(1) / len(tables.order)
        return torch.cat([tables.decision_vector(states).float(), position], 1), tables.legal(states)

    def forward(self, described: tuple[Tensor, Tensor]) -> Tensor:
        """[B, 2] action values."""
        flat, legal = described
        hidden = self.body(flat)
        return dueling(self.value(hidden), self.advantage(hidden), legal)


class Moment(NamedTuple):
    """One decision in each of R running episodes.

    rows: int64 [R] which of the episodes; s_tm1, a_tm1 [R], explored: bool [R], whether the action is another than the
    greedy one; r_t [R], s_t; ended: bool [R].
    """

    rows: Tensor
    s_tm1: Decided
    a_tm1: Tensor
    explored: Tensor
    r_t: Tensor
    s_t: Decided
    ended: Tensor


@dataclass(frozen=True)
class ShardingAgent:
    """A Q-network with its target network on one problem.

    Attributes:
        tables: of the problem.
        online, target: of equal make.
        config: see AgentConfig.
    """

    tables: ShardingTables
    online: ShardingQNetwork
    target: ShardingQNetwork
    config: AgentConfig

    def q(self, network: ShardingQNetwork, states: Decided) -> Tensor:
        """[B, 2] expected returns; illegal actions are not masked here."""
        values: Tensor = network(network.describe(self.tables, states))
        return values

    def play(self, states: Decided, epsilon: float | Tensor, generator: torch.Generator) -> Iterator[Moment]:
        """Go on from `states` to the end of every episode, one decision in each at a time.

        Args:
            epsilon: one number, or one for each episode, [B].
        """
        rows = self.tables.legal(states).any(1).nonzero().squeeze(1)
        s_tm1 = states.take(rows)
        while len(rows):
            with torch.no_grad():  # never across a yield: it would reach into the caller
                often = epsilon[rows] if isinstance(epsilon, Tensor) else epsilon
                legal = self.tables.legal(s_tm1)
                action, explored = explore(self.q(self.online, s_tm1), legal, often, self.config, generator)
                s_t, reward, ended = self.tables.step(s_tm1, action)
            yield Moment(rows, s_tm1, action, explored, reward, s_t, ended)
            going = (~ended).nonzero().squeeze(1)
            rows, s_tm1 = rows[going], s_t.take(going)

    def loss(self, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of rows of `transitions` and the absolute errors [B] that become priorities.

        Args:
            weights: [B] importance weights.
        """
        item = {name: torch.from_numpy(column) for name, column in items.items()}
        before, after = Decided(item["classes"], item["position"]), Decided(item["classes_t"], item["position_t"])
        chosen = self.q(self.online, before).gather(1, item["action"].unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            target = self._target(item["r_t"], item["discount_t"], after)
        if self.config.best_known:
            target = torch.maximum(target, item["return_t"])
        error = chosen - target
        return (weights * huber(error, self.config.huber)).mean(), error.detach().abs()

    def _target(self, r_t: Tensor, discount_t: Tensor, s_t: Decided) -> Tensor:
        """[B] targets; states count only where the discount does."""
        rows = discount_t.nonzero().squeeze(1)
        value = r_t.new_zeros(0)
        if len(rows):
            going = s_t.take(rows)
            described = self.target.describe(self.tables, going)
            value = self.target(described)
            chooser = self.online(described) if self.config.double else value
            value = rated_choice(chooser, value, self.tables.legal(going))
        return n_step_target(r_t, discount_t, torch.zeros_like(r_t).index_put((rows,), value))


def transitions(states: Decided, moments: Sequence[Moment], config: AgentConfig) -> Items:
    """Rows for the replay: every decision of B episodes.

    Args:
        states: in which the episodes began, [B].
        moments: one at least, all that ShardingAgent.play went through from there.
        config: says how many rewards are summed, at most, and how they are discounted.

    Returns:
        `classes` and `position` of the state before a decision, with _t of the state that the sum reaches; `action`;
        `r_t`: the n rewards, discounted; `discount_t`: γⁿ, 0 after the end; `return_t`: what the episode itself went on
        to earn, discounted.
    """
    classes = _dense([states.classes, *(m.s_t.classes for m in moments)], moments)
    position = _dense([states.position, *(m.s_t.position for m in moments)], moments)
    episodes = len(states.position)
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
        "classes": classes[episode, step],
        "position": position[episode, step],
        "classes_t": classes[episode, until],
        "position_t": position[episode, until],
    }
    return {name: column.numpy() for name, column in columns.items()}


def empty_decision(tables: ShardingTables) -> Items:
    """One row of `transitions` as the replay wants to know it."""
    number, place = np.zeros((), dtype=np.float32), np.zeros((), dtype=np.int64)
    classes = np.zeros(len(tables.live), dtype=np.int8)
    state: Items = {"classes": classes, "position": place, "classes_t": classes, "position_t": place}
    return {"action": place, **state, "r_t": number, "discount_t": number, "return_t": number}


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


def _dense(values: Sequence[Tensor], moments: Sequence[Moment]) -> Tensor:
    """[B, T+1, …] of a first value for all episodes and one for each moment's rows; 0 after an episode's end."""
    filled = values[0].new_zeros((len(values[0]), len(values), *values[0].shape[1:]))
    filled[:, 0] = values[0]
    for t, moment in enumerate(moments):
        filled[moment.rows, t + 1] = values[t + 1]
    return filled


class DecisionLearner(Learner):
    """The learner of an agent that plays on one problem while it learns; its replay holds decisions.

    Args:
        agent: whose networks are trained.
        config: how to train.
        rng: of the replay's draws.
    """

    def __init__(self, agent: ShardingAgent, config: LearnerConfig, rng: np.random.Generator) -> None:
        replay = PrioritisedReplay(config.replay, empty_decision(agent.tables), config.alpha, config.beta)
        super().__init__(agent.online, agent.target, replay, config, rng, agent.loss)
        self.agent = agent

    def remember(self, states: Decided, moments: list[Moment]) -> None:
        """Episodes into the replay; the oldest make room, and of too many only the last fit."""
        rows = transitions(states, moments, self.agent.config)
        self.replay.add({name: column[-self.config.replay :] for name, column in rows.items()})
