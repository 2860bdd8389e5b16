"""Dueling Q-networks of pipeline planning: action values [B, K] from what they read of states and the legal actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from automap_models.envs.pipeline import features, flat
from automap_models.envs.pipeline.env import Describe
from automap_models.rl.agent import log_rescale


def masked_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """[B, K, H], [B, K] → [B, 2H]: mean and maximum over the legal choices (zero where there is none).

    Two thirds of the time of a product, a sum and `amax`, whose gradients each go through the whole tensor.
    """
    total = mask.to(hidden.dtype).unsqueeze(1).matmul(hidden).squeeze(1)
    mean = total / mask.sum(1, keepdim=True).clamp(min=1)
    largest = torch.where(mask.unsqueeze(2), hidden, -1e9).max(1).values
    return torch.cat([mean, torch.where(mask.any(1, keepdim=True), largest, 0.0)], 1)


def dueling(value: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Q = V + A - mean A over legal actions (Wang et al. 2016, eq. 9): [B, 1], [B, K], [B, K] → [B, K]."""
    mean = (advantage * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return value + advantage - mean


def best_legal(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1] the largest value of a legal choice; 0 where there is none."""
    best = torch.where(mask, values, -torch.inf).amax(1, keepdim=True)
    return torch.where(mask.any(1, keepdim=True), best, 0.0)


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of a Q-network and of the problems that it is for.

    Attributes:
        points: of the grid.
        max_stages, max_devices: of a problem.
        hidden: width of its layers.
    """

    points: int = 128
    max_stages: int = 16
    max_devices: int = 512
    hidden: int = 64


class ChoiceNetwork(nn.Module):
    """One small network shared by all choices of a state, which learn of each other by pooled context.

    Values are log rewards, and what they are added to is the best estimate of a choice.
    """

    KIND = "choices"

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        hidden = size.hidden
        self.embed = nn.Linear(features.FEATURES, hidden)
        self.embed_globally = nn.Linear(features.GLOBAL_FEATURES, hidden)
        self.mixes = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.contexts = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(2))
        self.advantage, self.linear = nn.Linear(hidden, 1), nn.Linear(features.FEATURES, 1)
        last = nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), last)
        for layer in (self.advantage, self.linear, last):
            nn.init.normal_(layer.weight, std=1e-2)
            nn.init.zeros_(layer.bias)

    @staticmethod
    def describe(_: NetworkSize) -> Describe:
        """What the network reads of states."""
        return features.describe

    def forward(self, described: Tensor, globally: Tensor, mask: Tensor) -> Tensor:
        """[B, K] from [B, K, FEATURES], [B, GLOBAL_FEATURES] and bool [B, K]."""
        hidden = torch.relu(self.embed(described) + self.embed_globally(globally).unsqueeze(1))
        for mix, context in zip(self.mixes, self.contexts, strict=True):
            hidden = hidden + torch.relu(mix(hidden) + context(masked_pool(hidden, mask)).unsqueeze(1))
        advantage = (self.advantage(hidden) + self.linear(described)).squeeze(2)
        values = dueling(self.value(masked_pool(hidden, mask)), advantage, mask)
        estimate = log_rescale(described[:, :, features.ESTIMATE])
        return values + best_legal(estimate, mask)


class FlatNetwork(nn.Module):
    """The paper's: a perceptron on the flattened state (Auto-MAP §3.5), whose layers it does not tell: two here."""

    KIND = "flat"

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        given = flat.width(size.points, size.max_stages, size.max_devices)
        self.body = nn.Sequential(
            nn.Linear(given, size.hidden), nn.ReLU(), nn.Linear(size.hidden, size.hidden), nn.ReLU()
        )
        self.advantage = nn.Linear(size.hidden, size.points + size.max_devices - 1)
        self.value = nn.Linear(size.hidden, 1)

    @staticmethod
    def describe(size: NetworkSize) -> Describe:
        """What the network reads of states."""
        return partial(flat.describe, max_devices=size.max_devices)

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        """[B, P + max_devices - 1] from [B, width] and the legal ones, bool."""
        hidden = self.body(state)
        return dueling(self.value(hidden), self.advantage(hidden), mask)


PipelineNetwork = ChoiceNetwork | FlatNetwork
NETWORKS: dict[str, type[PipelineNetwork]] = {network.KIND: network for network in (ChoiceNetwork, FlatNetwork)}
