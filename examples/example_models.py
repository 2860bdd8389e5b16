"""VGG-19 and BERT-large as plain torch modules whose forward pass returns the training loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout as one kernel with a byte mask, which is what CUDA runs (the meta device would decompose it)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """[...] → [...]."""
        return torch.native_dropout(x, self.p, True)[0]


class VGG19(nn.Module):
    """Configuration E of arXiv 1409.1556: 16 convolutions, 3 fully connected layers, 143,667,240 parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features, channels = nn.Sequential(), 3
        for block, (width, depth) in enumerate([(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)], start=1):
            for i in range(1, depth + 1):
                self.features.add_module(f"block{block}_conv{i}", nn.Conv2d(channels, width, 3, padding=1))
                self.features.add_module(f"block{block}_relu{i}", nn.ReLU())
                channels = width
            self.features.add_module(f"block{block}_pool", nn.MaxPool2d(2))
        self.fc1, self.relu1, self.dropout1 = nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), Dropout(0.5)
        self.fc2, self.relu2, self.dropout2 = nn.Linear(4096, 4096), nn.ReLU(), Dropout(0.5)
        self.predictions = nn.Linear(4096, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """[B, 3, 224, 224], [B] → loss []."""
        x = self.features(images).flatten(1)
        x = self.dropout1(self.relu1(self.fc1(x)))
        x = self.dropout2(self.relu2(self.fc2(x)))
        loss: Tensor = self.loss(self.predictions(x), labels)
        return loss


class Attention(nn.Module):
    """Multi-head self-attention with its matrix products written out, as BERT's authors do."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dropout = Dropout(0.1)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, H], additive mask [B, 1, 1, T] → [B, T, H]."""
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask
        mixed = self.dropout(scores.softmax(-1)) @ v
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by dropout, the residual sum and layer normalisation."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.attention_dropout, self.attention_norm = Dropout(0.1), nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate, self.gelu = nn.Linear(hidden, 4 * hidden), nn.GELU()
        self.output = nn.Linear(4 * hidden, hidden)
        self.output_dropout, self.output_norm = Dropout(0.1), nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, H], additive mask [B, 1, 1, T] → [B, T, H]."""
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, mask)))
        fed = self.output(self.gelu(self.intermediate(x)))
        normed: Tensor = self.output_norm(x + self.output_dropout(fed))
        return normed


class Embeddings(nn.Module):
    """Word, position and segment embeddings, their sum normalised."""

    def __init__(self, vocabulary: int, positions: int, hidden: int) -> None:
        super().__init__()
        self.word, self.position, self.segment = (nn.Embedding(n, hidden) for n in (vocabulary, positions, 2))
        self.norm, self.dropout = nn.LayerNorm(hidden, eps=1e-12), Dropout(0.1)
        self.register_buffer("places", torch.arange(positions), persistent=False)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """[B, T], [B, T] → [B, T, H]."""
        places = self.get_buffer("places")[: tokens.shape[1]]
        x = self.word(tokens) + self.segment(segments) + self.position(places)
        out: Tensor = self.dropout(self.norm(x))
        return out


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"layer_{i}", EncoderLayer(hidden, heads))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, H], additive mask [B, 1, 1, T] → [B, T, H]."""
        for layer in self.children():
            x = layer(x, mask)
        return x


class BertLarge(nn.Module):
    """BERT-large, uncased (arXiv 1810.04805), with pooler, fine-tuned as a classifier of sequences."""

    def __init__(self, layers: int = 24, hidden: int = 1024, heads: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.embeddings = Embeddings(30522, 512, hidden)
        self.encoder = Encoder(layers, hidden, heads)
        self.pooler, self.tanh, self.dropout = nn.Linear(hidden, hidden), nn.Tanh(), Dropout(0.1)
        self.classifier = nn.Linear(hidden, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """[B, T], [B, T], [B, T] of 0 and 1, [B] → loss []."""
        additive = (1.0 - mask[:, None, None, :]) * -10000.0
        x = self.encoder(self.embeddings(tokens, segments), additive)
        pooled = self.dropout(self.tanh(self.pooler(x[:, 0])))
        loss: Tensor = self.loss(self.classifier(pooled), labels)
        return loss
