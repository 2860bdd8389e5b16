"""Problems as arrays and back: what a plan costs does not change, but for the unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import Grid, coarse_arrays
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.envs.pipeline.encoding import CHANNELS, EncodedProblems, cut_masks, decode, encode
from automap_models.errors import BadInput

FLOAT32 = 1e-5
ROUNDING = 1e-6  # a stage is the difference of two float32 numbers of at most 1
POINTS = 32


@st.composite
def problems(draw: st.DrawFn) -> StagedProblem:
    n = draw(st.integers(2, 100))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    profile = Profile.create(
        C=1e-3 * random.random(n) + 1e-5,
        A=1e6 * random.random(n),
        W=1e6 * random.random(n) * (random.random(n) < 0.5),
        stash=1e7 * random.random(n),
    )
    profile = Profile.create(profile.C, profile.A, profile.W, C_fwd=profile.C * random.random(n), stash=profile.stash)
    cluster = Cluster(
        nodes=draw(st.integers(1, 4)),
        devices_per_node=draw(st.integers(1, 4)),
        intra=draw(st.floats(1e10, 1e12)),
        inter=draw(st.floats(1e9, 1e10)),
        memory=draw(st.floats(1e8, 1e10)),
    )
    most = min(cluster.devices, Grid(n, POINTS).cut_points.size + 1, 5)
    return StagedProblem(
        profile,
        cluster,
        stages=draw(st.integers(1, most)),
        micro_batches=draw(st.integers(1, 32)),
        state_factor=draw(st.sampled_from([2.0, 4.0])),
        granularity=POINTS,
    )


def test_an_encoding_drawn_by_hand() -> None:
    """MAX is the last prefix sum of W over inter: (8 + 8) / 2 = 8 s, against 4 s of C and A of at most 6 / 2."""
    profile = Profile.create(C=[1.0, 3.0], A=[6.0, 0.0], W=[8.0, 8.0], C_fwd=[1.0, 1.0], stash=[5.0, 10.0])
    cluster = Cluster(nodes=3, devices_per_node=2, intra=8.0, inter=2.0, memory=16.0)
    encoded = encode([StagedProblem(profile, cluster, 2, micro_batches=7, granularity=4)])
    assert encoded.arrays.dtype == np.float32
    assert dict(zip(CHANNELS, encoded.arrays[0].tolist(), strict=True)) == {
        "C": [0.125, 0.125, 0.5, 0.5],
        "A": [0.375, 0.375, 0.0, 0.0],
        "W": [0.5, 0.5, 1.0, 1.0],
        "F": [0.125, 0.125, 0.25, 0.25],
        "stash": [0.3125, 0.3125, 0.9375, 0.9375],
    }
    scalars = {name: array.tolist() for name, array in encoded.as_dict().items() if name != "arrays"}
    assert scalars == {
        "instructions": [2],
        "nodes": [3],
        "devices_per_node": [2],
        "inter_over_intra": [0.25],
        "state_over_memory": [4 * 2 * 8 / 16],
        "stages": [2],
        "micro_batches": [7],
    }


@given(problems(), st.data())
def test_a_plan_on_the_grid_costs_the_same_after_a_round_trip(problem: StagedProblem, data: st.DataObject) -> None:
    boundaries, devices = problem.stages - 1, problem.cluster.devices
    points = sorted(data.draw(st.permutations(problem.grid.cut_points.tolist()))[:boundaries])
    device_cuts = sorted(data.draw(st.permutations(range(1, devices)))[:boundaries])
    back = decode(encode([problem]), 0)
    before = _cost(problem, problem.grid.to_instructions(points), device_cuts)
    after = _cost(back, back.grid.to_instructions(points), device_cuts)
    second = coarse_arrays(problem.profile, problem.cluster, POINTS).scale_s
    for name in ("forward_s", "backward_s", "transfer_s", "all_reduce_s", "span_s", "length_s"):
        times = problem.micro_batches if name in ("span_s", "length_s") else 1
        expected = getattr(before, name) / second
        np.testing.assert_allclose(getattr(after, name), expected, rtol=FLOAT32, atol=ROUNDING * times, err_msg=name)
    need = before.memory_bytes / problem.cluster.memory
    np.testing.assert_allclose(after.memory_bytes, need, rtol=FLOAT32, atol=FLOAT32 * float(need.max()))


@given(problems())
def test_a_decoded_problem_is_the_same_question(problem: StagedProblem) -> None:
    back = decode(encode([problem]), 0)
    for name in ("stages", "micro_batches", "granularity"):
        assert getattr(back, name) == getattr(problem, name)
    assert (back.cluster.nodes, back.cluster.devices_per_node) == (
        problem.cluster.nodes,
        problem.cluster.devices_per_node,
    )
    assert back.grid.cut_points.tolist() == problem.grid.cut_points.tolist()
    assert (back.cluster.inter, back.cluster.memory) == (1.0, 1.0)


@given(problems())
def test_encoding_a_decoded_problem_changes_nothing(problem: StagedProblem) -> None:
    once = encode([problem])
    twice = encode([decode(once, 0)])
    for name, array in once.as_dict().items():
        if name != "instructions":
            np.testing.assert_allclose(twice.as_dict()[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
    assert twice.instructions[0] == min(once.instructions[0], POINTS)


@given(problems(), st.floats(1e-3, 1e3))
def test_the_unit_of_time_is_not_encoded(problem: StagedProblem, factor: float) -> None:
    c = problem.cluster
    slower = replace(
        problem,
        profile=Profile.create(
            problem.profile.C * factor,
            problem.profile.A,
            problem.profile.W,
            C_fwd=problem.profile.C_fwd * factor,
            stash=problem.profile.stash,
        ),
        cluster=replace(c, intra=c.intra / factor, inter=c.inter / factor),
    )
    for name, array in encode([slower]).as_dict().items():
        np.testing.assert_allclose(array, encode([problem]).as_dict()[name], rtol=1e-6, atol=1e-7, err_msg=name)


@given(st.lists(st.integers(2, 300), min_size=1, max_size=8), st.integers(2, 150))
def test_cut_masks_are_those_of_the_grids(lengths: list[int], granularity: int) -> None:
    masks = cut_masks(np.array(lengths, dtype=np.int32), granularity)
    np.testing.assert_array_equal(masks, [Grid(n, granularity).cut_mask for n in lengths])


def test_problems_are_taken_apart_and_put_together() -> None:
    encoded = encode([_problem(n) for n in (5, 40, 80)])
    assert len(encoded) == 3
    _assert_same(EncodedProblems.from_mapping({**encoded.as_dict(), "episode": np.zeros(3)}), encoded)
    _assert_same(encoded.take(np.array([2, 0])), encode([_problem(80), _problem(5)]))
    _assert_same(encoded.take(np.array([False, True, False])), encode([_problem(40)]))


def test_a_mapping_without_an_array_is_not_a_batch() -> None:
    arrays = encode([_problem(5)]).as_dict()
    del arrays["nodes"]
    with pytest.raises(BadInput, match="data set: has no array nodes"):
        EncodedProblems.from_mapping(arrays)


def _problem(n: int) -> StagedProblem:
    ramp = np.arange(1.0, n + 1)
    cluster = Cluster(nodes=2, devices_per_node=2, intra=4.0, inter=1.0, memory=1e3)
    return StagedProblem(Profile.create(ramp, ramp[::-1], ramp), cluster, stages=2, granularity=POINTS)


def _cost(problem: StagedProblem, cuts: tuple[int, ...], device_cuts: list[int]) -> StagedCost:
    return plan_cost(problem, StagedPlan(cuts, tuple(device_cuts), problem.micro_batches, "test"))


def _assert_same(ours: EncodedProblems, theirs: EncodedProblems) -> None:
    for name, array in theirs.as_dict().items():
        np.testing.assert_array_equal(ours.as_dict()[name], array)
        assert ours.as_dict()[name].dtype == array.dtype
