"""What the arrays C, A and W of a random model look like: draws, nothing else.

A distribution fills a batch of bins (binning.py) with raw numbers of no particular unit: C and W summed over each bin,
A at its end. Their ratios, the problem around them and the normalisation come later (generate.py). Independent positive
draws are the five families of conf/dist, with the means that theory gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from automap_models.errors import BadInput

from .binning import Bins, Raw
from .settings import (
    MOST,
    WEIGHTS,
    Count,
    FloatArray,
    NonNegative,
    PartRange,
    Positive,
    Settings,
    Share,
    are_weights,
    parse,
)
from .structured import Cnn, Texture, Transformer


class Uniform(Settings, frozen=True):
    """Evenly spread in [low, high)."""

    low: NonNegative
    high: Positive

    @property
    def mean(self) -> float:
        """Expected value."""
        return (self.low + self.high) / 2

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return self.low + (self.high - self.low) * rng.random(shape, dtype=np.float32)


class Normal(Settings, frozen=True):
    """Gaussian around `center` > 0, truncated at 0: negative values are drawn again."""

    center: Positive
    std: Positive

    @property
    def mean(self) -> float:
        """Expected value: μ + σ·φ(μ/σ)/Φ(μ/σ)."""
        ratio = self.center / self.std
        density = math.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)
        return self.center + self.std * density / (0.5 * math.erfc(-ratio / math.sqrt(2)))

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        values = self.center + self.std * rng.standard_normal(shape, dtype=np.float32)
        while (negative := np.flatnonzero(values < 0)).size:
            values.flat[negative] = self.center + self.std * rng.standard_normal(negative.size, dtype=np.float32)
        return values


class Binomial(Settings, frozen=True):
    """Successes in `trials` tries of probability p."""

    trials: Count
    p: Share

    @property
    def mean(self) -> float:
        """Expected value."""
        return self.trials * self.p

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return rng.binomial(self.trials, self.p, shape).astype(np.float32)


class Exponential(Settings, frozen=True):
    """Exponential with mean `scale`."""

    scale: Positive

    @property
    def mean(self) -> float:
        """Expected value."""
        return self.scale

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return self.scale * rng.standard_exponential(shape, dtype=np.float32)


class Lognormal(Settings, frozen=True):
    """exp of a Gaussian with mean mu and standard deviation sigma."""

    mu: Annotated[float, Meta(ge=-MOST, le=MOST)]
    sigma: Positive

    @property
    def mean(self) -> float:
        """Expected value: exp(μ + σ²/2)."""
        return float(np.exp(self.mu + self.sigma**2 / 2))

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        values: FloatArray = np.exp(self.mu + self.sigma * rng.standard_normal(shape, dtype=np.float32))
        return values


Marginal = Uniform | Normal | Binomial | Exponential | Lognormal
"""The distribution of one instruction's value, nowhere negative."""
MARGINALS: dict[str, type[Marginal]] = {
    "uniform": Uniform,
    "normal": Normal,
    "binomial": Binomial,
    "exponential": Exponential,
    "lognormal": Lognormal,
}
"""Family name in a config → its record."""


@dataclass(frozen=True)
class Independent:
    """Independent draws of one family, with a texture over them."""

    marginal: Marginal
    texture: Texture

    def draw(self, rng: np.random.Generator, bins: Bins) -> Raw:
        """Raw arrays for these models."""
        texture = self.texture
        C = self._sparse(rng, bins, texture.zero_compute) * texture.trend.factor(rng, bins)
        W = self._sparse(rng, bins, texture.no_parameters) * texture.trend.factor(rng, bins)
        texture.compute_spikes.add(rng, bins, C)
        texture.parameter_spikes.add(rng, bins, W)
        A = self.marginal.draw(rng, bins.shape) * texture.trend.factor(rng, bins)
        narrow = rng.random(bins.shape, dtype=np.float32) < texture.narrow.draw(rng, len(bins))
        A *= np.where(narrow, texture.narrow_factor.draw(rng, len(bins)), np.float32(1))
        return Raw(C, A, W)

    def _sparse(self, rng: np.random.Generator, bins: Bins, zeros: PartRange) -> FloatArray:
        count = bins.how_many(rng, 1 - zeros.draw(rng, len(bins)))
        return bins.totals(self.marginal.draw(rng, bins.shape), self.marginal.mean, count)


Distribution = Independent | Transformer | Cnn
"""What draws batches of models."""


class Mixture(NamedTuple):
    """Named distributions with weights: what a data set is drawn from."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    members: tuple[Distribution, ...]


def build_mixture(config: Mapping[str, object]) -> Mixture:
    """The distribution, or several, that a config of the group `dist` describes.

    Raises:
        BadInput: an unknown family, a missing or unknown setting, a weight for something that is not there.
    """
    if config.get("family") != "mixed":
        return Mixture((str(config.get("name")),), (1.0,), (_build(config, "dist"),))
    components, weights = config.get("components"), config.get("weights")
    if not isinstance(components, Mapping) or not isinstance(weights, Mapping) or set(weights) - set(components):
        raise BadInput("does not fit dist.components", where="dist.weights", do="weigh what is mixed, by its name")
    if not all(type(weight) in (int, float) for weight in weights.values()) or not are_weights([*weights.values()]):
        raise BadInput(f"are {[*weights.values()]!r}", where="dist.weights", do=WEIGHTS)
    chosen = {str(name): float(weight) for name, weight in weights.items() if weight > 0}
    members = tuple(_build(components[name], f"dist.components.{name}") for name in chosen)
    return Mixture(tuple(chosen), tuple(chosen.values()), members)


def _build(config: object, where: str) -> Distribution:
    if not isinstance(config, Mapping):
        raise BadInput(f"is {config!r}, not a distribution", where=where, do="choose a file of conf/dist")
    settings = {key: value for key, value in config.items() if key not in ("name", "family")}
    family = config.get("family")
    if family == "transformer":
        return parse(Transformer, settings, where)
    if family == "cnn":
        return parse(Cnn, settings, where)
    if not isinstance(family, str) or family not in MARGINALS:
        names = ", ".join((*MARGINALS, "transformer", "cnn", "mixed"))
        raise BadInput(f"is {family!r}", where=f"{where}.family", do=f"choose one of {names}")
    marginal: Marginal = parse(MARGINALS[family], settings.get("parameters"), f"{where}.parameters")
    return Independent(marginal, parse(Texture, settings.get("texture"), f"{where}.texture"))
