"""Samples of replicas and what neighbours exchange, against a count sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.passes import build_schedule
from automap_models.errors import BadInput
from automap_models.run.layout import Layout, StageLayout, overlaps, parts


def owners(samples: int, replicas: int) -> list[int]:
    """[samples] the replica of each: numpy's way of splitting into parts of nearly equal size."""
    return [r for r, part in enumerate(np.array_split(np.arange(samples), replicas)) for _ in part]


@given(st.integers(1, 40), st.integers(1, 12))
def test_parts_are_as_numpy_splits(samples: int, replicas: int) -> None:
    counted = [r for r, (begin, end) in enumerate(parts(samples, replicas)) for _ in range(begin, end)]
    assert counted == owners(samples, replicas)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_every_sample_goes_once_from_its_sender_to_its_receiver(samples: int, senders: int, receivers: int) -> None:
    moved = [
        (one.sender, one.receiver, i)
        for one in overlaps(parts(samples, senders), parts(samples, receivers))
        for i in range(one.begin, one.end)
    ]
    expected = zip(owners(samples, senders), owners(samples, receivers), range(samples), strict=True)
    assert sorted(moved, key=lambda move: move[2]) == list(expected)


def test_a_layout_knows_who_holds_what() -> None:
    stages = StageLayout((0,)), StageLayout((1, 2), 2), StageLayout((3,))
    layout = Layout(build_schedule("1f1b", 3, 4), stages, samples=6)
    assert layout.devices == 4
    assert not layout.is_even
    assert [layout.stages_of(process) for process in range(4)] == [(0,), (1,), (1,), (2,)]
    assert [layout.replica(process) for process in range(4)] == [0, 0, 1, 0]
    assert layout.parts[1][1] == (3, 6)
    assert layout.part_sizes == (3, 6)


def test_replicas_without_a_sample_are_refused() -> None:
    with pytest.raises(BadInput, match="2 sample"):
        Layout(build_schedule("1f1b", 2, 2), (StageLayout((0,)), StageLayout((1, 2, 3), 3)), samples=2)
