"""The compiled loops of the exact search against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import least_excess


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), schedule=st.sampled_from(["1f1b", "gpipe"]))
def test_what_earlier_stages_add_to_round_trips_is_the_least_of_all_ways_to_divide_them(seed, schedule, make_problem):
    tables = tables_of(replace(make_problem(seed, max_n=30, max_devices=12, max_stages=6), schedule=schedule))
    if tables.stages > 1:
        assert np.array_equal(least_excess.__wrapped__(tables)[-1], by_brute_force(tables))


def by_brute_force(tables) -> np.ndarray:
    """What one of the stages before the last adds at least, from all ways to divide what comes before it."""
    excess = np.full((tables.replicas_in_all + 1, tables.end + 1), np.inf)
    excess[0, 0] = 0.0
    for s in range(tables.stages - 1):
        of_both, of_forward = tables.suffixes.own_weights(s)
        after = np.full_like(excess, np.inf)
        for sharding in tables.shardings:
            for a, q in zip(*np.nonzero(sharding.allowed), strict=True):
                place, rate = (0 if sharding.place is None else sharding.place[a, q]), sharding.paces.rate[a, q]
                sums = (of_both * sharding.C[place] + of_forward * sharding.F[place]) / rate
                if sharding.shared:
                    sums = sums + of_both * sharding.shared.start_s + of_forward * sharding.shared.start_forward_s
                for k in range(tables.end + 1):
                    before = excess[a, : k + 1]
                    least = np.maximum(before, sums[k] - sums[: k + 1]).min()
                    after[q, k] = min(after[q, k], least)
        excess = after
    return excess
