"""Episodes of pipeline planning: how a network plays them, what of them a replay holds, and what is learned of that.

several episodes of a problem    from one random state on, a few choices are each followed greedily to the end; what
                                 they earn says how the choices compare, whatever the problem (`branch`)
one episode of a problem         every decision, its value bootstrapped from the next state by the target network:
                                 double Q-learning as in Auto-MAP's recipe (`decisions`)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from automap_models.envs.pipeline.env import (
    IDEAL,
    Choices,
    Describe,
    Floats,
    Integers,
    Problems,
    States,
    alike,
    follow,
    rewards,
    values_of,
)
from automap_models.rl.agent import AgentConfig, explore, log_rescale, rated_choice
from automap_models.rl.networks.pipeline import PipelineNetwork
from automap_models.rl.replay import Items

IDEAL_OVER_LENGTH, INVERSE_LENGTH = REWARDS = ("ideal_over_length", "inverse_length")
"""What a plan that fits earns. The first tells nothing of a problem's size, so that problems of all sizes are one task;
the second is Auto-MAP's 1 / L (§3.5), with L in units of the problem's joint MAX."""


class Played(NamedTuple):
    """Episodes: rows of them for the replay, the n complete plans, and [n] what these earned."""

    items: Items
    complete: States
    earned: Floats


@dataclass(frozen=True)
class PipelineAgent:
    """A network with its target network that plays and learns.

    Attributes:
        online, target: of equal make.
        describe: what they read of states.
    """

    online: PipelineNetwork
    target: PipelineNetwork
    describe: Describe
    max_stages: int
    reward: str
    config: AgentConfig
    generator: torch.Generator

    def play(self, problems: Problems, states: States, until: Integers, epsilon: float = 0.0) -> States:
        """Go on with plans, ε-greedily, until each has made so many decisions."""

        def choose(worth: Floats, legal: NDArray[np.bool_]) -> Integers:
            q = torch.from_numpy(worth)
            column: Integers = explore(q, torch.from_numpy(legal), epsilon, self.config, self.generator).numpy()
            return column

        return follow(problems, states, until, self.describe, self.worth, choose)

    def planned(self, problems: Problems, epsilon: float = 0.0) -> States:
        """Whole plans."""
        return self.play(problems, States.empty(len(problems.stages), self.max_stages), problems.decisions, epsilon)

    @torch.no_grad()
    def worth(self, choices: Choices) -> NDArray[np.float32]:
        """[B, K] what the online network says."""
        worth: NDArray[np.float32] = values(self.online, choices).cpu().numpy()
        return worth

    def paid(self, problems: Problems, complete: States) -> Floats:
        """[B] rewards of whole plans."""
        earned = rewards(problems, complete)
        if self.reward == IDEAL_OVER_LENGTH:
            return earned
        return np.where(earned > 0.0, earned / problems.numbers[:, IDEAL], earned)

    def branch(self, index: Integers, problems: Problems, branches: int, epsilon: float) -> Played:
        """One state of each problem, after a random number of decisions, and what follows a few of its choices.

        Args:
            index: [B] which problems of the data set they are.
        """
        last = problems.decisions - 2  # the last two are settled
        draw = torch.rand(len(index), generator=self.generator).numpy()
        states = States.empty(len(index), self.max_stages)
        states = self.play(problems, states, (draw * np.maximum(last, 1)).astype(np.int64), epsilon)
        choices = self.describe(problems, states)
        worth = values_of(choices, self.worth)
        columns, taken = self.attempts(worth, choices.legal, branches)
        choice = np.take_along_axis(choices.choice, columns, axis=1)
        owner, place = taken.nonzero()
        begun = problems.take(owner)
        complete = self.play(begun, states.take(owner).after(choice[owner, place]), begun.decisions)
        earned, reward = self.paid(begun, complete), np.zeros(choice.shape)
        reward[owner, place] = earned
        items = {**_rows(index, states), "choice": choice, "taken": taken, "reward": reward}
        return Played(_as_declared(items, empty_branches(self.max_stages, branches)), complete, earned)

    def attempts(self, worth: Floats, legal: NDArray[np.bool_], branches: int) -> tuple[Integers, NDArray[np.bool_]]:
        """[B, branches] different columns, the greedy one first, and which of them are legal.

        The others are drawn among those valued within 0.05 of the best, for which of them is best decides the plan, and
        after these among all legal ones; the last one is drawn among all in any case.
        """
        noise = torch.empty(worth.shape).exponential_(generator=self.generator).numpy()
        order = np.where(legal, -np.log(noise), -np.inf)  # Gumbel: the largest are a random subset
        first = order + np.where(worth >= worth.max(axis=1, keepdims=True) - 0.05, 1e3, 0.0)
        np.put_along_axis(first, worth.argmax(axis=1)[:, None], np.inf, axis=1)
        count = min(branches, worth.shape[1])
        columns = np.argsort(-first, axis=1, kind="stable")[:, :count]
        if branches > 2 and count == branches:
            np.put_along_axis(order, columns[:, :-1], -np.inf, axis=1)
            columns[:, -1] = order.argmax(axis=1)
        taken = np.take_along_axis(legal, columns, axis=1)
        if branches > 2 and count == branches:
            taken[:, -1] &= np.isfinite(order.max(axis=1))
        more = ((0, 0), (0, branches - count))
        return np.pad(columns, more), np.pad(taken, more)

    def branch_loss(self, problems: Problems, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of replayed rows of `branch` and their mean absolute errors [B], which become priorities.

        The error is taken apart into what the choices of a state have in common and the rest: only the rest orders
        them.
        """
        value = self._chosen(problems, _states(items), items["choice"])
        taken, earned = (torch.from_numpy(items[name]).to(value.device) for name in ("taken", "reward"))
        returns = log_rescale(earned) if self.config.log_values else earned
        error = torch.where(taken, value - returns, 0.0)
        count = taken.sum(1).clamp(min=1)
        common = error.sum(1) / count
        apart = torch.where(taken, error - common.unsqueeze(1), 0.0)
        huber = partial(huber_loss, reduction="none", delta=self.config.huber)
        nothing = torch.zeros_like(apart)
        loss = huber(apart, nothing).sum(1) / count + 0.1 * huber(common, nothing[:, 0])  # decides nothing
        return (weights * loss).mean(), error.detach().abs().sum(1) / count

    def decisions(self, index: Integers, problems: Problems, epsilon: float) -> Played:
        """One episode of each problem, in rows of all its decisions."""
        complete = self.planned(problems, epsilon)
        earned = self.paid(problems, complete)
        episode, step = (np.arange(problems.decisions.max()) < problems.decisions[:, None]).nonzero()
        items = _rows(index, complete)
        items = {name: column[episode] for name, column in items.items()} | {"step": step, "reward": earned[episode]}
        return Played(_as_declared(items, empty_decision(self.max_stages)), complete, earned)

    def decision_loss(self, problems: Problems, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of replayed rows of `decisions` and their absolute errors [B]."""
        complete, step = _states(items), items["step"].astype(np.int64)
        rows = np.arange(len(step))
        choice = np.where(step % 2 == 0, complete.cuts[rows, step // 2], complete.firsts[rows, step // 2])
        chosen = self._chosen(problems, complete.before(step), choice[:, None]).squeeze(1)
        earned = torch.from_numpy(items["reward"]).to(chosen.device)
        target = log_rescale(earned) if self.config.log_values else earned
        going = np.flatnonzero(step + 1 < problems.decisions)
        if len(going):
            with torch.no_grad():
                choices = self.describe(problems.take(going), complete.before(step + 1).take(going))
                rated = values(self.target, choices)
                legal = torch.from_numpy(choices.legal).to(rated.device)
                value = self.config.gamma * rated_choice(values(self.online, choices), rated, legal)
                target = target.index_put((torch.from_numpy(going),), value)
        loss = huber_loss(chosen, target, reduction="none", delta=self.config.huber)
        return (weights * loss).mean(), (chosen - target).detach().abs()

    def _chosen(self, problems: Problems, states: States, choice: Integers) -> Tensor:
        """[B, n] values of choices [B, n] of states; of those that there are not anything."""
        parts, order = [], []
        for rows in alike(problems, states, np.arange(len(choice))):
            choices = self.describe(problems.take(rows), states.take(rows))
            columns = (choices.choice[:, None] == choice[rows, :, None]).argmax(axis=2)
            worth = values(self.online, choices)
            parts.append(worth.gather(1, torch.from_numpy(columns).to(worth.device)))
            order.append(rows)
        return torch.cat(parts)[np.concatenate(order).argsort()]


def values(network: PipelineNetwork, choices: Choices) -> Tensor:
    """[B, K] what a network says of choices."""
    place = next(network.parameters()).device
    worth: Tensor = network(*(torch.from_numpy(array).to(place) for array in (*choices.inputs, choices.legal)))
    return worth


def _rows(index: Integers, states: States) -> Items:
    return {"problem": index, **states._asdict()}


def _states(items: Items) -> States:
    return States(*(items[name].astype(np.int64) for name in States._fields))


def _as_declared(items: Items, declared: Items) -> Items:
    return {name: np.asarray(items[name]).astype(row.dtype) for name, row in declared.items()}


def empty_branches(max_stages: int, branches: int) -> Items:
    """One row of `branch` as the replay wants to know it."""
    several = {"choice": np.int16, "taken": np.bool_, "reward": np.float32}
    return _empty_state(max_stages) | {name: np.zeros(branches, dtype=kind) for name, kind in several.items()}


def empty_decision(max_stages: int) -> Items:
    """One row of `decisions` as the replay wants to know it."""
    return _empty_state(max_stages) | {"reward": np.zeros((), dtype=np.float32)}


def _empty_state(max_stages: int) -> Items:
    cuts, number = np.zeros(max_stages - 1, dtype=np.int16), np.zeros((), dtype=np.int64)
    return {"problem": number, "cuts": cuts, "firsts": cuts, "step": number}
