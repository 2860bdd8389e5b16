"""Small torch models for the tests of runs, and plans of them; worker processes import this module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from automap_models.core.cluster import Cluster
from automap_models.core.plan import Plan, Stage

SAMPLES, TOKENS, CLASSES = 6, 5, 11


class Encoder(nn.Module):
    """A transformer's encoder; its loss is outside."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True) for _ in range(6)
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Convolutions(nn.Module):
    """Six normalised convolutions with ReLU in place; it returns its loss, for which it takes labels."""

    def __init__(self, normalisation: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), normalisation(3), nn.ReLU(inplace=True))
            for _ in range(6)
        )
        self.head = nn.Linear(3, CLASSES)

    def forward(self, pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = pictures
        for layer in self.layers:
            x = layer(x) + x
        scores = self.head(x.mean((2, 3)))
        return nn.functional.cross_entropy(scores, labels), scores


class Decoder(nn.Module):
    """Six blocks whose first embedding is also the output layer; a mask and positions are read by all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 8)
        self.positions = nn.Embedding(TOKENS, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(6))
        self.head = nn.Linear(8, CLASSES, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        where = self.positions(torch.arange(TOKENS, device=ids.device))[None]
        x = self.embed(ids) + where
        for layer in self.layers:
            x = x + layer(x + where) * mask[..., None]
        scores = self.head(x)
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _drawn(*shape: int) -> Tensor:
    return torch.randint(CLASSES, shape, generator=torch.Generator().manual_seed(sum(shape)))


def encoder(dropout: float = 0.1) -> tuple[Any, ...]:
    tokens = _drawn(SAMPLES, TOKENS)
    return Encoder(dropout), (tokens,), {}, cross_entropy, tokens.flip(1)


def convolutions(normalisation: Callable[[int], nn.Module] = nn.BatchNorm2d) -> tuple[Any, ...]:
    pictures = torch.randn(SAMPLES, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return Convolutions(normalisation), (pictures, _drawn(SAMPLES))


def decoder() -> tuple[Any, ...]:
    ids = _drawn(SAMPLES, TOKENS)
    return Decoder(), {"ids": ids, "mask": torch.ones(SAMPLES, TOKENS), "labels": ids.roll(1, 1)}


WITHOUT_DRAWS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "encoder": partial(encoder, 0.0),
    "convolutions": partial(convolutions, partial(nn.GroupNorm, 1)),
    "decoder": decoder,
}
"""Models of which every plan computes the same: nothing is drawn, and no sample looks at another one."""


class Noisy(nn.Module):
    """Each layer adds noise of another kind; the mask, of as many rows as a step has samples, is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        noises: list[Callable[[Tensor], Tensor]] = [
            torch.randn_like,
            lambda y: torch.rand(y.shape) + torch.normal(0.0, 1.0, y.shape),
            lambda y: torch.randn(y.shape[1:]) * torch.randint(0, 3, (8,)),
            lambda y: torch.empty_like(y).exponential_(),
        ]
        for layer, noise in zip(self.layers, noises, strict=True):
            x = mask @ torch.tanh(layer(x) + 0.1 * noise(x))
        return x


MASKED = 4 * SAMPLES
"""Tokens, and the samples of four micro-batches."""


def weighed_error(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    """In float64, with a weight for each token, which is no batch."""
    values, weights = target
    return ((output.double() - values) ** 2 * weights[:, None]).mean()


def noisy() -> tuple[Any, ...]:
    x, values = torch.randn(2, SAMPLES, MASKED, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(MASKED, MASKED).tril() / MASKED
    return Noisy(), (x, mask), {}, weighed_error, (values, torch.linspace(0.5, 1.5, MASKED))


def gpt2() -> tuple[Any, ...]:
    """Hugging Face's GPT-2 with random weights: its head is its embedding, it has dropout and returns a ModelOutput."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 3, "n_embd": 8, "n_head": 2, "n_positions": TOKENS, "vocab_size": CLASSES}
    ids = _drawn(SAMPLES, TOKENS)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))
    return model, {"input_ids": ids, "labels": ids}


def t5() -> tuple[Any, ...]:
    """Hugging Face's T5 with random weights: every block of the decoder reads what the encoder made."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"num_layers": 2, "d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 16, "vocab_size": CLASSES}
    ids = _drawn(SAMPLES, TOKENS)
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, use_cache=False))
    return model, {"input_ids": ids, "labels": ids.roll(1, 1)}


def perceptron() -> tuple[nn.Module, tuple[Tensor]]:
    """Eight equal layers, large enough to be measured."""
    samples = torch.randn(128, 512, generator=torch.Generator().manual_seed(0))
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), (samples,)


def plan(
    ends: list[str], devices: list[int], micro_batches: int, samples: int = SAMPLES, last: tuple[int, ...] | None = None
) -> Plan:
    """A plan that cuts after these modules and gives stages so many devices; its times are made up.

    `last` holds the last instruction of each stage, for runs that compare the plan with its model.
    """
    first = [sum(devices[:s]) for s in range(len(devices))]
    last = last or tuple(range(len(devices)))
    begins = (0, *(end + 1 for end in last))
    stages = tuple(
        Stage(begins[s], last[s], end, (first[s], first[s] + count - 1), count, 1, None, 1.0, 2.0, 0.1, 0.1)
        for s, (end, count) in enumerate(zip([*ends, "end of forward"], devices, strict=True))
    )
    cluster = Cluster(1, sum(devices), 1e9, 1e9, 1e12)
    return Plan("a plan", "a model", stages, micro_batches, samples, "1f1b", 1.0, None, {}, cluster)
