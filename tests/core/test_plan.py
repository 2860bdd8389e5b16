"""A plan checks itself against its problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem

PROFILE = Profile.create(C=[1.0] * 20, A=[1.0] * 20, W=[1.0] * 20)
CLUSTER = Cluster(nodes=2, devices_per_node=4, intra=1e9, inter=1e8, memory=1e9)
PROBLEM = StagedProblem(PROFILE, CLUSTER, stages=3, micro_batches=4, granularity=10)
PLAN = StagedPlan(cuts=(5, 11), device_cuts=(2, 5), micro_batches=4, planner="hand", coarse_cuts=(2, 5))


@pytest.mark.parametrize("coarse", [(2, 5), None])
def test_a_good_plan_is_valid(coarse: tuple[int, ...] | None) -> None:
    assert replace(PLAN, coarse_cuts=coarse).check_valid(PROBLEM) == (True, "")


def test_cuts_off_the_grid_are_valid_without_points() -> None:
    assert replace(PLAN, cuts=(4, 11), coarse_cuts=None).check_valid(PROBLEM) == (True, "")


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        ({"device_cuts": (2,)}, "2 instruction cut(s) but 1 device cut(s)"),
        ({"cuts": (5,), "device_cuts": (2,)}, "2 stages instead of 3"),
        ({"cuts": (), "device_cuts": ()}, "1 stages instead of 3"),
        ({"micro_batches": 8}, "8 micro-batches instead of 4"),
        ({"cuts": (5, 5)}, "instruction cuts [5, 5] do not increase inside 0..18"),
        ({"cuts": (11, 5)}, "instruction cuts [11, 5]"),
        ({"cuts": (5, 19)}, "instruction cuts [5, 19]"),
        ({"cuts": (-1, 11)}, "instruction cuts [-1, 11]"),
        ({"device_cuts": (0, 5)}, "device cuts [0, 5] do not increase inside 1..7"),
        ({"device_cuts": (2, 8)}, "device cuts [2, 8]"),
        ({"device_cuts": (5, 2)}, "device cuts [5, 2]"),
        ({"device_cuts": (3, 3)}, "device cuts [3, 3]"),
        ({"coarse_cuts": (2, 6)}, "coarse cuts [2, 6] do not stand for cuts [5, 11]"),
        ({"coarse_cuts": (2,)}, "coarse cuts [2]"),
        ({"cuts": (4, 11)}, "coarse cuts [2, 5] do not stand for cuts [4, 11]"),
    ],
)
def test_every_kind_of_wrong_plan_is_told_apart(change: dict[str, Any], beginning: str) -> None:
    valid, reason = replace(PLAN, **change).check_valid(PROBLEM)
    assert not valid
    assert reason.startswith(beginning)


@given(st.integers(2, 40), st.integers(1, 12), st.data())
def test_stages_divide_instructions_and_devices(n: int, devices: int, data: st.DataObject) -> None:
    boundaries = data.draw(st.integers(0, min(n, devices) - 1))
    cuts = tuple(sorted(data.draw(st.permutations(range(n - 1)))[:boundaries]))
    device_cuts = tuple(sorted(data.draw(st.permutations(range(1, devices)))[:boundaries]))
    plan = StagedPlan(cuts, device_cuts, 1, "hand")
    instructions = [i for first, last in plan.stage_instructions(n) for i in range(first, last + 1)]
    held = [u for first, last in plan.stage_devices(devices) for u in range(first, last + 1)]
    assert (instructions, held) == (list(range(n)), list(range(devices)))
    assert plan.stages == len(plan.stage_instructions(n)) == len(plan.stage_devices(devices)) == boundaries + 1
