"""Wrong settings are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from automap_models.datagen.settings import CountRange, LogRange
from automap_models.datagen.shards import Job
from automap_models.errors import BadInput

MakeJob = Callable[..., Job]


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("problem.instructions=[16, 8]", "problem.instructions"),
        ("problem.instructions=[1, 8]", "problem.instructions"),
        ("problem.instructions=[2.5, 8]", "problem.instructions"),
        ("problem.weights_to_compute=[0, 8]", "problem.weights_to_compute"),
        ("problem.weights_to_compute=3", "problem.weights_to_compute"),
        ("problem.forward_share=[0.2, 1.5]", "problem.forward_share"),
        ("problem.memory.bound_share=1.5", "problem.memory.bound_share"),
        ("problem.memory.largest_instruction=0", "problem.memory.largest_instruction"),
        ("problem.stages.values=[]", "problem.stages.values"),
        ("problem.stages.values=[0, 1, 2]", "problem.stages.values"),
        ("problem.stages.weights=[1]", "problem.stages.weights"),
        ("problem.stages.weights=[0, 0, 0]", "problem.stages.weights"),
        ("problem.stages=3", "problem.stages"),
        ("problem.cluster=null", "problem.cluster"),
        ("+problem.speed=1", "problem.speed"),
        ("~problem.micro_batches", "problem.micro_batches"),
        ("dist.family=cauchy", "dist.family"),
        ("dist.weights.cnn=.nan", "dist.weights"),
        ("+dist.weights.cauchy=1", "dist.weights"),
        ("dist.components.normal.parameters.std=0", "dist.components.normal.parameters.std"),
        ("dist.components.binomial.parameters.p=2", "dist.components.binomial.parameters.p"),
        ("dist.components.binomial.parameters.trials=1.5", "dist.components.binomial.parameters.trials"),
        ("dist.components.cnn.head_parameters=[0.5, 1]", "dist.components.cnn.head_parameters"),
        ("granularity=1", "granularity"),
        ("seed=-1", "seed"),
        ("shard_size=true", "shard_size"),
        ("part=1", "part"),
        ("out=''", "out"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_name(make_job: MakeJob, override: str, where: str) -> None:
    with pytest.raises(BadInput) as error:
        make_job(override)
    assert error.value.where == where
    assert error.value.do


def test_log_uniform_draws_are_even_in_the_logarithm() -> None:
    values = np.log10(LogRange(1e-3, 10).draw(np.random.default_rng(1), 40_000))
    count, _ = np.histogram(values, bins=8, range=(-3, 1))
    assert count.sum() == 40_000
    assert np.abs(count / 5000 - 1).max() < 0.1


def test_whole_numbers_are_as_likely_as_their_share_of_the_logarithm() -> None:
    values = CountRange(2, 5).draw(np.random.default_rng(2), 60_000)
    share = np.bincount(values, minlength=6)[2:] / 60_000
    np.testing.assert_allclose(share, np.log([3 / 2, 4 / 3, 5 / 4, 6 / 5]) / np.log(3), atol=0.01)
