"""GPT-2 in PyTorch, layer by layer as workloads/decoder.py has it in JAX."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention with its four matrices, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape

        def project(linear: nn.Linear) -> Tensor:
            return linear(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = project(self.q), project(self.k), project(self.v)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2) + bias
        mixed = torch.softmax(scores, -1) @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class FusedAttention(Attention):
    """The same by scaled_dot_product_attention."""

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (linear(x).view(batch, length, self.heads, -1).transpose(1, 2) for linear in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two matrices with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(F.gelu(self.wi(x), approximate="tanh"))


class Block(nn.Module):
    """Causal attention and feed-forward, a layer norm before each."""

    def __init__(self, width: int, heads: int, attention: type[Attention]) -> None:
        super().__init__()
        self.attention_layer_norm, self.feed_forward_layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed_forward = attention(width, heads), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1])
        lowest = torch.finfo(x.dtype).min
        bias = torch.where(position[:, None] >= position[None, :], 0.0, lowest)[None, None]
        x = x + self.attention(self.attention_layer_norm(x), bias)
        return x + self.feed_forward(self.feed_forward_layer_norm(x))


class Gpt2(nn.Module):
    """Embeddings, decoder, logits with the word embedding, mean cross-entropy."""

    def __init__(
        self, width: int, heads: int, layers: int, vocabulary: int, positions: int, attention: type[Attention]
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(positions, width)
        self.block = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position_embedding(torch.arange(ids.shape[1]))
        for block in self.block:
            x = block(x)
        logits = self.final_layer_norm(x) @ self.embedding.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def gpt2(
    *,
    width: int,
    heads: int,
    layers: int,
    vocabulary: int,
    positions: int,
    batch: int,
    sequence: int,
    attention: type[Attention] = Attention,
) -> tuple[nn.Module, dict[str, Any]]:
    """A model on the meta device, and its inputs."""
    with torch.device("meta"):
        ids = torch.ones(batch, sequence, dtype=torch.int64)
        return Gpt2(width, heads, layers, vocabulary, positions, attention), {"ids": ids, "labels": ids}
