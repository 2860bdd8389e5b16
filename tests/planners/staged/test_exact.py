"""The exact planner against brute force, a second solver and the reference optima."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.device_tables import device_tables
from automap_models.planners.staged.exact import ExactPlanner, certify
from automap_models.planners.staged.pareto import pareto_front, ragged_ranges
from automap_models.planners.staged.relaxation import lower_bound_s
from automap_models.planners.staged.search import anytime_search, exact_search
from automap_models.simulate.step import step_cost


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


@pytest.mark.parametrize("seed", range(60))
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
    """The limit is set to what the best plan needs and to one bit less."""
    for seed in range(20):
        problem = make_problem(seed)
        plan = exact_search(replace(problem, cluster=replace(problem.cluster, memory=1e18)))
        assert plan is not None
        needed = float(plan_cost(problem, plan).memory_bytes.max())
        for memory in (needed, np.nextafter(needed, 0.0)):
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
    with pytest.raises(Infeasible, match="124 GB"):
        lower_bound_s(problem)
    fits = replace(problem, cluster=replace(problem.cluster, memory=124e9))
    assert ExactPlanner().plan(fits).cuts == (1,)


@pytest.mark.parametrize("seed", range(12))
def test_a_search_stopped_anywhere_bounds_the_optimum(seed, make_problem, countdown):
    """Every moment at which it can be stopped, from a good plan and from none; what it claims must be true."""
    problem = make_problem(2000 + seed, max_n=14, max_devices=8)
    best = exact_search(problem)
    if best is None or problem.stages == 1:
        return
    best_s = plan_cost(problem, best).length_s
    starts = ((None, None), (1.05 * best_s, None), (best_s, best))
    for upper_s, start in starts:
        checks, finished = 0, False
        while not finished:
            result = anytime_search(problem, countdown(checks), upper_s, start)
            assert result.bound_s <= best_s * (1 + 1e-12)
            if result.plan is not None:
                assert plan_cost(problem, result.plan).length_s >= best_s * (1 - 1e-12)
            finished, checks = result.finished, checks + 1
        assert result.bound_s == pytest.approx(best_s, rel=1e-12)
        assert (result.plan is None) == (upper_s == best_s)


def test_a_search_stopped_just_before_its_end_bounds_the_optimum_closely(make_problem, countdown):
    """The suffixes alive before the first stage is looked at are those of nearly the best length."""
    close = []
    for seed in range(40):
        problem = make_problem(seed, max_n=20, max_devices=8)
        best = exact_search(problem)
        if best is None or problem.stages < 3:
            continue
        best_s, checks, bound_s = plan_cost(problem, best).length_s, 0, 0.0
        while not (result := anytime_search(problem, countdown(checks), 1.01 * best_s, best)).finished:
            checks, bound_s = checks + 1, result.bound_s
        close.append(bound_s / best_s)
    assert len(close) >= 10
    assert np.median(close) > 0.9


def test_a_relaxation_stopped_early_is_a_bound_too(make_problem, countdown):
    for seed in range(20):
        problem = make_problem(seed, max_n=20, max_devices=8)
        best_s = optimum_s(problem)
        if np.isfinite(best_s):
            bounds = [lower_bound_s(problem, countdown(checks)) for checks in (0, 1, 3, 1000)]
            assert sorted(bounds) == bounds
            assert 0 < bounds[0] <= bounds[-1] <= best_s


@pytest.mark.parametrize("seed", range(30))
def test_a_certificate_is_the_optimum_or_bounds_it(seed, make_problem):
    problem = make_problem(seed, max_n=20, max_devices=8)
    try:
        uniform = UniformPlanner().plan(problem)
    except Infeasible:
        return
    best_s = optimum_s(problem)
    bound = certify(problem, uniform, None)
    assert bound.plan is None
    assert bound.bound.value <= best_s
    assert bound.bound.proof == ("relaxation" if problem.stages > 1 else "exact")
    proven = certify(problem, uniform, Deadline())
    assert proven.bound == Bound(pytest.approx(best_s, rel=1e-12), "exact")  # type: ignore[arg-type]
    if proven.plan is None:
        assert plan_cost(problem, uniform).length_s == pytest.approx(best_s, rel=1e-11)
    else:
        assert plan_cost(problem, proven.plan).length_s == pytest.approx(best_s, rel=1e-12)
    nothing_shorter = certify(problem, uniform, Deadline(), 0.9 * best_s)
    assert nothing_shorter.plan is None
    assert nothing_shorter.bound.value == pytest.approx(0.9 * best_s)


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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), pick=st.randoms(use_true_random=False))
def test_it_is_never_longer_than_any_other_plan_nor_shorter_than_the_bound(seed, pick, make_problem, plan_length):
    problem = make_problem(seed, max_n=40, max_devices=12, max_stages=5)
    best = optimum_s(problem)
    coarse = tuple(sorted(pick.sample(problem.grid.cut_points.tolist(), problem.stages - 1)))
    device_cuts = tuple(sorted(pick.sample(range(1, problem.cluster.devices), problem.stages - 1)))
    assert best <= plan_length(problem, coarse, device_cuts) * (1 + 1e-12)
    if np.isfinite(best):
        assert lower_bound_s(problem) <= best
    try:
        uniform = UniformPlanner().plan(problem)
    except Infeasible:
        return
    assert best <= plan_cost(problem, uniform).length_s * (1 + 1e-12)


@pytest.mark.parametrize(("nodes", "size"), [(1, 5), (4, 1), (3, 2), (2, 4), (3, 3)])
def test_the_device_tables_hold_what_the_collectives_say(nodes, size):
    cluster = Cluster(nodes, size, 130e9, 3.125e9, 32e9)
    tables = device_tables(cluster)
    for a, q in combinations(range(cluster.devices + 1), 2):
        for shortest in (False, True):
            expected = all_reduce_s_per_byte(cluster, a, q, shortest=shortest)
            assert tables.replica_all_reduce(1, shortest=shortest)[a, q] == pytest.approx(expected, rel=1e-15)
    for a, q, e in combinations(range(cluster.devices + 1), 3):
        assert tables.transfer[q][a, e - q - 1] == transfer_s_per_byte(cluster, a, q, e)
        assert tables.boundary[q] <= tables.arrival[q, e] <= tables.transfer[q][a, e - q - 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_a_front_holds_each_undominated_pair_of_its_group_once(entries):
    entries = sorted(entries)
    group, first, second = (np.array([e[j] for e in entries], dtype=np.int64) for j in range(3))
    front = pareto_front(group, np.stack((first, second)).astype(float))
    expected = {
        (g, x, y)
        for g, x, y in entries
        if not any(h == g and v <= x and w <= y and (v, w) != (x, y) for h, v, w in entries)
    }
    kept = [entries[j] for j in front]
    assert sorted(kept) == sorted(expected)
    assert [g for g, _, _ in kept] == sorted(g for g, _, _ in kept)


@given(st.lists(st.tuples(st.integers(0, 2), *[st.integers(0, 4)] * 3), max_size=40))
def test_a_front_of_three_numbers_loses_no_entry_that_nothing_dominates(entries):
    entries = sorted(entries)
    columns = np.array(entries, dtype=np.int64).reshape(-1, 4).T
    kept = {entries[j] for j in pareto_front(columns[0], columns[1:].astype(float))}
    for own in entries:
        others = [other[1:] for other in entries if other[0] == own[0] and other[1:] != own[1:]]
        dominated = any(all(x <= y for x, y in zip(other, own[1:], strict=True)) for other in others)
        assert dominated or own in kept


def test_ragged_ranges_are_laid_end_to_end():
    owner, value = ragged_ranges(np.array([5, 2, 9]), np.array([7, 2, 10]))
    assert owner.tolist() == [0, 0, 2]
    assert value.tolist() == [5, 6, 9]


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


def test_a_best_plan_whose_stage_holds_too_little_work_names_the_planner_that_knows_better() -> None:
    """It said to use `--planner exact`. All cuts are dear but the first, before which 1/16 of the work lies."""
    profile = Profile.create(C=np.ones(16), A=np.array([0.0] + [1e3] * 14 + [0.0]), W=np.ones(16))
    least = Constraints(min_stage=0.25)
    problem = StagedProblem(profile, Cluster(1, 2, 1.0, 1.0, 1e6), stages=2, micro_batches=4, constraints=least)
    reason = make_planner("exact", kind="staged").solve(problem).reason
    assert str(reason).endswith("`min_stage=0.25` in stage 0; use `planner='auto'`")
