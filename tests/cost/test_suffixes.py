"""The bounds on the step are bounds: never above what is simulated, whatever the times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import SCHEDULES
from automap_models.cost.suffixes import StageTimes, StepSuffixes
from automap_models.simulate.engine import simulate


@dataclass(frozen=True)
class Pipeline:
    """Times of a pipeline; none of its all-reduces overlaps anything."""

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    micro_batches: int

    def step_s(self, schedule: str) -> float:
        """As simulated."""
        times = (self.forward_s, self.backward_s, self.transfer_s, self.all_reduce_s)
        return simulate(*times, self.micro_batches, schedule).length_s

    def least_s(self, schedule: str) -> float:
        """By the recursion from the last stage to the first."""
        stages = self.forward_s.size
        suffixes = StepSuffixes(self.micro_batches, stages, schedule)
        suffix = suffixes.nothing(1)
        for s in range(stages - 1, -1, -1):
            if s < stages - 1:
                suffix = suffixes.before_transfer(self.transfer_s[s], suffix)
            both = self.forward_s[s : s + 1] + self.backward_s[s]
            times = StageTimes(both, self.forward_s[s : s + 1], self.all_reduce_s[s : s + 1], np.zeros(1))
            suffix = suffixes.before_stage(s, times, suffix)
        return float(suffixes.least(suffix)[0])


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Up to six stages of whole seconds, which tie often, or of any lengths."""
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    second = st.integers(0, 9) if draw(st.booleans()) else st.floats(0.0, 9.0)

    def times(n: int) -> FloatArray:
        return np.array(draw(st.lists(second, min_size=n, max_size=n)), dtype=np.float64)

    return Pipeline(times(stages), times(stages), times(stages - 1), times(stages), micro_batches)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=400, deadline=None, derandomize=True)
@given(pipeline=pipelines())
def test_the_step_is_never_below_its_bound(schedule: str, pipeline: Pipeline) -> None:
    assert pipeline.least_s(schedule) <= pipeline.step_s(schedule) * (1 + 1e-12)


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """Two to eight stages whose forward passes take a third, of times and transfers of any ratio."""
    stages, micro_batches = int(rng.integers(2, 9)), int(rng.integers(1, 33))
    both, scale = rng.lognormal(sigma=rng.uniform(0.0, 1.0), size=stages), 10 ** rng.uniform(-3, 1)
    transfer, reduce = scale * rng.lognormal(size=stages - 1), scale * rng.lognormal(size=stages)
    return Pipeline(both / 3, both * 2 / 3, transfer, reduce, micro_batches)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ten_thousand_random_pipelines_are_never_below_their_bounds(schedule: str) -> None:
    rng, ratios = np.random.default_rng(7), []
    for _ in range(10_000):
        pipeline = random_pipeline(rng)
        ratios.append(pipeline.step_s(schedule) / pipeline.least_s(schedule))
    assert min(ratios) >= 1 - 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_with_free_links_take_as_long_as_their_bound(schedule: str) -> None:
    """(M + S - 1)·u: the textbook's fill, steady phase and drain."""
    for stages, micro_batches in ((1, 5), (2, 8), (4, 4), (4, 16), (8, 32)):
        ones = np.ones(stages)
        pipeline = Pipeline(ones, 2 * ones, np.zeros(stages - 1), 0 * ones, micro_batches)
        assert pipeline.step_s(schedule) == pipeline.least_s(schedule) == 3.0 * (micro_batches + stages - 1)
