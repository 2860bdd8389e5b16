"""The bounds on the step are bounds: never above what is simulated, whatever the times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from draw_counts import counts
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import build_schedule
from automap_models.cost.suffixes import Prefix, StageTimes, StepSuffixes
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
        order = build_schedule(schedule, self.forward_s.size, self.micro_batches)
        return simulate(*times, order).length_s

    def least_s(self, schedule: str) -> float:
        """By the recursion from the last stage to the first."""
        suffixes = StepSuffixes(self.micro_batches, self.forward_s.size, schedule)
        return float(suffixes.least(self.suffix(suffixes, 0))[0])

    def suffix(self, suffixes: StepSuffixes, first: int) -> FloatArray:
        """The numbers of the stages from `first` on, with the transfer into them."""
        suffix = suffixes.nothing(1)
        for s in range(self.forward_s.size - 1, first - 1, -1):
            both, reduce = self.forward_s[s : s + 1] + self.backward_s[s], self.all_reduce_s[s : s + 1]
            suffix = suffixes.before_stage(s, StageTimes(both, self.forward_s[s : s + 1], reduce), suffix)
            if s:
                suffix = suffixes.before_transfer(self.transfer_s[s - 1 : s], suffix)
        return suffix


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Up to six stages of whole seconds, which tie often, or of any lengths."""
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    second = st.integers(0, 9) if draw(st.booleans()) else st.floats(0.0, 9.0)

    def times(n: int) -> FloatArray:
        return np.array(draw(st.lists(second, min_size=n, max_size=n)), dtype=np.float64)

    return Pipeline(times(stages), times(stages), times(stages - 1), times(stages), micro_batches)


@pytest.mark.parametrize("schedule", WARM_UPS)
@given(pipeline=pipelines())
def test_the_step_is_never_below_its_bound(schedule: str, pipeline: Pipeline) -> None:
    assert pipeline.least_s(schedule) <= pipeline.step_s(schedule) * (1 + 1e-12)


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """Two to eight stages whose forward passes take a third, of times and transfers of any ratio."""
    stages, micro_batches = int(rng.integers(2, 9)), int(rng.integers(1, 33))
    both, scale = rng.lognormal(sigma=rng.uniform(0.0, 1.0), size=stages), 10 ** rng.uniform(-3, 1)
    transfer, reduce = scale * rng.lognormal(size=stages - 1), scale * rng.lognormal(size=stages)
    return Pipeline(both / 3, both * 2 / 3, transfer, reduce, micro_batches)


@pytest.mark.parametrize("draws", counts(None, 800, 4_000))
@pytest.mark.parametrize("schedule", WARM_UPS)
def test_random_pipelines_are_never_below_their_bounds(schedule: str, draws: int) -> None:
    rng, ratios = np.random.default_rng(7), []
    for _ in range(draws):
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


@pytest.mark.parametrize(
    ("first_s", "second_s", "transfer_s", "period_s"), [(6, 3, 4, 8.5), (3, 6, 4, 8.5), (9, 3, 2, 9), (1, 2, 9, 10.5)]
)
def test_the_cycle_of_two_stages_or_the_longer_one_sets_the_period(
    first_s: float, second_s: float, transfer_s: float, period_s: float
) -> None:
    """max(u, u', (u + u' + 2·x) / 2), as two micro-batches go round: further ones take no less and no more."""

    def pipeline(micro_batches: int) -> Pipeline:
        both = np.array([first_s, second_s], dtype=np.float64)
        return Pipeline(both / 3, both * 2 / 3, np.array([float(transfer_s)]), np.zeros(2), micro_batches)

    further_s = pipeline(400).step_s("1f1b") - pipeline(200).step_s("1f1b")
    assert further_s == pytest.approx(200 * period_s, rel=1e-3)
    assert pipeline(400).least_s("1f1b") - pipeline(200).least_s("1f1b") == pytest.approx(200 * period_s, rel=1e-3)


@pytest.mark.parametrize("schedule", WARM_UPS)
@given(pipeline=pipelines(), cut=st.integers(1, 5))
def test_what_comes_before_a_suffix_only_adds_to_it(schedule: str, pipeline: Pipeline, cut: int) -> None:
    """A suffix with the sums over the stages before it bounds the whole pipeline."""
    stages = pipeline.forward_s.size
    if cut >= stages:
        return
    both = pipeline.forward_s + pipeline.backward_s
    suffixes = StepSuffixes(pipeline.micro_batches, stages, schedule)
    suffix = pipeline.suffix(suffixes, cut)
    between = pipeline.transfer_s[: cut - 1].sum()
    weights = [suffixes.own_weights(s) for s in range(cut)]
    excess = max(u * both[s] + f * pipeline.forward_s[s] for s, (u, f) in enumerate(weights))
    prefix = Prefix(cut, both[:cut].sum() + 2 * between, pipeline.forward_s[:cut].sum() + between, excess)
    assert float(suffixes.least(suffix, prefix)[0]) <= pipeline.step_s(schedule) * (1 + 1e-12)
