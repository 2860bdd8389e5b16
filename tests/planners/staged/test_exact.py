"""The exact planner against brute force, a second solver and the reference optima."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optima import exact_search

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners import effort
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.search import ExactConfig, ExactPlanner, certify
from automap_models.planners.staged.step_bounds import least_step_s
from automap_models.simulate.plan_step import step_cost


def optimum_s(problem: StagedProblem) -> float:
    """The exact planner's length, checked against the cost model; inf when nothing fits."""
    result = ExactPlanner().solve(problem)
    plan = result.plan
    if plan is None:
        assert result.status == "infeasible"
        return np.inf
    cost = plan_cost(problem, plan)
    assert plan.check_valid(problem) == (True, "")
    assert plan.coarse_cuts is not None
    assert cost.feasible
    assert (result.status, result.bound) == ("optimal", Bound(cost.length_s, "exact"))
    return cost.length_s


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_is_shorter_by_brute_force(seed, make_problem, brute_force):
    problem = make_problem(seed)
    assert optimum_s(problem) == pytest.approx(brute_force(problem), rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_medium_problems_agree_with_a_second_solver(seed, make_problem, label_search):
    problem = make_problem(1000 + seed, max_n=26, max_devices=8)
    assert optimum_s(problem) == pytest.approx(label_search(problem), rel=1e-12)


def test_the_random_problems_are_of_every_kind(make_problem, brute_force):
    """Some fit nothing, some have zeros, one node, single-device nodes, repeated points and given forward times."""
    problems = [make_problem(seed) for seed in range(60)]
    assert any(np.isinf(brute_force(p)) for p in problems)
    assert any((p.profile.A == 0).any() and (p.profile.W == 0).any() for p in problems)
    assert {p.cluster.nodes for p in problems} >= {1, 2, 3}
    assert any(p.cluster.devices_per_node == 1 for p in problems)
    assert any(len(p.profile) < p.granularity for p in problems)
    assert any(len(p.profile) > p.granularity for p in problems)
    assert {p.stages for p in problems} == {1, 2, 3, 4}


def test_binding_memory_changes_the_optimum_and_is_respected(make_problem, brute_force):
    changed = 0
    for seed in range(60):
        problem = make_problem(seed)
        roomy = replace(problem, cluster=replace(problem.cluster, memory=1e18))
        tight, free = optimum_s(problem), optimum_s(roomy)
        assert tight >= free * (1 - 1e-12)
        changed += np.isfinite(tight) and tight > free * (1 + 1e-9)
    assert changed >= 3


def test_a_stage_that_fills_its_device_exactly_fits():
    """Two equal halves of 10 bytes at σ = 4 on 40-byte devices: the only plan that fits, with nothing to spare."""
    profile = Profile.create(C=np.ones(4), A=np.ones(4), W=[5.0, 5.0, 5.0, 5.0])
    cluster = Cluster(1, 2, 1e9, 1e9, 40.0)
    plan = exact_search(StagedProblem(profile, cluster, 2, granularity=4))
    assert plan is not None
    assert plan.cuts == (1,)
    smaller = replace(cluster, memory=39.9)
    assert exact_search(StagedProblem(profile, smaller, 2, granularity=4)) is None


def test_rounding_at_the_memory_limit_never_makes_an_infeasible_plan(make_problem, brute_force):
    """The limit is set to what the best plan needs, and to hardly less: memories are compared to rounding."""
    for seed in range(20):
        problem = make_problem(seed)
        plan = exact_search(replace(problem, cluster=replace(problem.cluster, memory=1e18)))
        assert plan is not None
        needed = float(plan_cost(problem, plan).memory_bytes.max())
        for memory in (needed * (1 + 1e-12), needed * (1 - 1e-9)):
            if memory > 0:
                exactly = replace(problem, cluster=replace(problem.cluster, memory=float(memory)))
                assert optimum_s(exactly) == pytest.approx(brute_force(exactly), rel=1e-12)


def test_the_reference_optima_are_met(vectors):
    cases = vectors["cost"]
    checked = 0
    for case in cases:
        best = case["expected"]["optimum_over_all_plans_of_S_stages"]
        if best is None:
            continue
        profile = Profile.create(**case["profile"])
        stages = len(case["cuts"]) + 1
        every_instruction = len(profile)
        problem = StagedProblem(
            profile, Cluster(**case["cluster"]), stages, case["micro_batches"], granularity=every_instruction
        )
        assert problem.grid.instruction_of_point.tolist() == list(range(every_instruction))
        assert optimum_s(problem) == pytest.approx(best["length_s"], rel=1e-9)
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("seed", range(15))
def test_a_bound_proves_the_optimum_or_finds_a_shorter_plan(seed, make_problem):
    problem = make_problem(seed, max_n=20, max_devices=8)
    best = optimum_s(problem)
    if np.isinf(best):
        assert exact_search(problem, 1e30) is None
        return
    assert exact_search(problem, best) is None
    assert exact_search(problem, 0.9 * best) is None
    for above in (1 + 1e-9, 1.01, 3.0):
        plan = exact_search(problem, above * best)
        assert plan is not None
        assert plan_cost(problem, plan).length_s == pytest.approx(best, rel=1e-12)


def test_a_problem_that_fits_nowhere_is_refused_with_what_it_would_need():
    """30 of 33 GB sit in one instruction; two stages leave it alone with 1 GB at best: σ·31 = 124 GB."""
    profile = Profile.create(C=np.ones(4), A=np.ones(4), W=[1e9, 30e9, 1e9, 1e9])
    problem = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 100e9, name="tiny"), 2, granularity=4)
    with pytest.raises(Infeasible, match=r"plans of 2 stages fits the 100 GB.*tiny.*needs 124 GB.*more stages"):
        ExactPlanner().plan(problem)
    fits = replace(problem, cluster=replace(problem.cluster, memory=124e9))
    assert ExactPlanner().plan(fits).cuts == (1,)


