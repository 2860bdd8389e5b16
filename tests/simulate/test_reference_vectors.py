"""Simulated lengths against expected values computed by somebody else from the same description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.cost.pipeline import pipeline_cost
from automap_models.simulate.engine import simulate
from automap_models.simulate.schedules import SCHEDULES


@pytest.fixture(scope="module")
def vectors(shared_data: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((shared_data / "cost_vectors.json").read_text())["cost"]
    return cases


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("i", range(40))
def test_every_simulated_length_is_met(vectors: list[dict[str, Any]], i: int, schedule: str) -> None:
    case = vectors[i]
    cost = pipeline_cost(
        Profile.create(**case["profile"]),
        Cluster(**case["cluster"]),
        case["cuts"],
        case["device_cuts"],
        case["micro_batches"],
    )
    simulated = simulate(*cost.as_tuple(), case["micro_batches"], schedule)
    expected = case["expected"]["simulated_length_s"]
    assert set(expected) == set(SCHEDULES)
    assert simulated.length_s == pytest.approx(expected[schedule], rel=1e-9, abs=0)
