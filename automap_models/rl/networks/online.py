"""The Q-network of online pipeline planning: one small network shared by all pivots, on the paper's features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from automap_models.envs.online.env import legal_pivots, pivot_costs
from automap_models.envs.online.tables import Behind, Chosen, Pivots
from automap_models.rl.networks.pipeline import HOPELESS, best_legal, dueling
from automap_models.rl.targets import log_rescale

PAPER, LOOK_AHEAD, STATE = 3, 4, 3
"""Features of a pivot: the paper's, the look-ahead's but the device cut; features of a state but the cut's number."""


class Described(NamedTuple):
    """What the network reads of B states, each of the U different ones once.

    features: [U, P, F]; globally: [U, G]; legal: bool [U, P]; base: [U, P] what the values are added to; exact: bool
    [U] whether the base needs no correction; which: int64 [B] which of the U each state is.
    """

    features: Tensor
    globally: Tensor
    legal: Tensor
    base: Tensor
    exact: Tensor
    which: Tensor


class PivotQNetwork(nn.Module):
    """Action values of pivots: dueling heads on a perceptron that all pivots share.

    It reads the paper's three features of every pivot (all-reduce time, largest transfer and balance of the pipeline if
    cut there), times relative to the ideal length, and how many cuts are left. With a look-ahead it also reads what the
    lower bound of L is made of, the device cut and the state, and learns by how much log(ideal / L) falls short of what
    the bound says; the last pivot's bound is L itself, where nothing is to be learned.

    Args:
        hidden: width of its layers.
        problems: the one that it is for.
        look_ahead: whether there is one.
    """

    def __init__(self, hidden: int, problems: Pivots, *, look_ahead: bool) -> None:
        super().__init__()
        self.look_ahead = look_ahead
        cuts, device_cuts = problems.device.shape
        features, globally = (PAPER + LOOK_AHEAD + device_cuts, STATE + cuts) if look_ahead else (PAPER, 1)
        self.embed = nn.Linear(features, hidden)
        self.embed_globally = nn.Linear(globally, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.advantage, rate = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(globally, hidden), nn.ReLU(), rate)
        for last in (self.advantage, rate):
            nn.init.normal_(last.weight, std=1e-2)
            nn.init.zeros_(last.bias)

    def prepare(self, problems: Pivots) -> Pivots:
        """This network derives nothing."""
        return problems

    @torch.no_grad()
    def describe(self, problems: Pivots, states: Chosen) -> Described:
        """The features of a batch of states; they depend on no weights, so that two networks can share them."""
        states, which = states.distinct()
        legal, costs, ideal_s = legal_pivots(problems, states), pivot_costs(problems, states), problems.ideal_s
        transfers_s = 2 * problems.micro_batches * costs.transfer_s
        features = [(costs.all_reduce_s / ideal_s).log1p(), (transfers_s / ideal_s).log1p(), costs.balance]
        globally = [1 - states.step / (problems.stages - 1)]
        base = torch.zeros_like(costs.bound_s)
        if self.look_ahead:
            base = log_rescale(ideal_s / costs.bound_s)
            features += [
                -base,
                costs.stage_s / ideal_s - 1,
                (costs.leaving_s / ideal_s).log1p(),
                costs.rest_s / ideal_s - 1,
            ]
            slot, behind = problems.slot[states.step], Behind(*states.behind.unbind(1))
            features += [slot == j for j in range(problems.device.shape[1])]
            globally += [behind.span_s / ideal_s, behind.device / problems.devices]
            globally += [states.step == s for s in range(problems.stages - 1)]
        base = torch.where(legal, base, 0.0).float()
        if self.look_ahead:
            base = torch.maximum(base, best_legal(base, legal) - HOPELESS)
        described = torch.stack([feature.float() for feature in features], 2)
        return Described(
            torch.where(legal.unsqueeze(2), described, 0.0),
            torch.stack([feature.float() for feature in globally], 1),
            legal,
            base,
            (states.step == problems.stages - 2) & self.look_ahead,
            which,
        )

    def floor(self, described: Described) -> Tensor:
        """[B] values below this need not be told apart (networks.pipeline.HOPELESS); -∞ without a look-ahead."""
        if not self.look_ahead:
            return described.base.new_full((len(described.which),), -torch.inf)
        return best_legal(described.base, described.legal).squeeze(1)[described.which] - HOPELESS

    def forward(self, described: Described) -> Tensor:
        """[B, P] action values."""
        hidden = torch.relu(self.embed(described.features) + self.embed_globally(described.globally).unsqueeze(1))
        advantage = self.advantage(torch.relu(self.mix(hidden))).squeeze(2)
        values = dueling(self.value(described.globally), advantage, described.legal)
        learned = torch.where(described.exact.unsqueeze(1), 0.0, values)
        return (learned + described.base)[described.which]
