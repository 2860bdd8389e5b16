"""Decisions on shardings: how a network makes them, what of them a replay holds, and what is learned of that.

moments      what every running episode decides at a time
replay       a row a decision: the state before it, the state after it, and its reward
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.rl.agent import AgentConfig, explore, rated_choice
from automap_models.rl.learner import Learner, LearnerConfig
from automap_models.rl.networks.pipeline import dueling
from automap_models.rl.replay import Items, PrioritisedReplay


class ShardingQNetwork(nn.Module):
    """A dueling perceptron on the m decisions in their order and the share of them that lies behind (Auto-MAP §3.2).

    Args:
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

    rows: int64 [R] which of the episodes; s_tm1, a_tm1 [R], r_t [R], s_t.
    """

    rows: Tensor
    s_tm1: Decided
    a_tm1: Tensor
    r_t: Tensor
    s_t: Decided


@dataclass(frozen=True)
class ShardingAgent:
    """A Q-network with its target network on one problem.

    Attributes:
        online, target: of equal make.
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
                action = explore(self.q(self.online, s_tm1), legal, often, self.config, generator)
                s_t, reward, ended = self.tables.step(s_tm1, action)
            yield Moment(rows, s_tm1, action, reward, s_t)
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
            described = self.target.describe(self.tables, after)
            value = rated_choice(self.online(described), self.target(described), self.tables.legal(after))
            target = item["r_t"] + self.config.gamma * value
        loss = huber_loss(chosen, target, reduction="none", delta=self.config.huber)
        return (weights * loss).mean(), (chosen - target).detach().abs()


def transitions(moments: Sequence[Moment]) -> Items:
    """Rows for the replay: every decision of some episodes, episode by episode.

    Args:
        moments: one at least, all that ShardingAgent.play went through from there.

    Returns:
        `classes` and `position` of the state before a decision, with _t of the state after it; `action` and its reward
        `r_t`.
    """
    order = torch.cat([m.rows for m in moments]).argsort(stable=True)
    columns = {
        "action": [m.a_tm1 for m in moments],
        "r_t": [m.r_t for m in moments],
        "classes": [m.s_tm1.classes for m in moments],
        "position": [m.s_tm1.position for m in moments],
        "classes_t": [m.s_t.classes for m in moments],
        "position_t": [m.s_t.position for m in moments],
    }
    return {name: torch.cat(column)[order].numpy() for name, column in columns.items()}


def empty_decision(tables: ShardingTables) -> Items:
    """One row of `transitions` as the replay wants to know it."""
    place, classes = np.zeros((), dtype=np.int64), np.zeros(len(tables.live), dtype=np.int8)
    state: Items = {"classes": classes, "position": place, "classes_t": classes, "position_t": place}
    return {"action": place, **state, "r_t": np.zeros((), dtype=np.float32)}


class DecisionLearner(Learner):
    """The learner of an agent that plays on one problem while it learns; its replay holds decisions."""

    def __init__(self, agent: ShardingAgent, config: LearnerConfig, rng: np.random.Generator) -> None:
        replay = PrioritisedReplay(config.replay, empty_decision(agent.tables), config.alpha, config.beta)
        super().__init__(agent.online, agent.target, replay, config, rng, agent.loss)

    def remember(self, moments: list[Moment]) -> None:
        """Episodes into the replay; the oldest make room, and of too many only the last fit."""
        rows = transitions(moments)
        self.replay.add({name: column[-self.config.replay :] for name, column in rows.items()})
