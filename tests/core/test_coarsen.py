"""The grid, the way back from it, and the arrays on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import Grid, coarse_arrays
from automap_models.core.profile import Profile
from automap_models.errors import BadInput

grids = st.builds(Grid, st.integers(2, 500), st.integers(2, 200))
CLUSTER = Cluster(nodes=2, devices_per_node=4, intra=130e9, inter=3.125e9, memory=32e9)


def test_the_reference_maps_are_met(vectors: dict[str, list[dict[str, Any]]]) -> None:
    maps = vectors["coarsening"]
    assert maps
    for case in maps:
        assert Grid(case["n"], case["granularity"]).instruction_of_point.tolist() == case["instruction_of_point"]


def test_a_grid_coarser_than_the_model_drawn_by_hand() -> None:
    """10 instructions on 4 points: ceil(2.5), ceil(5), ceil(7.5), ceil(10), less one each."""
    grid = Grid(10, 4)
    assert grid.instruction_of_point.tolist() == [2, 4, 7, 9]
    assert grid.cut_points.tolist() == [0, 1, 2]


def test_a_grid_finer_than_the_model_repeats_instructions_and_cuts_after_the_last_of_each() -> None:
    """3 instructions on 8 points: ceil of 3/8, 6/8, 9/8, … 24/8, less one each."""
    grid = Grid(3, 8)
    assert grid.instruction_of_point.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert grid.cut_points.tolist() == [1, 4]


@given(grids)
def test_points_rise_evenly_to_the_last_instruction(grid: Grid) -> None:
    point = grid.instruction_of_point
    steps = np.diff(point, prepend=-1)
    assert point[-1] == grid.n - 1
    assert steps.max() - steps.min() <= 1
    assert steps.min() >= 0


@given(grids)
def test_a_grid_can_be_cut_where_the_model_can_or_at_every_point(grid: Grid) -> None:
    assert grid.cut_points.size == min(grid.n, grid.granularity) - 1
    assert len(set(grid.to_instructions(grid.cut_points.tolist()))) == grid.cut_points.size


@given(grids, st.data())
def test_points_come_back_from_their_instructions(grid: Grid, data: st.DataObject) -> None:
    points = tuple(sorted(data.draw(st.sets(st.sampled_from(grid.cut_points.tolist()), max_size=6))))
    cuts = grid.to_instructions(points)
    assert grid.to_points(cuts) == points
    assert all(type(cut) is int for cut in cuts)


@given(grids)
def test_instructions_off_the_grid_have_no_point(grid: Grid) -> None:
    on_grid = set(grid.to_instructions(grid.cut_points.tolist()))
    for cut in range(-2, grid.n + 2):
        assert (grid.to_points((cut,)) is not None) == (cut in on_grid)


@given(grids)
def test_points_where_no_stage_can_end_are_refused(grid: Grid) -> None:
    cuttable = set(grid.cut_points.tolist())
    for point in {-1, 0, grid.granularity // 2, grid.granularity - 1, grid.granularity} - cuttable:
        with pytest.raises(BadInput, match=f"point {point} is no cut point"):
            grid.to_instructions([point])


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    n = draw(st.integers(2, 300))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    seconds, crossing, weights, kept = (10.0 ** draw(st.integers(low, low + 4)) for low in (-5, 4, 4, 4))
    return Profile.create(
        C=seconds * random.random(n) * (random.random(n) < 0.8) + seconds * 1e-3,
        A=crossing * random.random(n) * (random.random(n) < 0.8),
        W=weights * random.random(n) * (random.random(n) < 0.3),
        stash=kept * random.random(n),
    )


@given(profiles(), st.integers(2, 150))
def test_coarse_arrays_lie_in_the_unit_interval_and_reach_one(profile: Profile, granularity: int) -> None:
    coarse = coarse_arrays(profile, CLUSTER, granularity)
    for name in "CFAW":
        array = getattr(coarse, name)
        assert array.shape == (granularity,)
        assert array.min() >= 0
        assert array.max() <= 1
    assert max(coarse.C.max(), coarse.A.max(), coarse.W.max()) == 1


@given(profiles(), st.integers(2, 150))
def test_ratios_survive_normalisation(profile: Profile, granularity: int) -> None:
    """Times the scale every array is back in seconds, and what lies between two points is their difference."""
    coarse = coarse_arrays(profile, CLUSTER, granularity)
    for j in (0, granularity // 3, granularity - 1):
        i = -(-(j + 1) * len(profile) // granularity)
        assert coarse.C[j] * coarse.scale_s == pytest.approx(sum(profile.C[:i]), rel=1e-9)
        assert coarse.F[j] * coarse.scale_s == pytest.approx(sum(profile.C_fwd[:i]), rel=1e-9)
        assert coarse.W[j] * coarse.scale_s * CLUSTER.inter == pytest.approx(sum(profile.W[:i]), rel=1e-9)
        assert coarse.A[j] * coarse.scale_s * CLUSTER.inter == pytest.approx(profile.A[i - 1], rel=1e-9)
        assert coarse.stash[j] * CLUSTER.memory == pytest.approx(sum(profile.stash[:i]), rel=1e-9)


@given(profiles(), st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**10]))
def test_normalised_arrays_do_not_depend_on_the_unit_of_time(profile: Profile, factor: float) -> None:
    scaled = Profile.create(factor * profile.C, factor * profile.A, factor * profile.W, stash=profile.stash)
    ours, theirs = (coarse_arrays(p, CLUSTER) for p in (profile, scaled))
    for name in "CAW":
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)
    assert theirs.scale_s == pytest.approx(factor * ours.scale_s, rel=1e-12)