@pytest.mark.parametrize("seed", range(15))
def test_a_certificate_is_the_optimum_or_bounds_it(seed, make_problem):
    problem = make_problem(seed, max_n=20, max_devices=8)
    try:
        uniform = UniformPlanner().plan(problem)
    except Infeasible:
        return
    best_s = optimum_s(problem)
    bound = certify(problem, uniform, None)
    assert bound.value <= best_s * (1 + 1e-12)
    uniform_s = plan_cost(problem, uniform).length_s
    assert (bound.proof == "exact") == (bound.value >= uniform_s * (1 - 1e-11))
    proven = certify(problem, uniform, Deadline())
    late = certify(problem, uniform, Deadline(0.0))
    assert 0.0 < late.value <= best_s * (1 + 1e-12)
    assert proven == Bound(pytest.approx(best_s, rel=1e-12), "exact")  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [None, "1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(12))
def test_with_tied_weights_no_plan_is_shorter_by_brute_force(seed: int, schedule: str | None) -> None:
    """Copies count in the memory and in the all-reduces, and under a schedule so do the sums over them."""
    rng, n = np.random.default_rng(seed), 7
    C, A, W, stash = rng.random((4, n)) * [[1.0], [5e9], [1e9], [1e9]]
    users = [sorted(rng.choice(n, size=int(rng.integers(2, 5)), replace=False).tolist()) for _ in range(3)]
    shared = [SharedParameter(f"p{k}", float(W[uses[0]] * rng.random()), tuple(uses)) for k, uses in enumerate(users)]
    profile = Profile.create(C, A, W, stash=stash, shared_parameters=shared)
    cluster = Cluster(2, 2, intra=100e9, inter=10e9, memory=4 * float(W.sum() * rng.uniform(0.5, 1.2)), name="drawn")
    problem = StagedProblem(profile, cluster, int(rng.integers(1, 5)), int(rng.integers(1, 7)), schedule=schedule)
    boundaries = problem.stages - 1
    plans = product(combinations(range(n - 1), boundaries), combinations(range(1, 4), boundaries))
    costs = [step_cost(problem, StagedPlan(*cuts, problem.micro_batches, "drawn")) for cuts in plans]
    fitting = [cost.step_s for cost in costs if cost.feasible]
    result = ExactPlanner().solve(problem)
    assert (result.plan is None) == (not fitting)
    if fitting:
        assert result.cost.step_s == pytest.approx(min(fitting), rel=1e-9)


def test_the_registry_knows_it(make_problem):
    problem = make_problem(3)
    assert make_planner("exact").plan(problem).planner == "exact"


@given(seed=st.integers(0, 10**6), pick=st.randoms(use_true_random=False))
def test_it_is_never_longer_than_any_other_plan_nor_shorter_than_the_bound(seed, pick, make_problem, plan_length):
    problem = make_problem(seed, max_n=40, max_devices=12, max_stages=5)
    best = optimum_s(problem)
    coarse = tuple(sorted(pick.sample(problem.grid.cut_points.tolist(), problem.stages - 1)))
    device_cuts = tuple(sorted(pick.sample(range(1, problem.cluster.devices), problem.stages - 1)))
    assert best <= plan_length(problem, coarse, device_cuts) * (1 + 1e-12)
    if np.isfinite(best):
        assert least_step_s(problem, 2 * best, NEVER) <= best * (1 + 1e-12)
    try:
        uniform = UniformPlanner().plan(problem)
    except Infeasible:
        return
    assert best <= plan_cost(problem, uniform).length_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_tied_weights_are_bounded_where_links_between_nodes_are_faster_than_inside(seed):
    rng = np.random.default_rng(seed)
    weights, shared = np.array([5e8, 1e6, 1e6, 1e6, 1e6]), SharedParameter("table", 5e8, (0, 1 + seed % 3))
    profile = Profile.create(rng.uniform(0.1, 1, 5), rng.uniform(size=5) * 1e5, weights, shared_parameters=(shared,))
    cluster = Cluster(3, 1, intra=1e8, inter=1e10, memory=1e15)
    problem = StagedProblem(profile, cluster, 3, 2, granularity=5, schedule="1f1b")
    plans = (StagedPlan(cuts, (1, 2), 2, "brute force") for cuts in combinations(range(4), 2))
    result = ExactPlanner().solve(problem)
    assert result.status == "optimal"
    assert result.cost.step_s == pytest.approx(min(step_cost(problem, plan).step_s for plan in plans), rel=1e-12)


def test_stages_hold_the_work_that_is_asked_of_them() -> None:
    """All cuts are dear but the first, before which 1/16 of the work lies: a quarter of an even share is one eighth."""
    profile = Profile.create(C=np.ones(16), A=np.array([0.0] + [1e3] * 14 + [0.0]), W=np.ones(16))
    problem = StagedProblem(profile, Cluster(1, 2, 1.0, 1.0, 1e6), stages=2, micro_batches=4)
    assert ExactPlanner().plan(problem).cuts == (0,)
    working = replace(problem, constraints=Constraints(min_stage=0.25))
    plan = ExactPlanner().plan(working)
    assert plan.check_valid(working) == (True, "")
    others = [StagedPlan((cut,), (1,), 4, "any") for cut in range(1, 14)]
    assert plan_cost(working, plan).length_s == min(plan_cost(working, other).length_s for other in others)


def test_a_search_that_is_not_done_in_its_budget_answers_with_its_best_plan_and_a_bound() -> None:
    """BERT-48 on C in nine stages was not done after 167 s, and nothing said when it would be."""
    bert = Path(__file__).resolve().parents[3] / "examples" / "bert48_v100.npz"
    problem = StagedProblem(read_profile(bert), read_cluster("C"), 9, schedule="1f1b")
    before_s = effort.counted_s()
    result = ExactPlanner(ExactConfig(certify_s=0.2)).solve(problem)
    assert effort.counted_s() - before_s <= 2 * 0.2
    assert result.plan is not None and result.bound is not None
    assert result.status == "feasible"
    assert 0.0 < result.bound.value < result.cost.step_s
    assert "stopped after 0.2 s" in result.notes[0]
