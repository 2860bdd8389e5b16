"""What a run holds its steps against is what its plan was priced by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_plan import CLUSTER, PROFILE

from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.result import PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.atomic import write_json
from automap_models.formats.plan import written_plan
from automap_models.formats.staged_plan import StagedDocument, plan_document
from automap_models.run.base import predicted_timeline, run_schedule, tolerance_of
from automap_models.simulate.plan_step import step_cost

TIED = replace(PROFILE, shared_parameters=(SharedParameter("embedding", 1.0, (0, 3)),))


def written(path: Path, profile: Profile, schedule: str, cuts: tuple[int, ...], devices: tuple[int, ...]) -> float:
    """Write a plan; returns its step as the cost model prices it."""
    problem = StagedProblem(profile, CLUSTER, stages=len(cuts) + 1, micro_batches=4, schedule=schedule)
    plan = StagedPlan(cuts, devices, micro_batches=4, planner="exact")
    cost = step_cost(problem, plan)
    result = Result(problem, plan, cost, "feasible")
    write_json(path, plan_document(PlanReport(**vars(result), single_device_s=96.0, uniform_s=60.0)))
    assert cost.step_s is not None
    return cost.step_s


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("profile", [PROFILE, TIED], ids=["", "tied"])
@pytest.mark.parametrize(
    ("cuts", "devices"), [((1,), (2,)), ((1,), (1,)), ((0,), (3,)), ((0, 2), (1, 3)), ((1, 2), (2, 3)), ((), ())]
)
def test_the_predicted_step_is_the_one_that_the_plan_was_priced_by(
    profile: Profile, schedule: str, cuts: tuple[int, ...], devices: tuple[int, ...], tmp_path: Path
) -> None:
    """Buckets of gradients that overlap the last backward pass, and the sums of tied weights, are in its lanes."""
    path = tmp_path / "plan.json"
    step_s = written(path, profile, schedule, cuts, devices)
    plan = written_plan(path, StagedDocument)
    predicted = predicted_timeline(plan, run_schedule(plan, None, None))
    assert predicted.length_s == pytest.approx(step_s, rel=1e-9)
    assert predicted.length_s == pytest.approx(plan.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("types", "unit", "largest"),
    [
        ({"f32", "i32"}, 2.0**-24, 200),
        ({"float32"}, 2.0**-24, 200),
        ({"f32", "bf16"}, 2.0**-9, 32),
        ({"float16"}, 2.0**-12, 64),
    ],
)
def test_a_check_allows_a_few_roundings_of_the_coarsest_type(types: set[str], unit: float, largest: float) -> None:
    """Half the distance between 1 and the next number: 24 bits of fp32's significand, 9 of bf16's, 12 of fp16's."""
    assert 10 < tolerance_of(types) / unit < largest
    assert tolerance_of(types) < 0.1, "one of four micro-batches that is left out would not show"
