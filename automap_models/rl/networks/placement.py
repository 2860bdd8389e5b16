"""The placer's network: GraphSAGE, segments of attention, moves scored, superposition gates.

    pieces ── GraphSAGE, max-pool over inputs and over readers ── attention in segments ──┐
                                 gates: of the pooled graph, on every layer's input       ├─ a logit for every move
    devices ── embedding, with the pieces on each ── pairs of a piece and a device ───────┘  of a piece to a device

After GDP (Zhou et al., arXiv 1910.01578, §3): max-pool aggregation, attention whose keys are those of a piece's segment
and, without gradient, of the segment before it, and x_{l+1} = g_l(c(x_0) ⊙ x_l). Beyond it, a device is an input, and
the network sees a placement with its simulated step and scores what could be changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from automap_models.envs.placement.features import DEVICE_FEATURES, PAIR_FEATURES, PIECE_FEATURES, SEGMENT


@dataclass(frozen=True)
class PlacerSize:
    """Sizes of the network, and which parts of it there are.

    Attributes:
        sage_layers: of GraphSAGE; 0 leaves it out.
        attention_layers: of the placer; 0 leaves it out.
        superposition: whether layers are gated.
    """

    hidden: int = 64
    sage_layers: int = 3
    attention_layers: int = 2
    heads: int = 4
    superposition: bool = True


class SageLayer(nn.Module):
    """h ← relu(W [h, max over inputs σ(A h), max over readers σ(B h)]) + h."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_inputs, self.of_readers = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.combine = nn.Linear(3 * hidden, hidden)

    def forward(self, h: Tensor, inputs: Tensor, input_mask: Tensor, readers: Tensor, reader_mask: Tensor) -> Tensor:
        """[B, P, H] and [B, P, K] neighbours → [B, P, H]."""
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
    """[B, P, H] largest of the neighbours' values, which are positive; 0 without any."""
    b, k, h = index.shape[0], index.shape[2], values.shape[-1]
    near = values.gather(1, index.reshape(b, -1, 1).expand(-1, -1, h)).reshape(b, -1, k, h)
    return (near * mask.unsqueeze(-1)).amax(dim=2)


class SegmentAttention(nn.Module):
    """Attention of every piece to its segment and the one before it, whose keys and values have no gradient."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_out = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, P, H], [B, P] → [B, P, H]; P is a multiple of SEGMENT."""
        b, h = x.shape[0], x.shape[2]
        size = h // self.heads
        y = self.norm(x)

        def split(z: Tensor) -> Tensor:
            return z.reshape(b, -1, SEGMENT, self.heads, size).transpose(2, 3)

        def with_before(z: Tensor) -> Tensor:
            before = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1]], dim=1).detach()
            return torch.cat([before, z], dim=3)

        attended = with_before(mask.reshape(b, -1, 1, SEGMENT, 1)).transpose(3, 4)
        scores = split(self.query(y)) @ with_before(split(self.key(y))).transpose(3, 4) / size**0.5
        weights = torch.softmax(scores + (attended - 1.0) * 1e9, dim=-1)
        mixed = (weights @ with_before(split(self.value(y)))).transpose(2, 3).reshape(b, -1, h)
        x = x + self.out(mixed)
        out: Tensor = x + self.narrow(torch.relu(self.widen(self.norm_out(x))))
        return out


class PlacerNetwork(nn.Module):
    """Inputs of envs.placement.features, each with a batch dimension → logits [B, P, D]."""

    def __init__(self, size: PlacerSize) -> None:
        super().__init__()
        self.size = size
        h = size.hidden
        self.embed = nn.Sequential(nn.Linear(PIECE_FEATURES, h), nn.ReLU(), nn.Linear(h, h))
        self.sage = nn.ModuleList(SageLayer(h) for _ in range(size.sage_layers))
        self.attention = nn.ModuleList(SegmentAttention(h, size.heads) for _ in range(size.attention_layers))
        layers = size.sage_layers + size.attention_layers
        self.condition = nn.Linear(h, h)
        self.gates = nn.ModuleList(nn.Linear(h, h) for _ in range(layers if size.superposition else 0))
        self.device = nn.Sequential(nn.Linear(DEVICE_FEATURES + h, h), nn.ReLU(), nn.Linear(h, h))
        self.of_piece, self.of_device, self.of_pair = (nn.Linear(n, h) for n in (h, h, PAIR_FEATURES))
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, 1))

    def forward(  # the inputs by name, as the ONNX file takes them
        self,
        pieces: Tensor,
        piece_mask: Tensor,
        inputs: Tensor,
        input_mask: Tensor,
        readers: Tensor,
        reader_mask: Tensor,
        devices: Tensor,
        home: Tensor,
        pairs: Tensor,
        move_mask: Tensor,
    ) -> Tensor:
        """The logits; -1e9 for a move that may not be."""
        mask = piece_mask.unsqueeze(-1)
        x = self.embed(pieces) * mask
        pooled = torch.relu(self.condition(x.sum(dim=1) / mask.sum(dim=1)))
        gates = [2.0 * torch.sigmoid(gate(pooled)).unsqueeze(1) for gate in self.gates]
        for i, layer in enumerate(self.sage):
            x = layer(x * gates[i] if gates else x, inputs, input_mask, readers, reader_mask) * mask
        for i, block in enumerate(self.attention, start=len(self.sage)):
            x = block(x * gates[i] if gates else x, piece_mask) * mask
        there = home.transpose(1, 2) @ x / (home.sum(dim=1).unsqueeze(-1) + 1.0)
        device = self.device(torch.cat([devices, there], dim=-1))
        pair = self.of_piece(x).unsqueeze(2) + self.of_device(device).unsqueeze(1) + self.of_pair(pairs)
        score: Tensor = self.score(pair).squeeze(-1)
        return score + (move_mask - 1.0) * 1e9
