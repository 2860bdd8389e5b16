"""The cost model against expected values computed by somebody else from the same description."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost

CASES = range(40)
WITH_OPTIMUM = (3, 9, 12, 15, 21, 30, 31, 32, 34, 38)
ARRAYS = ("forward_s", "backward_s", "transfer_s", "all_reduce_s", "memory_bytes")


def test_no_case_is_left_out(vectors: dict[str, list[dict[str, Any]]]) -> None:
    assert len(vectors["cost"]) == len(CASES)
    optima = (case["expected"]["optimum_over_all_plans_of_S_stages"] for case in vectors["cost"])
    assert tuple(i for i, optimum in enumerate(optima) if optimum) == WITH_OPTIMUM


@pytest.mark.parametrize("i", CASES)
def test_every_expected_value_is_met(vectors: dict[str, list[dict[str, Any]]], i: int) -> None:
    case, expected = vectors["cost"][i], vectors["cost"][i]["expected"]
    cost = _cost(_problem(case), case["cuts"], case["device_cuts"])
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(cost, name), expected[name], rtol=1e-9, atol=0, err_msg=name)
    assert cost.span_s == pytest.approx(expected["span_s"], rel=1e-9, abs=0)
    assert cost.length_s == pytest.approx(expected["length_s"], rel=1e-9, abs=0)
    assert cost.feasible == expected["feasible"]


@pytest.mark.parametrize("i", WITH_OPTIMUM)
def test_the_best_of_all_plans_is_the_expected_optimum(vectors: dict[str, list[dict[str, Any]]], i: int) -> None:
    case = vectors["cost"][i]
    optimum = case["expected"]["optimum_over_all_plans_of_S_stages"]
    problem = _problem(case)
    n, devices, boundaries = len(problem.profile), problem.cluster.devices, len(case["cuts"])
    plans = product(combinations(range(n - 1), boundaries), combinations(range(1, devices), boundaries))
    costs = ((_cost(problem, *plan), plan) for plan in plans)
    best, plan = min(((c.length_s, plan) for c, plan in costs if c.feasible), key=lambda pair: pair[0])
    assert best == pytest.approx(optimum["length_s"], rel=1e-9)
    assert plan == (tuple(optimum["cuts"]), tuple(optimum["device_cuts"]))


def _problem(case: dict[str, Any]) -> StagedProblem:
    cluster, stages = Cluster(**case["cluster"]), len(case["cuts"]) + 1
    return StagedProblem(Profile.create(**case["profile"]), cluster, stages, case["micro_batches"])


def _cost(problem: StagedProblem, cuts: Any, device_cuts: Any) -> StagedCost:
    return plan_cost(problem, StagedPlan(tuple(cuts), tuple(device_cuts), problem.micro_batches, "given"))
