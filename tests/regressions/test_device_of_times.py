"""Whose times a plan has: those of the cluster's devices, whatever the profile's device is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.microbatch import profiled_fingerprint
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.planners.portfolio.planning import device_notes

PROFILE = Profile.create(
    C=[4.0, 2.0],
    A=[1e6, 0.0],
    W=[1e6, 1e6],
    meta={"device": "v100", "microbatch_size": 8, "roofline_s": {"v100": 6.0, "a100": 1.5}},
)
UNIFORM = Cluster(2, 1, 1e11, 1e10, 32e9, "two")


def _mixed(*kinds: str) -> Cluster:
    return Cluster.of_groups([NodeGroup(1, 1, 1e11, 1e10, 32e9, kind, rates=(("float32", 1.0),)) for kind in kinds])


def test_a_slower_node_beside_equal_ones_does_not_make_the_others_faster() -> None:
    """bert48 of V100 on two nodes of A100 had V100's times, 4.05 s; with a node of V100 beside them 0.609 s."""
    of_a100 = StagedProblem(PROFILE, replace(UNIFORM, device="a100"), stages=1)
    both = StagedProblem(PROFILE, _mixed("a100", "a100"), stages=1)
    np.testing.assert_allclose(of_a100.profile.C * 1.0, np.array([1.0, 0.5]))  # a quarter, as the clock says
    slow = both.slowdowns
    assert slow is not None
    np.testing.assert_allclose(both.profile.C[:, None] * slow, of_a100.profile.C[:, None] * np.ones(2))
    three = StagedProblem(PROFILE, _mixed("a100", "a100", "v100"), stages=1)
    assert of_a100.capacity / of_a100.profile.C.sum() < three.capacity / three.profile.C.sum()
    assert three.slowdowns is not None and three.slowdowns.tolist() == [0.25, 0.25, 1.0]


def test_scaling_happens_once_and_keeps_the_profile_that_a_plan_belongs_to() -> None:
    problem = StagedProblem(PROFILE, replace(UNIFORM, device="a100"), stages=1)
    again = replace(problem, stages=2)
    np.testing.assert_array_equal(again.profile.C, problem.profile.C)
    assert profiled_fingerprint(again.profile) == PROFILE.fingerprint
    assert StagedProblem(PROFILE, replace(UNIFORM, device="v100"), stages=1).profile is PROFILE


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("v100", None),
        ("a100", "times of v100 are scaled to a100 by the clock: 0.25 of them"),
        ("", "cluster two does not say its `device`: taken for the profile's, v100"),
    ],
)
def test_a_report_says_whose_times_it_has(device: str, words: str | None) -> None:
    problem = StagedProblem(PROFILE, replace(UNIFORM, device=device), stages=1)
    assert list(device_notes(problem)) == ([] if words is None else [words])
