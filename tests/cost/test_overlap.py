"""What the computation beside it hides of an all-reduce."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.cost.overlap import exposed_s

SECONDS = st.floats(0.0, 1e3)


@pytest.mark.parametrize(
    ("communication", "computation", "overlap", "expected"),
    [(2.0, 10.0, 0.5, 1.0), (10.0, 2.0, 0.5, 9.0), (10.0, 2.0, 1.0, 8.0), (2.0, 10.0, 1.0, 0.0), (3.0, 5.0, 0.0, 3.0)],
)
def test_a_share_of_the_shorter_of_both_is_hidden(
    communication: float, computation: float, overlap: float, expected: float
) -> None:
    assert exposed_s(communication, computation, overlap) == expected
    both = exposed_s(np.full(2, communication), np.full(2, computation), overlap)
    assert both.tolist() == [expected, expected]


@given(communication=SECONDS, computation=SECONDS, overlap=st.floats(0.0, 1.0))
def test_what_is_exposed_is_the_larger_of_two_lower_bounds(
    communication: float, computation: float, overlap: float
) -> None:
    exposed = exposed_s(communication, computation, overlap)
    least = max(communication - overlap * computation, (1.0 - overlap) * communication)
    assert exposed == pytest.approx(least, rel=1e-12, abs=1e-9)
