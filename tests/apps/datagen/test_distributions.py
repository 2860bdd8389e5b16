"""Independent draws have the moments that theory gives them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from automap_models.datagen.distributions import Binomial, Exponential, Lognormal, Marginal, Normal, Uniform

DRAWS = 200_000

THEORY = [
    (Uniform(0.5, 2.0), stats.uniform(0.5, 1.5)),
    (Normal(1.0, 0.4), stats.truncnorm(-2.5, math.inf, loc=1.0, scale=0.4)),
    (Normal(0.2, 1.0), stats.truncnorm(-0.2, math.inf, loc=0.2, scale=1.0)),
    (Binomial(8, 0.3), stats.binom(8, 0.3)),
    (Exponential(2.5), stats.expon(scale=2.5)),
    (Lognormal(-0.5, 0.6), stats.lognorm(0.6, scale=math.exp(-0.5))),
]


@pytest.mark.parametrize(("marginal", "theory"), THEORY, ids=lambda value: type(value).__name__)
def test_draws_have_the_mean_and_the_variance_of_theory(marginal: Marginal, theory: stats.rv_frozen) -> None:
    values = marginal.draw(np.random.default_rng(1), (DRAWS // 100, 100)).astype(np.float64)
    mean, variance, kurtosis = (float(moment) for moment in theory.stats("mvk"))
    assert values.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / DRAWS))
    assert values.var() == pytest.approx(variance, abs=5 * variance * math.sqrt((kurtosis + 2) / DRAWS))
    assert marginal.mean == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(("marginal", "theory"), THEORY[:3] + THEORY[4:], ids=lambda value: type(value).__name__)
def test_draws_follow_the_whole_distribution(marginal: Marginal, theory: stats.rv_frozen) -> None:
    values = marginal.draw(np.random.default_rng(2), (50, 100)).ravel()
    assert stats.kstest(values, theory.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("marginal", "theory"), THEORY, ids=lambda value: type(value).__name__)
def test_no_draw_is_negative(marginal: Marginal, theory: stats.rv_frozen) -> None:
    values = marginal.draw(np.random.default_rng(3), (100, 100))
    assert values.dtype == np.float32
    assert values.min() >= 0
