"""Many problems at once: the same plans as one by one, in the same order, and failures that stay their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import automap_models
from automap_models import BadInput, Cluster, Infeasible, Profile, StagedProblem, plan_batch
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.batch import CHUNK
from automap_models.planners.staged.policy import SHIPPED
from automap_models.resources import zoo_dir

CLUSTER = Cluster(nodes=2, devices_per_node=8, intra=100.0, inter=10.0, memory=1e9, name="two of eight")
ROOT = Path(__file__).resolve().parents[3]


def profile(n: int = 20, seed: int = 0) -> Profile:
    C, A, W = np.random.default_rng(seed).uniform(0.1, 1.0, size=(3, n))
    return Profile.create(C=C, A=A, W=W)


def test_every_public_name_is_there_and_listed() -> None:
    for name in automap_models.__all__:
        assert getattr(automap_models, name).__name__ == name
    assert set(automap_models.__all__) <= set(dir(automap_models))
    assert sorted(automap_models._WHERE) == sorted(automap_models.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        automap_models.no_such_name  # noqa: B018


@pytest.mark.parametrize("planner", ["policy", "uniform", "exact"])
def test_plans_are_those_of_single_calls_in_the_same_order(planner: str) -> None:
    problems = [StagedProblem(profile(seed=s), CLUSTER, 2 + s % 3, micro_batches=4 + s) for s in range(12)]
    outcomes = plan_batch(problems, planner)
    single = make_planner(planner)
    for problem, outcome in zip(problems, outcomes, strict=True):
        assert outcome.ok
        assert outcome.problem is not None
        assert outcome.plan == single.plan(problem)
        assert outcome.step_s == pytest.approx(automap_models.plan_cost(problem, outcome.plan).length_s, rel=1e-12)


def test_a_tuple_is_a_problem() -> None:
    ours = profile()
    (outcome,) = plan_batch([(ours, CLUSTER, 3, 8)])
    assert outcome.problem is not None
    assert (outcome.problem.stages, outcome.problem.micro_batches, outcome.problem.profile) == (3, 8, ours)


@pytest.mark.parametrize("planner", ["policy", "auto"])
def test_one_failure_is_its_own_whatever_its_kind(planner: str) -> None:
    """No problem at all, nothing that fits, and neither; the good ones around them get the plans they get alone."""
    good = StagedProblem(profile(), CLUSTER, 2)
    tight = replace(good, cluster=replace(CLUSTER, memory=1e-6))
    config = {"certify_s": 0.0, "refine_s": 0.0} if planner == "auto" else {}
    outcomes = plan_batch(
        [good, (profile(), CLUSTER, 17, 8), tight, (profile(), CLUSTER, 2, 0), good], planner, **config
    )
    assert [outcome.ok for outcome in outcomes] == [True, False, False, False, True]
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [type(None), BadInput, Infeasible, BadInput, type(None)]
    assert "17 stages" in str(outcomes[1].error)
    assert outcomes[2].problem is tight
    assert outcomes[0].plan == outcomes[4].plan


def test_a_problem_beyond_what_the_policy_can_express_does_not_fail_the_others() -> None:
    good = StagedProblem(profile(), CLUSTER, 2)
    outcomes = plan_batch([good, replace(good, granularity=100), good], policy=zoo_dir() / SHIPPED)
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert "granularity 100" in (outcomes[1].outside or "")
    assert outcomes[0].outside is None


def test_one_stage_is_data_parallelism() -> None:
    one_stage = StagedProblem(profile(), CLUSTER, 1)
    expected = make_planner("data-parallel").plan(one_stage)
    for planner in ("policy", "data-parallel"):
        (outcome,) = plan_batch([one_stage], planner)
        assert outcome.problem is not None
        assert outcome.plan is not None
        assert outcome.plan.check_valid(outcome.problem) == (True, "")
        assert outcome.step_s == automap_models.plan_cost(one_stage, expected).length_s


def test_progress_is_told_after_every_chunk_up_to_the_end() -> None:
    news: list[tuple[int, int]] = []
    problems = [StagedProblem(profile(), CLUSTER, 2)] * (2 * CHUNK + 1)
    assert len(plan_batch(problems, "uniform", progress=lambda done, total: news.append((done, total)))) == len(
        problems
    )
    assert news == [(done, len(problems)) for done in (CHUNK, 2 * CHUNK, 2 * CHUNK + 1)]
    assert plan_batch([], progress=lambda done, total: pytest.fail("nothing to tell")) == []


def test_what_is_wrong_with_the_planner_fails_the_batch(tmp_path: Path) -> None:
    problems = [StagedProblem(profile(), CLUSTER, 2)]
    with pytest.raises(BadInput, match="unknown planner"):
        plan_batch(problems, "best")
    with pytest.raises(BadInput, match="no such policy"):
        plan_batch(problems, policy=tmp_path / "none.onnx")
    with pytest.raises(BadInput, match="no option 'patience'"):
        plan_batch(problems, patience=3)


def test_random_problems_all_end_in_a_valid_plan_or_an_error(
    random_problems: Callable[..., list[StagedProblem]],
) -> None:
    problems = random_problems(11, 40)
    for problem, outcome in zip(problems, plan_batch(problems, "exact"), strict=True):
        if outcome.plan is None:
            assert isinstance(outcome.error, Infeasible)
        else:
            assert outcome.plan.check_valid(problem) == (True, "")
