"""The compiled event queue against simulate.engine, under every schedule whose backward passes are whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.schedules import build_schedule
from automap_models.cost.overlap import Bucket
from automap_models.errors import BadInput
from automap_models.simulate.engine import simulate
from automap_models.simulate.order_kernel import pass_order, simulated_step

WHOLE = [("1f1b", 1), ("1f1b-deep", 1), ("gpipe", 1), ("interleaved", 1), ("interleaved", 2), ("interleaved", 3)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(WHOLE), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1])
)
def test_a_step_is_as_long_as_the_engine_draws_it(
    schedule: tuple[str, int], ranks: int, rounds: int, seed: int, whole: float
) -> None:
    """Whole numbers make messages get ready at the same time, so that the order of ties counts, too."""
    name, virtual = schedule
    rng, micro, stages = np.random.default_rng(seed), ranks * rounds, ranks * virtual

    def drawn(count: int, high: float) -> np.ndarray:
        times = rng.uniform(0.0, high, count)
        return np.round(times) if rng.random() < whole else times

    times = np.zeros((3, stages))
    times[0], times[1], times[2, : stages - 1] = (
        drawn(stages, 4),
        drawn(stages, 6),
        drawn(stages - 1, rng.choice([1, 8])),
    )
    all_reduce_s = drawn(stages, 9) * (rng.random(stages) < 0.7)
    ready_s = -rng.uniform(0.0, 1.0, stages) * times[1]
    shares = (rng.random(stages) < 0.5) & (np.arange(stages) > 0)
    order = build_schedule(name, ranks, micro, virtual)
    buckets = [(Bucket(r, a),) if a else () for r, a in zip(ready_s.tolist(), all_reduce_s.tolist(), strict=True)]
    drawn_s = simulate(times[0], times[1], times[2, :-1], all_reduce_s, order, buckets, shares.tolist()).length_s
    own = simulated_step(*pass_order(name, ranks, micro, virtual), micro, times, ready_s, all_reduce_s, shares)
    assert own == pytest.approx(drawn_s, rel=1e-12)


def test_a_loop_worked_out_by_hand() -> None:
    """Two ranks, vp = 2, M = 2, all passes 1 s, messages free: 4 passes of each kind a rank, two of waiting.

    rank 0   F0 F0 F2 F2 .  B2 .  B2 B0 B0         micro-batches 0 and 1 in turn; what is written is the virtual stage
    rank 1   .  F1 F1 F3 B3 F3 B3 B1 B1
    """
    times, nothing = np.ones((3, 4)), np.zeros(4)
    times[2] = 0.0
    step = simulated_step(*pass_order("interleaved", 2, 2, 2), 2, times, nothing, nothing, nothing > 0)
    assert step == 10.0


def test_schedules_that_split_the_backward_pass_are_refused() -> None:
    with pytest.raises(BadInput, match="schedule zb-h1 splits the backward pass"):
        pass_order("zb-h1", 2, 4, 1)
