"""The placer's network: GraphSAGE, segments of attention, devices scored against groups, superposition gates.

    groups ── GraphSAGE, max-pool over inputs and over readers ── attention in segments ──┐
                                 gates: of the pooled graph, on every layer's input       ├─ logits [groups, devices]
    devices ── embedding ── scored against the groups ── + where baselines put a group ───┘

After GDP (Zhou et al., arXiv 1910.01578, §3): max-pool aggregation, attention whose keys are those of a group's segment
and, without gradient, of the segment before it, and x_{l+1} = g_l(c(x_0) ⊙ x_l). Beyond it, a device is an input, and
the network sees the placements of four baselines, so that it learns when to follow which.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from automap_models.envs.placement.features import DEVICE_FEATURES, GROUP_FEATURES, HINTS


@dataclass(frozen=True)
class PlacerSize:
    """Sizes of the network, and which parts of it there are (ablations leave one out).

    Attributes:
        hidden: width.
        sage_layers: of GraphSAGE; 0 leaves it out.
        attention_layers: of the placer; 0 leaves it out.
        heads: of attention.
        segment: groups of a segment.
        superposition: whether layers are gated.
        hints: whether the placements of the baselines are seen.
    """

    hidden: int = 64
    sage_layers: int = 3
    attention_layers: int = 2
    heads: int = 4
    segment: int = 32
    superposition: bool = True
    hints: bool = True


class SageLayer(nn.Module):
    """h ← relu(W [h, max over inputs σ(A h), max over readers σ(B h)]) + h."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_inputs, self.of_readers = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.combine = nn.Linear(3 * hidden, hidden)

    def forward(self, h: Tensor, inputs: Tensor, input_mask: Tensor, readers: Tensor, reader_mask: Tensor) -> Tensor:
        """[B, G, H] and [B, G, K] neighbours → [B, G, H]."""
        near = [
            _pooled(torch.sigmoid(layer(h)), index, mask)
            for layer, index, mask in (
                (self.of_inputs, inputs, input_mask),
                (self.of_readers, readers, reader_mask),
            )
        ]
        out: Tensor = torch.relu(self.combine(torch.cat([h, *near], dim=-1))) + h
        return out


def _pooled(values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """[B, G, H] largest of the neighbours' values, which are positive; 0 without any."""
    b, g, k = index.shape
    flat = index.reshape(b, g * k, 1).expand(b, g * k, values.shape[-1])
    near = values.gather(1, flat).reshape(b, g, k, values.shape[-1])
    return (near * mask.unsqueeze(-1)).amax(dim=2)


class SegmentAttention(nn.Module):
    """Attention of every group to its segment and the one before it, whose keys and values have no gradient."""

    def __init__(self, hidden: int, heads: int, segment: int) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.norm, self.norm_out = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, G, H], [B, G] → [B, G, H]; G is a multiple of the segment."""
        b, g, h = x.shape
        segments, size = g // self.segment, h // self.heads
        y = self.norm(x)

        def split(z: Tensor) -> Tensor:
            return z.reshape(b, segments, self.segment, self.heads, size).transpose(2, 3)

        def with_before(z: Tensor) -> Tensor:
            before = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1]], dim=1).detach()
            return torch.cat([before, z], dim=3)

        seen = mask.reshape(b, segments, 1, self.segment, 1)
        seen = with_before(seen).transpose(3, 4)
        scores = split(self.query(y)) @ with_before(split(self.key(y))).transpose(3, 4) / size**0.5
        weights = torch.softmax(scores + (seen - 1.0) * 1e9, dim=-1)
        mixed = (weights @ with_before(split(self.value(y)))).transpose(2, 3).reshape(b, g, h)
        x = x + self.out(mixed)
        out: Tensor = x + self.narrow(torch.relu(self.widen(self.norm_out(x))))
        return out


class PlacerNetwork(nn.Module):
    """Inputs of envs.placement.features, each with a batch dimension → logits [B, G, D]."""

    def __init__(self, size: PlacerSize) -> None:
        super().__init__()
        self.size = size
        h = size.hidden
        self.embed = nn.Sequential(nn.Linear(GROUP_FEATURES, h), nn.ReLU(), nn.Linear(h, h))
        self.sage = nn.ModuleList(SageLayer(h) for _ in range(size.sage_layers))
        self.attention = nn.ModuleList(
            SegmentAttention(h, size.heads, size.segment) for _ in range(size.attention_layers)
        )
        layers = size.sage_layers + size.attention_layers
        self.condition = nn.Linear(h, h)
        self.gates = nn.ModuleList(nn.Linear(h, h) for _ in range(layers if size.superposition else 0))
        self.device = nn.Sequential(nn.Linear(DEVICE_FEATURES, h), nn.ReLU(), nn.Linear(h, h))
        self.project = nn.Linear(h, h)
        self.trust, self.distrust = nn.Linear(h, HINTS), nn.Parameter(torch.full((HINTS,), 20.0))
        nn.init.zeros_(self.trust.weight)
        nn.init.constant_(self.trust.bias, 4.0)
        nn.init.normal_(self.project.weight, std=0.02)

    def forward(  # the inputs by name, as the ONNX file takes them
        self,
        groups: Tensor,
        group_mask: Tensor,
        inputs: Tensor,
        input_mask: Tensor,
        readers: Tensor,
        reader_mask: Tensor,
        devices: Tensor,
        device_mask: Tensor,
        hints: Tensor,
        hint_scores: Tensor,
    ) -> Tensor:
        """The logits; -1e9 for a device that is not there."""
        mask = group_mask.unsqueeze(-1)
        x = self.embed(groups) * mask
        pooled = torch.relu(self.condition(x.sum(dim=1) / mask.sum(dim=1)))
        gates = [2.0 * torch.sigmoid(gate(pooled)).unsqueeze(1) for gate in self.gates]
        for i, layer in enumerate(self.sage):
            x = layer(x * gates[i] if gates else x, inputs, input_mask, readers, reader_mask) * mask
        for i, block in enumerate(self.attention, start=len(self.sage)):
            x = block(x * gates[i] if gates else x, group_mask) * mask
        score = self.project(x) @ self.device(devices).transpose(1, 2) / self.size.hidden**0.5
        if self.size.hints:
            trust = self.trust(x) * torch.exp(-self.distrust * hint_scores).unsqueeze(1)
            score = score + (hints * trust.unsqueeze(2)).sum(dim=-1)
        logits: Tensor = score + (device_mask.unsqueeze(1) - 1.0) * 1e9
        return logits
