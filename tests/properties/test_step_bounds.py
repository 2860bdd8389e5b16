"""No closed form that serves as a bound on the step is above what is simulated, whatever the times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from draw_counts import counts

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.stage_arrays import StageArrays, stage_arrays
from automap_models.planners.staged.stage_kernel import least_step
from automap_models.simulate.rounds import PlanTimes, plan_steps

ROUNDING = 1e-9
PLANS = 100
"""Of one size at a time."""


def drawn(rng: np.random.Generator, stages: int) -> PlanTimes:
    """PLANS plans whose computation, messages, gradients or updates decide."""
    computes, sends, reduces = 10 ** rng.uniform((-1, -2, -2), (1, 1, 1), (PLANS, 3)).T[:, :, None]
    forward, backward = computes * rng.lognormal(sigma=rng.uniform(0.0, 1.0), size=(2, PLANS, stages))
    transfer = sends * rng.lognormal(size=(PLANS, stages - 1))
    late = reduces * rng.lognormal(size=(PLANS, stages)) * (rng.random((PLANS, stages)) < 0.8)
    update = 0.1 * reduces * rng.lognormal(size=(PLANS, stages)) * (rng.random((PLANS, 1)) < 0.8)
    return PlanTimes(forward, backward, transfer, late, update)


@pytest.mark.parametrize("plans", counts(500, 2_500, 100_000))
@pytest.mark.parametrize("schedule", WARM_UPS)
def test_no_bound_is_above_the_step(
    schedule: str, plans: int, make_plain: Callable[[int, int, str], StageArrays]
) -> None:
    """Those of moves and of branch and bound, and what a stage and a link are busy for."""
    rng = np.random.default_rng(11)
    for _ in range(plans // PLANS):
        stages, micro_batches = int(rng.integers(2, 9)), int(rng.integers(1, 41))
        plain = make_plain(stages, micro_batches, schedule)
        times = drawn(rng, stages)
        no_sums = np.zeros((PLANS, 0)), np.zeros((PLANS, 0, stages), dtype=bool)
        steps = plan_steps(schedule, micro_batches, times, *no_sums) * (1.0 + ROUNDING)
        for own, passes_s, messages_s, step in zip(
            times.durations(), times.forward_s + times.backward_s, times.transfer_s, steps, strict=True
        ):
            for count in range(1, stages + 1):  # of the first stages, with the round trip through those behind them
                trip_s = passes_s[count:].sum() + 2.0 * messages_s[count - 1 :].sum()
                assert least_step(plain, own, count, trip_s) <= step
        busy = micro_batches * (times.forward_s + times.backward_s)
        links = (micro_batches + 1) * times.transfer_s
        assert (np.maximum(busy.max(1), links.max(1)) <= steps).all()


@pytest.fixture
def make_plain() -> Callable[[int, int, str], StageArrays]:
    """The stages of a problem of S stages and M micro-batches under a schedule, as compiled loops take them."""

    def make(stages: int, micro_batches: int, schedule: str) -> StageArrays:
        profile = Profile.create(np.ones(stages), np.ones(stages), np.ones(stages))
        cluster = Cluster(1, stages, 1e9, 1e9, 1e18)
        problem = StagedProblem(profile, cluster, stages, micro_batches, granularity=stages, schedule=schedule)
        return stage_arrays(problem)[0]

    return make
