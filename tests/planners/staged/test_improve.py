"""Moves as the portfolio uses them: they price as the simulator does, and never make a plan longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.improve import Moves
from automap_models.simulate.plan_step import step_cost

SCHEDULES = ("1f1b", "gpipe", "1f1b-deep")


def problem_of(seed: int, min_stage: float = 0.0) -> StagedProblem:
    """Eight to forty instructions, some of them without work; memory binds in every other problem."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 41))
    C = rng.uniform(0.1, 1.0, n) * (rng.uniform(size=n) > 0.2) + 1e-3
    A, W = rng.uniform(size=n) * 10 ** rng.uniform(6, 9), rng.integers(0, 2, n) * rng.uniform(size=n) * 1e8
    meta = {"microbatch_size": int(rng.integers(1, 9))} if rng.integers(2) else {}
    profile = Profile.create(C, A, W, C * rng.uniform(0.2, 0.5, n), rng.uniform(size=n) * 1e8, meta=meta)
    cluster = Cluster(int(rng.integers(1, 4)), int(rng.integers(2, 5)), 1e11, 10 ** rng.uniform(9, 11), 1e18)
    stages = int(rng.integers(2, min(5, cluster.devices) + 1))
    if rng.integers(2):
        memory = (4.0 * W.sum() + 3.0 * profile.stash.sum()) / stages * rng.uniform(1.0, 3.0)
        cluster = replace(cluster, memory=float(memory))
    schedule, constraints = str(rng.choice(SCHEDULES)), Constraints(min_stage=min_stage)
    return StagedProblem(profile, cluster, stages, int(rng.integers(1, 17)), schedule=schedule, constraints=constraints)


def random_plan(problem: StagedProblem, places: np.ndarray, rng: np.random.Generator) -> StagedPlan:
    cuts = np.sort(rng.choice(places, problem.stages - 1, replace=False)).tolist()
    devices = np.sort(rng.choice(np.arange(1, problem.cluster.devices), problem.stages - 1, replace=False)).tolist()
    return StagedPlan(tuple(cuts), tuple(devices), problem.micro_batches, "drawn")


def step_s(problem: StagedProblem, plan: StagedPlan) -> float:
    """By the simulator; inf where the plan does not fit, or breaks a constraint."""
    cost = step_cost(problem, plan)
    return cost.step_s if cost.feasible and plan.check_valid(problem)[0] else np.inf


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.25]), st.booleans())
def test_the_step_of_a_plan_is_the_simulated_one(seed: int, min_stage: float, everywhere: bool) -> None:
    """inf where it does not fit, or where a stage holds no work; at single instructions as well as on the grid."""
    problem, rng = problem_of(seed, min_stage), np.random.default_rng(seed)
    every = np.arange(len(problem.profile) - 1)
    moves = Moves(problem, every if everywhere else None)
    for _ in range(4):
        plan = random_plan(problem, np.array(moves.cuts), rng)
        assert moves.step_s(plan) == pytest.approx(step_s(problem, plan), rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.25]), st.booleans())
def test_moves_never_make_a_plan_longer_and_say_what_its_step_is(seed: int, min_stage: float, equal: bool) -> None:
    problem, rng = problem_of(seed, min_stage), np.random.default_rng(seed)
    moves = Moves(problem)
    starts = [random_plan(problem, np.array(moves.cuts), rng) for _ in range(3)]
    reached_s, plan = moves.improved(starts, equal=equal)
    assert reached_s <= min(step_s(problem, start) for start in starts) * (1 + 1e-9)
    assert (plan is None) == np.isinf(reached_s)
    if plan is not None:
        assert step_s(problem, plan) == pytest.approx(reached_s, rel=1e-9)
        assert plan.coarse_cuts == problem.grid.to_points(plan.cuts)
        if equal:
            assert plan.device_cuts in {start.device_cuts for start in starts}


@given(st.integers(0, 10**6))
def test_constructed_plans_hold_work_and_fit(seed: int) -> None:
    problem = problem_of(seed, 0.25)
    moves = Moves(problem)
    for plan in moves.constructed():
        assert np.isfinite(step_s(problem, plan))
        assert set(plan.cuts) <= set(moves.cuts)


def test_a_cut_between_places_is_taken_to_the_one_behind_it_and_no_stage_is_left_empty() -> None:
    problem = replace(problem_of(1), stages=3, cluster=Cluster(1, 4, 1e11, 1e11, 1e18))
    moves = Moves(problem, np.array([2, 4, 6]))
    devices = (1, 2)

    def at(*cuts: int) -> float:
        return moves.step_s(StagedPlan(cuts, devices, problem.micro_batches, "drawn"))

    assert at(1, 5) == at(2, 6)
    assert at(1, 2) == at(2, 4)  # both go to 2: the second stage gets the next place
    assert at(5, 7) == at(4, 6)  # and none is left behind the last place: the stages before make room
