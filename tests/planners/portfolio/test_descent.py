"""Good plans for many problems under a schedule: never worse than where they begin, and the best of small models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.microbatch import with_microbatch_size
from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio import descent
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.contender import Contender
from automap_models.planners.portfolio.descent import descend, improve
from automap_models.planners.portfolio.regroup import merges, splits
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.simulate.step import step_cost

EXAMPLES = Path(__file__).parents[3] / "examples"
MakeProblem = Callable[..., StagedProblem]


def small(make_problem: MakeProblem, seed: int, schedule: str) -> StagedProblem:
    """Of few enough micro-batches and samples that every plan can be simulated."""
    problem = make_problem(seed, max_n=7, max_devices=5, max_stages=3)
    profile = with_microbatch_size(problem.profile, 1 + seed % 7)
    return replace(problem, profile=profile, micro_batches=1 + seed % 6, schedule=schedule, granularity=128)


def all_plans(problem: StagedProblem) -> list[StagedPlan]:
    from itertools import combinations

    n, devices, stages = len(problem.profile), problem.cluster.devices, problem.stages
    return [
        StagedPlan(cuts, device_cuts, problem.micro_batches, "brute force")
        for cuts in combinations(range(n - 1), stages - 1)
        for device_cuts in combinations(range(1, devices), stages - 1)
    ]


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("seed", range(3))
def test_without_limits_the_plan_is_the_shortest_step_of_all_numbers_of_stages(
    seed: int, schedule: str, make_problem: MakeProblem
) -> None:
    problem = small(make_problem, seed, schedule)
    most = min(problem.cluster.devices, len(problem.profile))
    steps = {}
    for stages in range(1, most + 1):
        of_stages = replace(problem, stages=stages)
        costs = [step_cost(of_stages, plan) for plan in all_plans(of_stages)]
        steps[stages] = min((cost.step_s for cost in costs if cost.feasible), default=np.inf)
    space = replace(PlanningSpace.of(problem), stages=None)
    endless = AutoConfig(certify_s=60.0, refine_s=1.0, min_gain=0.0)
    result = AutoPlanner(endless).solve(space)
    expected_s = min(steps.values())
    if not np.isfinite(expected_s):
        assert result.plan is None
        return
    assert result.cost.step_s == pytest.approx(expected_s, rel=1e-9)
    assert result.bound is not None
    assert result.bound.value <= expected_s * (1.0 + 1e-9)
    modest = AutoPlanner(replace(endless, min_gain=0.1)).solve(space)
    fewest = min(stages for stages, step_s in steps.items() if step_s <= 1.1 * expected_s * (1 - 1e-9))
    assert modest.plan is not None
    assert modest.plan.stages <= fewest
    assert modest.cost.step_s <= 1.1 * expected_s * (1.0 + 1e-9)


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("seed", range(4))
def test_no_fixed_number_of_stages_or_micro_batches_beats_the_default(
    seed: int, schedule: str, make_problem: MakeProblem
) -> None:
    """What a fixed choice comes to is one of all plans, and the models are small enough to look at all of them.

    A plan of more stages may be shorter by the gain that a stage has to bring.
    """
    problem = small(make_problem, 100 + seed, schedule)
    profile = with_microbatch_size(problem.profile, 2)
    space = PlanningSpace(ProfiledModel(profile), problem.cluster, global_batch=8, granularity=128, schedule=schedule)
    planner = AutoPlanner()
    result = planner.solve(space)
    for micro_batches in space.counts:
        for stages in space.stage_numbers:
            fixed = replace(space.split(stages, micro_batches), shardings=())
            valid = [plan for plan in all_plans(fixed) if plan.check_valid(fixed)[0]]
            costs = [step_cost(fixed, plan) for plan in valid]
            best_s = min((cost.step_s for cost in costs if cost.feasible), default=np.inf)
            if result.plan is None:
                assert np.isinf(best_s)
                continue
            tolerance = planner.config.min_gain if stages > result.plan.stages else 0.0
            assert result.cost.step_s <= best_s * (1.0 + tolerance) * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_moves_never_make_a_step_longer(seed: int, make_problem: MakeProblem) -> None:
    problem = small(make_problem, seed, "1f1b")
    start = UniformPlanner().solve(problem)
    if start.plan is None or problem.stages == 1:
        return
    contender = Contender(problem)
    contender.take(start)
    improve(contender, [start.plan], Deadline())
    assert contender.plan is not None
    assert contender.plan.check_valid(problem) == (True, "")
    assert contender.step_s <= start.cost.step_s
    assert contender.step_s == step_cost(problem, contender.plan).step_s


def test_other_stages_and_micro_batches_begin_at_the_plans_that_are_known(make_problem: MakeProblem) -> None:
    """Nobody but the first problem is given a plan: the others begin at even work, at splits, and at the same cuts."""
    problem = replace(small(make_problem, 3, "1f1b"), stages=1)
    cluster = replace(problem.cluster, nodes=1, devices_per_node=4, memory=1e18)
    problems = [replace(problem, cluster=cluster, stages=S, micro_batches=M) for M in (4, 8) for S in (2, 3)]
    contenders = [Contender(p) for p in problems]
    descend(contenders, lambda some: None, 10.0, 30.0, Deadline())
    for contender in contenders:
        if contender.plan is not None:
            assert contender.plan.check_valid(contender.problem) == (True, "")
            assert contender.plan.planner == "auto"
    assert sum(contender.plan is not None for contender in contenders) >= 3


@pytest.mark.parametrize("gain", [-0.1, 1.5, float("nan")])
def test_a_gain_is_a_share(gain: float) -> None:
    with pytest.raises(BadInput, match="`min_gain`: a gain of"):
        AutoConfig(min_gain=gain)


def test_equal_stages_are_planned_where_they_divide_the_devices(make_problem: MakeProblem) -> None:
    problem = small(make_problem, 2, "1f1b")
    cluster = replace(problem.cluster, nodes=2, devices_per_node=3, memory=1e18)
    space = PlanningSpace(
        ProfiledModel(problem.profile),
        cluster,
        micro_batches=4,
        constraints=Constraints(equal_replicas=True),
        schedule="1f1b",
    )
    result = AutoPlanner(AutoConfig(certify_s=5.0, refine_s=0.1, min_gain=0.0)).solve(space)
    assert {entry.stages for entry in result.search_log} <= {1, 2, 3, 6}
    plan = result.required_plan()
    assert len({last - first for first, last in plan.stage_devices(6)}) == 1
    steps = [
        cost.step_s
        for stages in (1, 2, 3)
        for equal in [replace(space.whole, stages=stages)]
        for candidate in all_plans(equal)
        if candidate.check_valid(equal)[0]
        for cost in [step_cost(equal, candidate)]
    ]
    assert result.cost.step_s <= min(steps) * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_merging_takes_one_pair_of_cuts_away_and_splitting_adds_one(seed: int, make_problem: MakeProblem) -> None:
    problem = small(make_problem, seed, "1f1b")
    n, devices = len(problem.profile), problem.cluster.devices
    if not 1 < problem.stages < min(n, devices):
        problem = replace(problem, stages=2, cluster=replace(problem.cluster, nodes=1, devices_per_node=5))
        n, devices = len(problem.profile), 5
    for plan in all_plans(problem)[:40]:
        cuts = set(zip(plan.cuts, plan.device_cuts, strict=True))
        fewer = replace(problem, stages=problem.stages - 1)
        merged = list(merges(fewer, problem, plan))
        assert [set(zip(one.cuts, one.device_cuts, strict=True)) for one in merged] == [
            cuts - {cut} for cut in zip(plan.cuts, plan.device_cuts, strict=True)
        ]
        for split in splits(replace(problem, stages=problem.stages + 1), problem, plan, uneven=True):
            assert set(plan.cuts) < set(split.cuts) < set(range(n - 1))
            assert list(split.device_cuts) == sorted(set(split.device_cuts)) and min(split.device_cuts) > 0
            assert max(split.device_cuts) < devices and set(plan.device_cuts) < set(split.device_cuts)


@pytest.mark.slow
def test_a_number_of_stages_that_is_no_better_does_not_end_the_search() -> None:
    """VGG-19 on cluster A: five stages were no better than two, and six, which are by 5 %, were never looked at."""
    profile = with_microbatch_size(read_profile(EXAMPLES / "vgg19_v100.npz"), 16)
    space = PlanningSpace(ProfiledModel(profile), read_cluster("A"), micro_batches=16, schedule="1f1b")
    six = AutoPlanner().solve(replace(space, stages=(6,)))
    chosen = AutoPlanner().solve(space)
    assert chosen.cost.step_s <= six.cost.step_s * (1.0 + AutoConfig().min_gain)


def test_every_number_of_stages_has_a_plan_or_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight blocks with equal matrices in PyTorch: 13 stages were 10 % shorter than the 6 that stayed unmatched.

    Five and six stages are no better than four on two nodes, and the numbers after them were left alone.
    """
    monkeypatch.setattr(descent, "PATIENCE", 0)
    blocks = 4
    work_s = np.tile([0.0, 345.0, 3.0, 10.0, 0.0, 345.0, 1.0, 2.0], blocks) * 1e-6
    crossing = np.tile([0.26, 1.31, 1.31, 1.31, 1.31, 0.52, 0.26, 0.26], blocks) * 1e6
    parameters = np.tile([67.1, 0.0, 0.03, 0.0, 67.1, 0.0, 0.01, 0.0], blocks) * 1e6
    meta = {"model": "blocks", "microbatch_size": 32}
    profile = Profile.create(work_s, crossing, parameters, work_s / 3.0, crossing, meta=meta)
    space = PlanningSpace(ProfiledModel(profile), Cluster(2, 4, 130e9, 3.125e9, 32e9, "two nodes"), schedule="1f1b")
    result = AutoPlanner(AutoConfig(certify_s=0.02, refine_s=0.0)).solve(space)
    assert [entry.stages for entry in result.search_log] == list(range(1, 9))
    assert all(entry.step_s is not None or entry.outcome != "planned" for entry in result.search_log)
    shortest_s = min(entry.step_s for entry in result.search_log if entry.step_s is not None)
    assert result.cost.step_s <= shortest_s * (1.0 + AutoConfig().min_gain)


