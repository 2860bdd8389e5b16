"""Clusters of several kinds of nodes: equal groups are the uniform cluster, and every bound holds where they differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.planners.base import NEVER
from automap_models.planners.staged.feasibility import plans_fit
from automap_models.planners.staged.search import ExactPlanner
from automap_models.planners.staged.stage_arrays import RING, stage_arrays
from automap_models.planners.staged.stage_kernel import moved_s
from automap_models.planners.staged.step_bounds import least_step_s
from automap_models.simulate.plan_step import step_cost

SCHEDULES = (None, "1f1b", "gpipe", "1f1b-deep")
TIMES = ("forward_s", "backward_s", "transfer_s", "all_reduce_s")


def random_groups(rng: np.random.Generator, most_devices: int) -> tuple[NodeGroup, ...]:
    """Two or three groups that differ in everything; now and then two of them are alike."""
    while True:
        groups = tuple(
            NodeGroup(
                nodes=int(rng.integers(1, 3)),
                devices_per_node=int(rng.integers(1, 4)),
                intra=float(10 ** rng.uniform(8.5, 11)),
                inter=float(10 ** rng.uniform(8.5, 10)),
                memory=float(rng.choice([0.5, 1.0, 2.0, 1e6])),
                speed=float(rng.choice([0.4, 0.7, 1.0, 1.0, 2.5])),
            )
            for _ in range(int(rng.integers(2, 4)))
        )
        if sum(group.nodes * group.devices_per_node for group in groups) <= most_devices:
            return groups if rng.uniform() < 0.8 else (*groups[:1], *groups[:1])


def random_problem(seed: int, schedule: str | None, *, n: int = 7, most_devices: int = 6) -> StagedProblem:
    """A small problem on a mixed cluster in which compute, links, all-reduces, tied weights or memory may decide."""
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, most_devices)
    n = int(rng.integers(3, n + 1))
    C, micro_batches = rng.uniform(0.1, 1.0, n), int(rng.integers(1, 7))
    A, W = (rng.uniform(size=n) * 10 ** rng.uniform(6, 9) for _ in range(2))
    stash = rng.uniform(size=n) * 10 ** rng.uniform(6, 9)
    shared = (SharedParameter("table", float(W[0]), (0, n - 1)),) if rng.uniform() < 0.3 and W[0] else ()
    meta = {"microbatch_size": int(rng.integers(1, 7))} if rng.uniform() < 0.5 else {}
    profile = Profile.create(C, A, W, C * rng.uniform(0.2, 0.5), stash, meta=meta, shared_parameters=shared)
    unit = float((4.0 * W.sum() + stash.sum()) / 2)
    cluster = Cluster.of_groups([replace(group, memory=group.memory * unit) for group in groups], "mixed")
    stages = int(rng.integers(1, min(4, cluster.devices, n) + 1))
    return StagedProblem(profile, cluster, stages, micro_batches, granularity=n, schedule=schedule)


def every_plan(problem: StagedProblem) -> list[StagedPlan]:
    cuts = combinations(range(len(problem.profile) - 1), problem.stages - 1)
    devices = list(combinations(range(1, problem.cluster.devices), problem.stages - 1))
    return [StagedPlan(k, d, problem.micro_batches, "brute force") for k in cuts for d in devices]


def cheapest_s(problem: StagedProblem) -> float:
    costs = (step_cost(problem, plan) for plan in every_plan(problem))
    return min((cost.step_s for cost in costs if cost.feasible), default=np.inf)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(20))
def test_the_exact_search_finds_what_brute_force_over_all_plans_finds(seed, schedule):
    problem = random_problem(seed, schedule)
    best_s = cheapest_s(problem)
    result = ExactPlanner().solve(problem)
    if np.isinf(best_s):
        assert result.status == "infeasible"
    else:
        assert result.status == "optimal"
        assert result.cost.step_s == pytest.approx(best_s, rel=1e-9)


def test_the_random_problems_are_of_every_kind():
    """Some fit nothing, some have idle devices, unequal nodes, several speeds, memories that decide, tied weights."""
    problems = [random_problem(seed, None) for seed in range(20)]
    plans = [(problem, plan) for problem in problems for plan in every_plan(problem)[::7]]
    assert any(np.isinf(cheapest_s(problem)) for problem in problems)
    assert any(problem.idle_positions(plan) for problem, plan in plans)
    assert any(np.unique(np.diff(problem.cluster.node_bounds)).size > 1 for problem in problems)
    assert any(problem.cluster.slowdown is not None for problem in problems)
    assert any(np.unique(plan_cost(problem, plan).limit_bytes).size > 1 for problem, plan in plans)
    assert any(problem.profile.shared_parameters for problem in problems)
    assert any(problem.profile.meta for problem in problems)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(seed=st.integers(0, 2**32), share=st.floats(0.0, 1.0))
def test_no_lower_bound_is_above_the_cost_of_any_plan(schedule, seed, share):
    problem = random_problem(seed, schedule)
    fitting = [(plan, step_cost(problem, plan)) for plan in every_plan(problem)]
    fitting = [(plan, cost) for plan, cost in fitting if cost.feasible]
    if not fitting:
        assert ExactPlanner().solve(problem).status == "infeasible"
        return
    _, cost = fitting[int(share * (len(fitting) - 1))]
    assert least_step_s(problem, cost.step_s * (1 + 1e-6), NEVER) <= cost.step_s * (1 + 1e-9)
    assert plans_fit(stage_arrays(problem)[0])


@given(seed=st.integers(0, 2**32))
def test_the_arrays_hold_what_the_collectives_say(seed):
    problem = random_problem(seed, None, most_devices=7)
    stages, _ = stage_arrays(problem)
    for a, q in combinations(range(stages.devices + 1), 2):
        expected = all_reduce_s_per_byte(problem.links, a, q)
        assert stages.speeds[0, a, q, RING] == pytest.approx(expected, rel=1e-15)
        for e in range(q + 1, stages.devices + 1):
            assert moved_s(stages, 1.0, a, q, e) == pytest.approx(
                transfer_s_per_byte(problem.links, a, q, e), rel=1e-14
            )


def split(problem: StagedProblem, parts: list[int]) -> StagedProblem:
    """The problem on a mixed cluster of equal groups of so many nodes."""
    c = problem.cluster
    groups = [NodeGroup(nodes, c.devices_per_node, c.intra, c.inter, c.memory) for nodes in parts]
    return replace(problem, cluster=Cluster.of_groups(groups, c.name))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(seed=st.integers(0, 2**32), first=st.integers(1, 3), at=st.floats(0.0, 1.0))
def test_equal_groups_cost_exactly_what_the_uniform_cluster_costs(schedule, seed, first, at, make_problem):
    uniform = replace(make_problem(seed), schedule=schedule)
    nodes = uniform.cluster.nodes
    mixed = split(uniform, [min(first, nodes), *([nodes - first] if first < nodes else [])])
    plans = every_plan(uniform)
    plan = plans[int(at * (len(plans) - 1))]
    one, other = step_cost(uniform, plan), step_cost(mixed, plan)
    for field in (*TIMES, "exposed_s", "update_s", "memory_bytes", "limit_bytes"):
        assert (getattr(one, field) == getattr(other, field)).all()
    assert (one.length_s, one.step_s, one.tied) == (other.length_s, other.step_s, other.tied)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_equal_groups_are_planned_exactly_as_the_uniform_cluster_is(seed, schedule, make_problem):
    uniform = replace(make_problem(seed), schedule=schedule)
    mixed = split(uniform, [1] * uniform.cluster.nodes)
    one, other = (ExactPlanner().solve(problem) for problem in (uniform, mixed))
    assert (one.plan, one.bound, one.status) == (other.plan, other.bound, other.status)


@given(
    seed=st.integers(0, 2**32),
    at=st.floats(0.0, 1.0),
    group=st.integers(0, 2),
    faster=st.floats(1.0, 8.0),
    key=st.sampled_from(["speed", "intra", "inter", "memory"]),
)
def test_a_faster_group_makes_nothing_in_a_fixed_plan_slower(seed, at, group, faster, key):
    """Every time of a stage or a link, and the span. (L also counts what hides an all-reduce: that may get shorter.)

    Samples are divisible: with whole ones a faster device may begin to work, and take part in larger slices.
    """
    problem = random_problem(seed, None)
    groups = list(problem.cluster.groups)
    chosen = group % len(groups)
    groups[chosen] = replace(groups[chosen], **{key: getattr(groups[chosen], key) * faster})
    plans = every_plan(problem)
    plan = plans[int(at * (len(plans) - 1))]
    before, after = (
        plan_cost(replace(problem, cluster=cluster), plan)
        for cluster in (problem.cluster, Cluster.of_groups(groups, "faster"))
    )
    for field in TIMES:
        assert (getattr(after, field) <= getattr(before, field) * (1 + 1e-12)).all()
    assert after.span_s <= before.span_s * (1 + 1e-12)
    if key == "memory":
        assert after.feasible >= before.feasible


def test_a_stage_waits_for_its_slowest_device_and_holds_what_its_smallest_can():
    """Two devices twice as fast as the profile's and two as fast: by hand."""
    fast = NodeGroup(1, 2, 100.0, 10.0, 900.0, speed=2.0)
    slow = NodeGroup(1, 2, 50.0, 5.0, 300.0, speed=1.0)
    profile = Profile.create(C=[3.0, 3.0], A=[30.0, 0.0], W=[60.0, 60.0], C_fwd=[1.0, 1.0])
    problem = StagedProblem(profile, Cluster.of_groups([fast, slow]), 2, 4, state_factor=4.0, granularity=2)

    def cost(device_cut: int) -> StagedCost:
        return plan_cost(problem, StagedPlan((0,), (device_cut,), 4, "by hand"))

    even = cost(2)
    assert even.forward_s == pytest.approx([1 / 4, 1 / 2])
    assert even.backward_s == pytest.approx([2 / 4, 2 / 2])
    assert even.transfer_s == pytest.approx([30 / 5])  # the slower of the two nodes' links
    assert even.all_reduce_s == pytest.approx([60 * (2 * 0.5 / 100), 60 * (2 * 0.5 / 50)])
    assert even.limit_bytes.tolist() == [900.0, 300.0]
    assert even.feasible
    across = cost(1)  # one fast device; another with two slow ones, which do as much as three slow ones
    assert across.forward_s == pytest.approx([1 / 2, 1 / 3])
    assert across.transfer_s == pytest.approx([30 * max((2 / 3) / 5, (2 / 3) / 10, (1 / 3) / 100)])
    assert across.all_reduce_s[1] == pytest.approx(60 * (2 * 0.5 / 50 + 2 * 0.5 / 5))
    assert across.limit_bytes.tolist() == [900.0, 300.0]
