"""The hybrid search against brute force over all cuts, devices and shardings, and against the pipeline planner."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hybrid_problems import demands, every_plan, hybrid_problem, random_sharding
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.constraints import Constraints
from automap_models.core.device import Device
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.costs import SearchResult
from automap_models.planners.staged.improve import graphs
from automap_models.planners.staged.move_kernel import judged, search_from
from automap_models.planners.staged.search import anytime_search
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.simulate.plan_step import step_cost


def length(problem: StagedProblem, plan: StagedPlan) -> float:
    """Inf where it does not fit."""
    cost = plan_cost(problem, plan)
    return cost.length_s if cost.feasible else np.inf


def brute_force(problem: StagedProblem, constraints: Constraints | None = None) -> float:
    plans = every_plan(problem, anywhere=constraints is not None)
    constrained = replace(problem, constraints=constraints or Constraints())
    return min((length(problem, plan) for plan in plans if plan.check_valid(constrained)[0]), default=np.inf)


def checked(problem: StagedProblem, result: SearchResult) -> float:
    """The length that a finished search found, checked against the model; inf when nothing fits."""
    assert result.finished
    if result.plan is None:
        return np.inf
    assert result.plan.check_valid(problem) == (True, "")
    cost = plan_cost(problem, result.plan)
    assert cost.feasible
    assert result.cost is not None
    assert result.bound_s == result.cost.length_s == cost.length_s
    return cost.length_s


def search(problem: StagedProblem, constraints: Constraints | None = None) -> float:
    return checked(problem, anytime_search(replace(problem, constraints=constraints or Constraints()), Deadline()))


@pytest.mark.parametrize("seed", range(25))
def test_no_stage_has_more_replicas_than_there_may_be(seed, make_problem):
    problem = replace(hybrid_problem(seed, make_problem, max_n=6), max_replicas=1 + seed % 3)
    shortest = brute_force(problem)
    try:
        assert search(problem) == pytest.approx(shortest, rel=1e-9)
    except BadInput as refused:
        assert "replica(s)" in str(refused) and shortest == np.inf


@given(seed=st.integers(0, 10**6))
def test_it_is_the_optimum_of_any_small_problem(seed, make_problem):
    problem = hybrid_problem(seed, make_problem, max_n=6, max_devices=8, max_stages=3)
    assert search(problem) == pytest.approx(brute_force(problem), rel=1e-12)


def test_the_random_problems_need_every_kind_of_way(make_problem):
    """Some optima partition, some replicate, some do both or mix shardings; memory decides some; S is 1 to 4."""
    mixed = partitioned = replicated = stages = 0
    bound_by_memory = 0
    for seed in range(100):
        problem = hybrid_problem(seed, make_problem, max_n=7)
        plan = anytime_search(problem, Deadline()).plan
        if plan is None:
            continue
        stages |= 1 << plan.stages
        partitioned += any(plan.shardings)
        replicated += not any(plan.shardings)
        mixed += len(set(plan.shardings)) > 1
        roomy = replace(problem, cluster=replace(problem.cluster, memory=1e18))
        bound_by_memory += search(roomy) < length(problem, plan) * (1 - 1e-9)
    assert stages == 0b11110
    assert min(mixed, partitioned, replicated) >= 5
    assert bound_by_memory >= 3


@given(seed=st.integers(0, 10**6))
def test_more_shardings_are_never_worse(seed, make_problem):
    problem = hybrid_problem(seed, make_problem, max_n=30, max_devices=12, max_stages=5)
    lengths = [search(replace(problem, shardings=problem.shardings[:count])) for count in range(3)]
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(lengths))


@pytest.mark.parametrize("seed", range(20))
def test_a_known_length_or_plan_leads_to_the_same_optimum(seed, make_problem):
    problem = hybrid_problem(seed, make_problem, max_n=14, max_devices=8)
    best = anytime_search(problem, Deadline())
    if best.plan is None:
        assert best.bound_s == np.inf
        return
    assert anytime_search(problem, Deadline(), best.bound_s).plan is None
    assert checked(problem, anytime_search(problem, Deadline(), 1.01 * best.bound_s)) == best.bound_s
    first = next(plan for plan in every_plan(problem) if plan_cost(problem, plan).feasible)
    start_s = length(problem, first) * (1 + 1e-9)
    assert checked(problem, anytime_search(problem, Deadline(), start_s, [first])) == pytest.approx(best.bound_s)


@pytest.mark.parametrize("seed", range(40))
def test_constraints_are_honoured_and_cost_no_more_than_they_must(seed, make_problem):
    """The grid is every instruction, so that the search sees every plan that satisfies them."""
    problem = hybrid_problem(seed, make_problem, max_n=7)
    n = len(problem.profile)
    problem = replace(problem, granularity=n)
    constraints = demands(seed, problem)
    constrained = replace(problem, constraints=constraints)
    possible = [plan for plan in every_plan(problem, anywhere=True) if plan.check_valid(constrained)[0]]
    if not possible:
        with pytest.raises(BadInput, match="`"):
            search(problem, constraints)
        return
    best = anytime_search(constrained, Deadline())
    assert checked(constrained, best) == pytest.approx(min(length(problem, plan) for plan in possible), rel=1e-12)


def test_the_random_constraints_are_of_every_kind(make_problem):
    refused = changed = 0
    for seed in range(40):
        problem = hybrid_problem(seed, make_problem, max_n=7)
        problem = replace(problem, granularity=len(problem.profile))
        try:
            changed += np.isfinite(s := search(problem, demands(seed, problem))) and s > search(problem) * (1 + 1e-9)
        except BadInput:
            refused += 1
    assert refused >= 5
    assert changed >= 3


@pytest.mark.parametrize("seed", range(30))
def test_on_a_coarse_grid_a_plan_is_found_wherever_there_is_one(seed, make_problem):
    """A pin rarely falls on a grid of a few points: the points that it needs are added."""
    problem = hybrid_problem(seed, make_problem, max_n=9)
    problem = replace(problem, granularity=problem.stages + 1)
    roomy = replace(problem, cluster=replace(problem.cluster, memory=1e18))
    problem, constraints = roomy, replace(demands(seed, problem), forbidden=frozenset())
    constrained = replace(problem, constraints=constraints)
    if not any(plan.check_valid(constrained)[0] for plan in every_plan(problem, anywhere=True)):
        return
    best = anytime_search(constrained, Deadline()).plan
    assert best is not None
    assert best.check_valid(constrained) == (True, "")


def test_devices_that_cannot_be_shared_out_are_refused_with_what_forbids_it(make_problem):
    problem = hybrid_problem(3, make_problem)
    cluster = Cluster(1, 6, 1e9, 1e9, 1e18)
    problem = replace(problem, cluster=cluster, stages=2, shardings=())
    with pytest.raises(BadInput, match=r"`forbidden='data'` and `stages=2`: 2 stage.* 6 devices"):
        search(problem, Constraints(forbidden=frozenset({"data"})))
    with pytest.raises(BadInput, match="`forbidden='data'` and `forbidden='operator'`"):
        search(problem, Constraints(forbidden=frozenset({"data", "operator"})))


def test_that_nothing_fits_is_said_whatever_would_have_been_of_interest():
    """Not that no plan is shorter than what would have been."""
    profile = Profile.create(C=np.ones(4), A=np.ones(4), W=np.full(4, 1e9))
    problem = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 1e9), 2, granularity=4)
    for upper_s in (np.inf, 10.0):
        result = anytime_search(problem, Deadline(), upper_s)
        assert (result.plan, result.bound_s, result.finished) == (None, np.inf, True)


def test_a_problem_that_fits_nowhere_is_refused_with_the_stage_and_what_it_would_need():
    """30 of 33 GB sit in instruction 1: σ·(30 + 1)/2 = 62 GB with one neighbour, on devices that share them."""
    profile = Profile.create(C=np.ones(4), A=np.ones(4), W=[1e9, 30e9, 1e9, 1e9])
    pipeline = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 50e9, name="tiny"), 2, granularity=4)
    rng = np.random.default_rng(0)
    halves = replace(random_sharding(rng, profile, 2), W=profile.W / 2)
    with pytest.raises(Infeasible, match=r"2 stages fits the 50 GB of cluster tiny.*stage 0 needs 62 GB.*0…1"):
        make_planner("exact").plan(replace(pipeline, shardings=(halves,)))
    roomy = replace(pipeline, cluster=replace(pipeline.cluster, memory=63e9))
    plan = make_planner("exact").plan(replace(roomy, shardings=(halves,)))
    assert plan.shardings[0] == 1


GROUPS = (((1, 2), (1, 2)), ((1, 2), (1, 4)), ((1, 4), (1, 2)), ((2, 2), (1, 2)), ((1, 3), (1, 3)))
"""Nodes and devices in each, of two groups."""


def on_mixed_nodes(problem: StagedProblem, seed: int) -> StagedProblem:
    """The problem on nodes of two kinds, which differ in speed, links and memory."""
    rng, c = np.random.default_rng(seed), problem.cluster
    shapes = [shape for shape in GROUPS if problem.stages <= sum(nodes * size for nodes, size in shape)]
    groups = [
        NodeGroup(
            nodes,
            size,
            intra=c.intra * 10 ** rng.uniform(-1, 0.5),
            inter=c.inter * 10 ** rng.uniform(-0.5, 0.5),
            memory=min(c.memory * rng.uniform(0.7, 2.0), 1e18),
            speed=float(rng.choice([0.4, 1.0, 1.0, 3.0])),
        )
        for nodes, size in shapes[rng.integers(len(shapes))]
    ]
    return replace(problem, cluster=Cluster.of_groups(groups, "mixed"))


@pytest.mark.parametrize("schedule", [None, "1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(15))
def test_no_plan_on_mixed_nodes_is_shorter_by_brute_force(seed, schedule, make_problem):
    """Stages may partition operators over devices of either kind, over both, and in either number of them."""
    problem = on_mixed_nodes(hybrid_problem(seed, make_problem, max_n=5, max_stages=3), seed)
    problem = replace(problem, schedule=schedule)
    costs = (step_cost(problem, plan) for plan in every_plan(problem))
    shortest = min((cost.step_s for cost in costs if cost.feasible), default=np.inf)
    outcome = anytime_search(problem, Deadline())
    assert outcome.finished
    assert (np.inf if outcome.cost is None else outcome.cost.step_s) == pytest.approx(shortest, rel=1e-9)


def with_a_clock(problem: StagedProblem) -> StagedProblem:
    """Replicas share what is sent, and gain less time than that; sums have the latencies of a step that runs."""
    meta = problem.profile.meta | {"microbatch_size": 8, "clock_s": [[1.0, 0.3, 0.9], [8.0, 1.0, 3.0]]}
    device = Device("some", {"float32": 1e12}, 1e12, 1e12)
    return replace(problem, profile=replace(problem.profile, meta=meta), schedule="1f1b", device=device)


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_shardings_is_shorter_where_kernels_saturate(seed, make_problem):
    problem = with_a_clock(hybrid_problem(seed, make_problem, max_n=5, max_stages=3))
    assert (problem.speeds[2:] < problem.shares[2:]).all()
    costs = (step_cost(problem, plan) for plan in every_plan(problem))
    shortest = min((cost.step_s for cost in costs if cost.feasible), default=np.inf)
    outcome = anytime_search(problem, Deadline())
    assert outcome.finished
    assert (np.inf if outcome.cost is None else outcome.cost.step_s) == pytest.approx(shortest, rel=1e-9)


@pytest.mark.parametrize("clock", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_stages_in_shardings_on_mixed_nodes_take_what_plans_cost(seed, clock, make_problem):
    problem = on_mixed_nodes(hybrid_problem(seed, make_problem, max_n=6), seed)
    problem = with_a_clock(problem) if clock else problem
    problem = replace(problem, schedule="1f1b")
    (stages, boundary), schedule, plans = stage_arrays(problem), graphs(problem), list(every_plan(problem))
    for plan in plans[:: max(len(plans) // 200, 1)]:
        cost, route = step_cost(problem, plan), np.zeros((3, problem.stages + 1), dtype=np.int64)
        route[0, 1:] = *np.searchsorted(boundary, np.array(plan.cuts, dtype=np.int64) + 1), stages.last
        route[1, 1:], route[2, :-1] = (*plan.device_cuts, stages.devices), plan.shardings
        search = search_from(stages, schedule, route)
        step_s = judged(search, 0, problem.stages, False, np.inf)
        assert step_s == pytest.approx(cost.step_s if cost.feasible else np.inf, rel=1e-9)


def test_devices_that_share_operators_wait_for_the_slowest_of_them() -> None:
    """Two devices of one kind and two that take twice as long, operators shared by pairs: by hand."""
    fast, slow = (NodeGroup(1, 2, intra, 10.0, memory, speed=s) for intra, memory, s in ((8.0, 90, 1), (4.0, 70, 0.5)))
    profile, zero = Profile.create(C=[3.0, 6.0], A=[8.0, 0.0], W=[4.0, 4.0], C_fwd=[1.0, 2.0]), np.zeros(2)
    halves = ShardedProfile(
        name="halves",
        degree=2,
        C=profile.C / 2,
        C_fwd=profile.C_fwd / 2,
        A=profile.A,
        boundary_bytes=profile.A / 2,
        W=profile.W / 2,
        stash=zero,
        reduced_fwd=np.array([16.0, 0.0]),
        reduced_bwd=zero,
        starts_fwd=zero,
        starts_bwd=zero,
        gradients=zero,
        frozen=zero,
    )
    cluster = Cluster.of_groups([fast, slow])
    problem = StagedProblem(profile, cluster, 1, 2, state_factor=4.0, granularity=2, shardings=(halves,))
    cost = plan_cost(problem, StagedPlan((), (), 2, "by hand", shardings=(1,)))
    assert cost.limit_bytes == [70]
    # Half of it is 4.5 s, 1.5 forward, for which the slow pair takes 3 s; then 16 bytes over its slow link; two pairs.
    assert cost.forward_s == pytest.approx([(2 * 1.5 + 16 * (2 * 0.5 / 4.0)) / 2])
    assert cost.backward_s == pytest.approx([2 * 3.0 / 2])
