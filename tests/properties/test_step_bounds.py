"""No closed form that serves as a bound on the step is above what is simulated, whatever the times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from draw_counts import counts

from automap_models.core.cluster import Cluster
from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.suffixes import StageTimes, StepSuffixes
from automap_models.planners.staged.plain_stages import plain_stages
from automap_models.planners.staged.plan_batch import BatchCosts
from automap_models.planners.staged.plan_kernel import least_step
from automap_models.simulate.rounds import PlanTimes, stage_ends

ROUNDING = 1e-9
PLANS = 100
"""Of one size at a time."""


def drawn(rng: np.random.Generator, stages: int) -> PlanTimes:
    """PLANS plans whose computation, messages or gradients decide; gradients end late or are mostly hidden."""
    computes, sends, reduces = 10 ** rng.uniform((-1, -2, -2), (1, 1, 1), (PLANS, 3)).T[:, :, None]
    forward, backward = computes * rng.lognormal(sigma=rng.uniform(0.0, 1.0), size=(2, PLANS, stages))
    transfer = sends * rng.lognormal(size=(PLANS, stages - 1))
    reduce = reduces * rng.lognormal(size=(PLANS, stages)) * (rng.random((PLANS, stages)) < 0.8)
    late = reduce - rng.random((PLANS, stages)) * backward
    shares = rng.random((PLANS, stages)) < 0.5
    shares[:, 0] = False
    return PlanTimes(forward, backward, transfer, reduce, late, shares)


def by_suffixes(times: PlanTimes, micro_batches: int, schedule: str) -> np.ndarray:
    """[P] the bound by the recursion from the last stage to the first."""
    stages = times.forward_s.shape[1]
    suffixes, exposed = StepSuffixes(micro_batches, stages, schedule), np.maximum(times.reduce_s - times.backward_s, 0)
    suffix = suffixes.nothing(PLANS)
    for s in range(stages - 1, -1, -1):
        forward, delay = times.forward_s[:, s], np.where(times.shares_link[:, s], exposed[:, s], 0.0)
        own = StageTimes(forward + times.backward_s[:, s], forward, exposed[:, s], delay)
        suffix = suffixes.before_stage(s, own, suffix)
        if s:
            suffix = suffixes.before_transfer(times.transfer_s[:, s - 1], suffix)
    return suffixes.least(suffix)


@pytest.mark.parametrize("plans", counts(500, 10_000, 100_000))
@pytest.mark.parametrize("schedule", WARM_UPS)
def test_no_bound_is_above_the_step(schedule: str, plans: int, make_plain: Callable[[int, int, str], tuple]) -> None:
    """That of labels, that of moves and that of batches, which thinks all gradients ready when their pass begins."""
    rng = np.random.default_rng(11)
    for _ in range(plans // PLANS):
        stages, micro_batches = int(rng.integers(2, 9)), int(rng.integers(1, 41))
        problem, plain = make_plain(stages, micro_batches, schedule)
        times = drawn(rng, stages)
        no_sums = np.zeros((PLANS, 0)), np.zeros((PLANS, 0, stages), dtype=bool)
        steps = stage_ends(schedule, micro_batches, times, *no_sums).max(axis=1) * (1.0 + ROUNDING)
        assert (by_suffixes(times, micro_batches, schedule) <= steps).all()
        assert all(least_step(plain, own) <= step for own, step in zip(times.durations(), steps, strict=True))
        costs = BatchCosts(times.forward_s, times.backward_s, times.transfer_s, times.reduce_s, steps > 0)
        assert (costs.least_step_s(problem) <= steps).all()
        busy = micro_batches * (times.forward_s + times.backward_s)
        links = (micro_batches + 1) * times.transfer_s
        assert (np.maximum(busy.max(1), links.max(1)) <= steps).all()


@pytest.fixture
def make_plain() -> Callable[[int, int, str], tuple]:
    """A problem of S stages and M micro-batches under a schedule, and its stages as compiled loops take them."""

    def make(stages: int, micro_batches: int, schedule: str) -> tuple:
        profile = Profile.create(np.ones(stages), np.ones(stages), np.ones(stages))
        cluster = Cluster(1, stages, 1e9, 1e9, 1e18)
        problem = StagedProblem(profile, cluster, stages, micro_batches, granularity=stages, schedule=schedule)
        return problem, plain_stages(problem)[0]

    return make
