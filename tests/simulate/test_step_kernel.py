"""The compiled simulation gives the step of every plan that the event queue and the batched one give."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import build_schedule, warm_up
from automap_models.cost.overlap import Bucket
from automap_models.simulate.batch import simulate_batch
from automap_models.simulate.engine import simulate
from automap_models.simulate.step_kernel import simulated_steps

SIZES = ((1, 1), (1, 5), (2, 1), (3, 2), (4, 11), (6, 4), (8, 24), (5, 9))
"""(S, M) of the plans of a batch."""
MOST_STAGES = 8


def _real(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.exponential(size=shape) * rng.choice([0.01, 1.0, 10.0], size=shape)


def _small_integers(rng: np.random.Generator, *shape: int) -> FloatArray:
    """So that messages get ready together, and some passes take no time at all."""
    return rng.integers(0, 4, size=shape).astype(np.float64)


@pytest.mark.parametrize("draw", [_real, _small_integers])
@pytest.mark.parametrize("name", WARM_UPS)
def test_plans_of_different_sizes_take_what_each_takes_in_the_event_queue(draw: object, name: str) -> None:
    rng = np.random.default_rng(3)
    plans = SIZES * 10
    stages, micro = (np.array(column) for column in zip(*plans, strict=True))
    times, reduce_s = draw(rng, len(plans), 3, MOST_STAGES), draw(rng, len(plans), MOST_STAGES)  # type: ignore[operator]
    ready = -rng.choice([0.0, 0.5, 1.0], size=reduce_s.shape) * times[:, 1]
    shares = rng.random(reduce_s.shape) < 0.5
    shares[:, 0] = False
    depth = np.ones((len(plans), MOST_STAGES), dtype=np.int64)
    for i, (count, batches) in enumerate(plans):
        depth[i, :count] = [warm_up(name, s, count, batches) for s in range(count)]
    steps = simulated_steps(times, depth, stages, micro, ready, reduce_s, shares)
    for i, (count, batches) in enumerate(plans):
        forward, backward, transfer = times[i, 0, :count], times[i, 1, :count], times[i, 2, : count - 1]
        own = [[Bucket(ready[i, s], reduce_s[i, s])] for s in range(count)]
        order = build_schedule(name, count, batches)
        nothing = np.zeros(count)
        shared = shares[i, :count].tolist()
        played = simulate(forward, backward, transfer, nothing, order, own, shared).length_s
        assert steps[i] == pytest.approx(played, rel=1e-12)
        batched = simulate_batch(
            forward[None],
            backward[None],
            transfer[None],
            batches,
            name,
            ready[i, None, :count, None],
            reduce_s[i, None, :count, None],
            shares[i, None, :count],
        )
        assert steps[i] == pytest.approx(batched[0], rel=1e-12)


def test_no_plans_take_no_steps() -> None:
    none = np.zeros((0, 3))
    whole = np.zeros(0, dtype=np.int64)
    steps = simulated_steps(np.zeros((0, 3, 3)), none.astype(np.int64), whole, whole, none, none, none.astype(bool))
    assert steps.shape == (0,)
