"""Simulated lengths against expected values computed by somebody else from the same description."""

from __future__ import annotations

from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.passes import build_schedule
from automap_models.core.profile import Profile
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.simulate.engine import simulate


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("i", range(40))
def test_every_simulated_length_is_met(vectors: dict[str, list[dict[str, Any]]], i: int, schedule: str) -> None:
    case = vectors["cost"][i]
    cuts, device_cuts, micro_batches = tuple(case["cuts"]), tuple(case["device_cuts"]), case["micro_batches"]
    profile, cluster = Profile.create(**case["profile"]), Cluster(**case["cluster"])
    problem = StagedProblem(profile, cluster, len(cuts) + 1, micro_batches)
    cost = plan_cost(problem, StagedPlan(cuts, device_cuts, micro_batches, "given"))
    simulated = simulate(*cost.as_tuple(), build_schedule(schedule, len(cuts) + 1, micro_batches))
    expected = case["expected"]["simulated_length_s"]
    assert set(expected) == set(WARM_UPS)
    assert simulated.length_s == pytest.approx(expected[schedule], rel=1e-9, abs=0)
