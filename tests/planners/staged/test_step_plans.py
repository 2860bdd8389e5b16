"""Moves from plan to plan: judged as step_cost has it, never longer than their start, near the optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.staged.improve import Moves, graphs, near, plan_of
from automap_models.planners.staged.move_kernel import block, moved_on, search_from, step_of
from automap_models.planners.staged.search import TablesPlanner
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.planners.staged.stage_kernel import filled, least_step
from automap_models.simulate.plan_step import step_cost

DEVICE = Device("some", {"float32": 1e12}, 1e12, 4e8)

OBJECTIVES = (None, *WARM_UPS)
"""The length L, and the step under each schedule."""
DrawProblems = Callable[..., list[StagedProblem]]


def problem_of(seed: int, instructions: int, stages: int, micro_batches: int, schedule: str | None) -> StagedProblem:
    """A problem on nodes of two to four devices, some with parameters used twice, whole samples and a clock."""
    rng = np.random.default_rng(seed)
    C, A = rng.uniform(0.1, 1.0, instructions), rng.uniform(size=instructions) * 10 ** rng.uniform(7, 10)
    W = rng.integers(0, 2, instructions) * np.round(rng.uniform(size=instructions) * 10 ** rng.uniform(6, 8.5))
    H = rng.uniform(size=instructions) * 1e9
    shared = []
    if rng.integers(0, 2):
        uses = np.sort(rng.choice(instructions, 3, replace=False)).tolist()
        W[uses[0]] = 2.0**25 * rng.choice([0.25, 1.0, 3.0])
        shared.append(SharedParameter("tied", float(W[uses[0]]), tuple(uses)))
    meta: dict[str, object] = {"microbatch_size": int(rng.integers(1, 9))} if rng.integers(0, 2) else {}
    if meta and rng.integers(0, 2):
        meta |= {"clock_s": [[1.0, 0.3, 0.4], [16.0, 1.0, 3.0]], "dtype": "bfloat16", "parameter_dtype": "float32"}
    profile = Profile.create(C, A, W, C * rng.uniform(0.2, 0.5, instructions), H, meta=meta, shared_parameters=shared)
    cluster = Cluster(int(rng.integers(1, 4)), int(rng.integers(2, 5)), 1e11, 10 ** rng.uniform(9, 11), 4e10)
    device = DEVICE if rng.integers(0, 2) else None
    sizes = min(stages, cluster.devices), micro_batches
    return StagedProblem(profile, cluster, *sizes, schedule=schedule, device=device)


def route_plan(problem: StagedProblem, route: np.ndarray) -> StagedPlan:
    """A route of `stage_arrays` as a plan."""
    return plan_of(problem, route, stage_arrays(problem)[1], "moves")


def step_s(problem: StagedProblem, plan: StagedPlan) -> float:
    """The step; inf where the plan does not fit."""
    cost = step_cost(problem, plan)
    return cost.step_s if cost.feasible else np.inf


def random_route(problem: StagedProblem, rng: np.random.Generator) -> np.ndarray:
    """[3, S+1] where stages begin, and the end; and no shardings."""
    ends = len(stage_arrays(problem)[1]) - 1, problem.cluster.devices
    places = [np.sort(rng.choice(np.arange(1, end), problem.stages - 1, replace=False)) for end in ends]
    route = [[0, *inside, end] for inside, end in zip(places, ends, strict=True)]
    return np.array([*route, [0] * (problem.stages + 1)])


@given(st.integers(0, 10**6), st.integers(8, 40), st.integers(2, 5), st.integers(1, 40), st.sampled_from(OBJECTIVES))
def test_the_step_of_a_route_is_that_of_its_plan(seed: int, n: int, count: int, micro: int, name: str | None) -> None:
    """Whatever overlaps, is tied, padded, or shares a link; and no lower bound is longer."""
    problem = problem_of(seed, n, count, micro, name)
    stages, schedule = stage_arrays(problem)[0], graphs(problem)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        route = random_route(problem, rng)
        expected, own_s = step_s(problem, route_plan(problem, route)), step_of(stages, schedule, route)
        assert own_s == pytest.approx(expected, rel=1e-9)
        search = search_from(stages, schedule, route)
        if name and filled(stages, route, 0, problem.stages, True, np.inf, search.draft):
            assert least_step(stages, search.draft, problem.stages, 0.0) <= own_s * (1 + 1e-12)


@given(st.integers(0, 10**6), st.integers(8, 40), st.integers(2, 5), st.integers(1, 40), st.sampled_from(OBJECTIVES))
def test_moves_lead_to_the_step_that_they_say(seed: int, n: int, count: int, micro: int, name: str | None) -> None:
    """Which is shorter than that of the start, or nothing is; the search stops when it has taken what it may."""
    problem = problem_of(seed, n, count, micro, name)
    stages, schedule = stage_arrays(problem)[0], graphs(problem)
    start = random_route(problem, np.random.default_rng(seed))
    begun_s = step_of(stages, schedule, start)
    reached_s, route, _ = moved_on(stages, schedule, start, np.inf, near(8), near(4), np.inf)
    assert reached_s <= begun_s
    if np.isfinite(reached_s):
        plan = route_plan(problem, route)
        assert plan.check_valid(problem) == (True, "")
        assert step_s(problem, plan) == pytest.approx(reached_s, rel=1e-9)
        assert np.isinf(moved_on(stages, schedule, route, reached_s, near(8), near(4), np.inf)[0])
        assert moved_on(stages, schedule, start, np.inf, near(8), near(4), 1.0)[0] >= reached_s


def test_tiny_problems_are_planned_nearly_optimally() -> None:
    """Against all plans there are."""
    ratios = []
    for seed in range(16):
        problem = problem_of(seed, 8, 3, 6, OBJECTIVES[seed % len(OBJECTIVES)])
        ends = len(problem.profile), problem.cluster.devices
        every = [list(combinations(range(1, end), problem.stages - 1)) for end in ends]
        plans = [
            StagedPlan(tuple(k - 1 for k in cuts), devices, problem.micro_batches, "all")
            for cuts in every[0]
            for devices in every[1]
        ]
        best_s = min(step_s(problem, plan) for plan in plans)
        if np.isfinite(best_s):
            ratios.append(TablesPlanner().solve(problem).cost.step_s / best_s)
    assert len(ratios) >= 10
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.01


@given(st.integers(0, 10**6), st.integers(8, 40), st.integers(2, 5), st.integers(1, 20), st.sampled_from(OBJECTIVES))
def test_moves_from_further_plans_end_nowhere_longer(
    seed: int, n: int, count: int, micro: int, name: str | None
) -> None:
    """Not than these plans are, wherever on the grid they cut."""
    rng, drawn = np.random.default_rng(seed), problem_of(seed, n, count, micro, name)
    for problem in (drawn, replace(drawn, granularity=7)):
        points, devices = problem.grid.cut_points, problem.cluster.devices
        if problem.stages < 2 or len(points) < problem.stages - 1:
            continue
        beside = []
        for _ in range(3):
            cuts = problem.grid.to_instructions(np.sort(rng.choice(points, problem.stages - 1, replace=False)))
            begins = np.sort(rng.choice(np.arange(1, devices), problem.stages - 1, replace=False))
            beside.append(StagedPlan(cuts, tuple(begins.tolist()), micro, "any"))
        shortest_s = min(step_s(problem, plan) for plan in beside)
        moved_s, _ = Moves(problem).improved(beside, equal=False, count=len(beside))
        assert moved_s <= shortest_s * (1 + 1e-9)


@pytest.mark.parametrize("schedule", OBJECTIVES)
def test_plans_by_tables_are_valid_and_the_same_again(random_problems: DrawProblems, schedule: str | None) -> None:
    """And their work is counted."""
    for problem in random_problems(5, 12, granularity=64, stages=(2, 5), memory=(4.0, 20.0)):
        scheduled, before_s = replace(problem, schedule=schedule), effort.counted_s()
        plan = TablesPlanner().solve(scheduled).plan
        if plan is None:
            continue
        assert plan.check_valid(scheduled) == (True, "")
        assert effort.counted_s() > before_s
        assert plan == TablesPlanner().solve(scheduled).plan
        assert plan.planner == "tables"


def test_blocks_are_all_rows_of_neighbouring_stages() -> None:
    blocks = [block(index, 5) for index in range(10)]
    assert blocks[:4] == [(s, s + 1) for s in range(1, 5)]
    assert sorted(blocks) == sorted((low, high) for low in range(1, 5) for high in range(low + 1, 6))
