"""The arrays of schedules, and what ranks hold by them, against schedules counted pass by pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from most_held import most_held

from automap_models.core.passes import build_schedule
from automap_models.core.schedules import SCHEDULES
from automap_models.errors import BadInput


@st.composite
def schedules(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """Schedule, S, M and vp; also of fewer micro-batches than ranks, where the schedule runs them."""
    name, ranks = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 6))
    virtual, micro_batches = SCHEDULES[name].virtual or draw(st.integers(1, 4)), draw(st.integers(1, 20))
    return name, ranks, micro_batches, virtual


@given(schedules(), st.integers(0, 999))
def test_arrays_hold_as_much_as_the_passes_of_the_schedule(shape: tuple[str, int, int, int], seed: int) -> None:
    try:
        schedule = build_schedule(*shape)
    except BadInput:
        return
    saved, kept = np.random.default_rng(seed).uniform(0.0, 2.0, (2, schedule.stages)).tolist()
    assert schedule.most_held(saved, kept) == pytest.approx(most_held(schedule, saved, kept))


def test_no_moment_has_less_of_everything_than_another_one() -> None:
    for _, moments in build_schedule("zb-h1", 4, 16, 3).fullest:
        rows = moments.reshape(len(moments), -1)
        less = (rows[:, None] <= rows[None]).all(axis=-1)
        assert less.sum() == len(rows)
