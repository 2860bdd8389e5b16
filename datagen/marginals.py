"""Independent positive draws: the five families of conf/dist, with the means that theory gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .settings import FloatArray, NonNegative, Share, Signed


class Marginal(Protocol):
    """The distribution of one instruction's value, nowhere negative."""

    @property
    def mean(self) -> float:
        """Expected value."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""


@dataclass(frozen=True)
class Uniform:
    """Evenly spread in [low, high)."""

    low: NonNegative
    high: float

    @property
    def mean(self) -> float:
        """Expected value."""
        return (self.low + self.high) / 2

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return self.low + (self.high - self.low) * rng.random(shape, dtype=np.float32)


@dataclass(frozen=True)
class Normal:
    """Gaussian around `center` > 0, truncated at 0: negative values are drawn again."""

    center: float
    std: float

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


@dataclass(frozen=True)
class Binomial:
    """Successes in `trials` tries of probability p."""

    trials: int
    p: Share

    @property
    def mean(self) -> float:
        """Expected value."""
        return self.trials * self.p

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return rng.binomial(self.trials, self.p, shape).astype(np.float32)


@dataclass(frozen=True)
class Exponential:
    """Exponential with mean `scale`."""

    scale: float

    @property
    def mean(self) -> float:
        """Expected value."""
        return self.scale

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        return self.scale * rng.standard_exponential(shape, dtype=np.float32)


@dataclass(frozen=True)
class Lognormal:
    """exp of a Gaussian with mean mu and standard deviation sigma."""

    mu: Signed
    sigma: float

    @property
    def mean(self) -> float:
        """Expected value: exp(μ + σ²/2)."""
        return float(np.exp(self.mu + self.sigma**2 / 2))

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Independent draws, float32 of that shape."""
        values: FloatArray = np.exp(self.mu + self.sigma * rng.standard_normal(shape, dtype=np.float32))
        return values


MARGINALS: dict[str, type[Uniform | Normal | Binomial | Exponential | Lognormal]] = {
    "uniform": Uniform,
    "normal": Normal,
    "binomial": Binomial,
    "exponential": Exponential,
    "lognormal": Lognormal,
}
"""Family name in a config → its record."""
