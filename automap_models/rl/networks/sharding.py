"""The Q-network of operator and data partitioning: the decision vector and the position, flattened (Auto-MAP §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.rl.networks.pipeline import dueling


class ShardingQNetwork(nn.Module):
    """A dueling multi-layer perceptron on the m decisions in their order and the share of them that lies behind.

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
