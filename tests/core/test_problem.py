"""Which planning problems are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput

PROFILE = Profile.create(C=[1.0] * 6, A=[1.0] * 6, W=[1.0] * 6)
CLUSTER = Cluster(nodes=2, devices_per_node=2, intra=1e9, inter=1e8, memory=1e9, name="toy")


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"micro_batches": 0}, "`micro_batches`", "0 micro-batches"),
        ({"micro_batches": -3}, "`micro_batches`", "-3 micro-batches"),
        ({"micro_batches": 10**400}, "`micro_batches`", "micro-batches"),
        ({"state_factor": 0.0}, "`state_factor`", "0.0"),
        ({"state_factor": -1.0}, "`state_factor`", "-1.0"),
        ({"state_factor": math.nan}, "`state_factor`", "nan"),
        ({"state_factor": math.inf}, "`state_factor`", "inf"),
        ({"granularity": 1}, "`granularity`", "granularity 1"),
        ({"granularity": 10**12}, "`granularity`", "granularity 1000000000000"),
        ({"stages": 0}, "`stages`", "0 stages"),
        ({"stages": 5}, "`stages`", "5 stages on the 4 device(s) of cluster toy"),
        ({"stages": 4, "granularity": 3}, "`stages`", "4 stages, but the profile can be cut in 2 place(s)"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_option(change: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        StagedProblem(PROFILE, CLUSTER, **{"stages": 2, **change})
    assert refusal.value.where == where
    assert message in refusal.value.what
    assert refusal.value.do


def test_a_model_with_fewer_instructions_than_stages_is_refused() -> None:
    two = Profile.create(C=[1.0, 1.0], A=[1.0, 1.0], W=[1.0, 1.0])
    with pytest.raises(BadInput, match="give at most 2"):
        StagedProblem(two, CLUSTER, stages=3)
    assert StagedProblem(two, CLUSTER, stages=2).grid.cut_points.size == 1


def test_the_largest_numbers_of_stages_are_accepted() -> None:
    assert StagedProblem(PROFILE, CLUSTER, stages=4).grid.n == 6
    assert StagedProblem(PROFILE, CLUSTER, stages=3, granularity=3, micro_batches=1).grid.granularity == 3
