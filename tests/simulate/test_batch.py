"""The batched simulation gives the step of every plan that the event queue gives, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import build_schedule
from automap_models.cost.overlap import Bucket, TiedSum
from automap_models.simulate.batch import simulate_batch
from automap_models.simulate.engine import simulate

PLANS = 4
SHAPES = 60
"""Of (S, M) a test: with three schedules and PLANS plans, 720 pipelines each and 4,320 in all."""


def _real(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.exponential(size=shape) * rng.choice([0.01, 1.0, 10.0], size=shape)


def _small_integers(rng: np.random.Generator, *shape: int) -> FloatArray:
    """So that messages get ready together, and some passes take no time at all."""
    return rng.integers(0, 4, size=shape).astype(np.float64)


@pytest.mark.parametrize("times", [_real, _small_integers])
@pytest.mark.parametrize("buckets", [0, 1, 3])
def test_a_batch_gives_what_the_event_queue_gives(times: object, buckets: int) -> None:
    rng = np.random.default_rng(buckets)
    for _ in range(SHAPES):
        stages, micro_batches = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        forward, backward, transfer, reduce_s = (
            times(rng, PLANS, *shape)  # type: ignore[operator]
            for shape in ((stages,), (stages,), (stages - 1,), (stages, buckets))
        )
        ready = -np.sort(rng.choice([0.0, 0.5, 1.0], size=reduce_s.shape), axis=2)[:, :, ::-1] * backward[:, :, None]
        shares = rng.random((PLANS, stages)) < 0.5
        shares[:, 0] = False
        tied_s, holds = times(rng, PLANS, 2), rng.random((PLANS, 2, stages)) < 0.5  # type: ignore[operator]
        holds[:, 0, 0] = holds[:, 1, -1] = True
        given = (forward, backward, transfer, micro_batches)
        for name in WARM_UPS:
            steps = simulate_batch(*given, name, ready, reduce_s, shares, tied_s, holds)
            expected = [
                simulate(
                    forward[p],
                    backward[p],
                    transfer[p],
                    np.zeros(stages),
                    build_schedule(name, stages, micro_batches),
                    [list(map(Bucket, ready[p, s].tolist(), reduce_s[p, s].tolist())) for s in range(stages)],
                    shares[p].tolist(),
                    [TiedSum(tuple(np.flatnonzero(holds[p, t])), float(tied_s[p, t])) for t in range(2)],
                ).length_s
                for p in range(PLANS)
            ]
            assert steps.tolist() == expected


@pytest.mark.parametrize("times", [_real, _small_integers])
@pytest.mark.parametrize("seed", range(6))
def test_rounds_that_repeat_are_added_at_once_and_change_nothing(seed: int, times: object) -> None:
    rng = np.random.default_rng(seed)
    stages, micro_batches = int(rng.integers(1, 6)), int(rng.integers(60, 260))
    forward, backward, transfer, reduce_s = (
        times(rng, PLANS, *shape)  # type: ignore[operator]
        for shape in ((stages,), (stages,), (stages - 1,), (stages, 1))
    )
    ready, shares = -backward[:, :, None], np.zeros((PLANS, stages), dtype=bool)
    for name in WARM_UPS:
        steps = simulate_batch(forward, backward, transfer, micro_batches, name, ready, reduce_s, shares)
        schedule = build_schedule(name, stages, micro_batches)
        for p in range(PLANS):
            gradients = [[Bucket(float(ready[p, s, 0]), float(reduce_s[p, s, 0]))] for s in range(stages)]
            given = (forward[p], backward[p], transfer[p], np.zeros(stages), schedule, gradients)
            assert steps[p] == pytest.approx(simulate(*given, shares[p].tolist()).length_s, rel=1e-9)


def test_a_hundred_thousand_micro_batches_take_as_long_as_the_slowest_stage_with_each() -> None:
    """Without transfers: the fill and the drain of the others, and M times the slowest stage."""
    forward, backward = np.array([[1.0, 2.0, 1.0]]), np.array([[2.0, 3.0, 1.0]])
    steps = simulate_batch(forward, backward, np.zeros((1, 2)), 100_000, "1f1b")
    assert steps.tolist() == pytest.approx([100_000 * 5.0 + 3.0], rel=1e-12)


def test_without_gradients_a_batch_ends_with_the_last_pass() -> None:
    """The pipeline that simulate.engine draws, and the same one twice as slow."""
    ones = np.array([[1.0, 1.0], [2.0, 2.0]])
    steps = simulate_batch(ones, ones, np.array([[3.0], [6.0]]), 2, "1f1b")
    assert steps.tolist() == [14.0, 28.0]


def test_unused_buckets_change_nothing() -> None:
    rng = np.random.default_rng(5)
    forward, backward, transfer, reduce_s = (_real(rng, 50, *shape) for shape in ((4,), (4,), (3,), (4, 2)))
    ready, shares = np.zeros_like(reduce_s), rng.random((50, 4)) < 0.5
    steps = simulate_batch(forward, backward, transfer, 6, "1f1b", ready, reduce_s, shares)
    unused = np.zeros((50, 4, 3))
    padded = (np.concatenate([ready, unused], axis=2), np.concatenate([reduce_s, unused], axis=2))
    assert simulate_batch(forward, backward, transfer, 6, "1f1b", *padded, shares).tolist() == steps.tolist()