def test_on_many_nodes_only_numbers_of_stages_that_may_be_good_are_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 40 numbers; on 64 nodes of 8 the command went through 128 and did not end in ten minutes."""
    rng, blocks, looked_at = np.random.default_rng(5), 12, list[int]()
    work_s = np.tile([0.004, 0.002, 0.006, 0.001], blocks) * rng.uniform(0.9, 1.1, 4 * blocks)
    crossing, parameters = np.full(4 * blocks, 2e7), np.tile([4e6, 0.0, 8e6, 0.0], blocks)
    meta = {"model": "blocks", "microbatch_size": 64}
    profile = Profile.create(work_s, crossing, parameters, work_s / 3.0, crossing, meta=meta)
    cluster, numbers = Cluster(40, 1, 130e9, 3.125e9, 32e9, "many"), tuple(range(1, 41))
    space = PlanningSpace(ProfiledModel(profile), cluster, stages=numbers, schedule="1f1b")
    look_around = descent.look_around

    def counted(contender: Contender, one_s: float, deadline: Deadline) -> None:
        looked_at.append(contender.problem.stages)
        look_around(contender, one_s, deadline)

    monkeypatch.setattr(descent, "look_around", counted)
    planner = AutoPlanner(AutoConfig(certify_s=0.02, refine_s=0.0))
    result = planner.solve(space)
    assert 0 < len({stages for stages in looked_at if stages > descent.FEW}) < 12
    assert tuple(entry.stages for entry in result.search_log) == numbers
    assert all(entry.bound_s for entry in result.search_log)
    assert 0 < result.bound.value <= result.cost.step_s
    monkeypatch.setattr(descent, "FEW", 10**6)
    assert result.cost.step_s <= planner.solve(space).cost.step_s * (1.0 + AutoConfig().min_gain)
