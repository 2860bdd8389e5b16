"""Plans that cut at runs of boundaries against brute force: none of their members costs less, and none is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged import runs as of_runs
from automap_models.planners.staged.label_setting import Keep
from automap_models.planners.staged.plan_batch import PlanBatch, batch_costs
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.runs import runs_of
from automap_models.planners.staged.search import StagedSearch, anytime_search
from automap_models.planners.staged.stage_tables import StageTables
from automap_models.simulate.batch import simulate_batch
from automap_models.simulate.step import step_cost

MakeProblem = Callable[..., StagedProblem]
SCHEDULES = ("1f1b", "gpipe")


@pytest.fixture(autouse=True)
def wide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of half of a model, so that small ones have some."""
    monkeypatch.setattr(of_runs, "SHARE", 0.5)


def problem_of(make_problem: MakeProblem, seed: int, schedule: str) -> StagedProblem:
    """Two to four stages; some instructions take no time, and half of the problems have whole samples."""
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, max_n=9, max_devices=6, max_stages=4)
    size = {"microbatch_size": int(rng.integers(1, 12))} if seed % 2 else {}
    takes = rng.uniform(size=len(problem.profile)) < 0.7
    profile = replace(
        problem.profile,
        C=problem.profile.C * takes,
        C_fwd=problem.profile.C_fwd * takes,
        meta={**problem.profile.meta, **size},
    )
    if not takes.any():
        profile = problem.profile
    stages, micro_batches = max(problem.stages, 2), int(rng.integers(1, 20))
    return replace(problem, profile=profile, stages=stages, schedule=schedule, micro_batches=micro_batches)


def every_plan(problem: StagedProblem) -> Iterator[tuple[StagedPlan, StagedCost]]:
    """All valid plans on the grid that fit, with their costs."""
    grid, cuts = problem.grid, problem.stages - 1
    for points in combinations(grid.cut_points.tolist(), cuts):
        for devices in combinations(range(1, problem.cluster.devices), cuts):
            plan = StagedPlan(grid.to_instructions(points), devices, problem.micro_batches, "brute force")
            if plan.check_valid(problem)[0] and (cost := step_cost(problem, plan)).feasible:
                yield plan, cost


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(24))
def test_the_search_still_finds_the_shortest_step(seed: int, schedule: str, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, seed, schedule)
    shortest_s = min((cost.step_s for _, cost in every_plan(problem)), default=np.inf)
    search = anytime_search(problem, Deadline())
    assert search.finished
    assert (np.inf if search.cost is None else search.cost.step_s) == pytest.approx(shortest_s, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(100, 116))
def test_every_plan_is_a_member_of_one_that_costs_no_more(seed: int, schedule: str, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, seed, schedule)
    tables = tables_of(problem)
    runs = runs_of(tables, schedule)
    steps = {(plan.cuts, plan.device_cuts): cost.step_s for plan, cost in every_plan(problem)}
    if runs is None or not steps:
        return
    limit_s = 1.01 * max(steps.values())
    ranking = StagedSearch(problem, Deadline(), limit_s)._ranked(runs.tables, limit_s, Keep.ALL)
    costs = batch_costs(runs.tables, ranking.batch)
    least_s = np.maximum(ranking.least_s, costs.least_step_s(problem, any_order=True))
    seen = set()
    for row in range(len(ranking.batch)):
        one = ranking.batch.take(slice(row, row + 1))
        members = runs.expanded(one)
        assert len(members) <= int(runs.members(one)[0])
        for member in range(len(members)):
            plan = members.plan(tables, member, "member")
            key = (plan.cuts, plan.device_cuts)
            assert key not in seen
            seen.add(key)
            if key in steps:
                assert costs.feasible[row]
                assert least_s[row] <= steps[key] * (1 + 1e-9)
    assert seen >= steps.keys()


@pytest.mark.parametrize("seed", range(16))
def test_a_search_that_is_stopped_claims_no_more_than_is_true(
    seed: int, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops after none to three of the plans that cut at runs; those that it has looked at it knows."""
    problem = problem_of(make_problem, 200 + seed, "1f1b")
    shortest_s = min((cost.step_s for _, cost in every_plan(problem)), default=np.inf)
    if not np.isfinite(shortest_s) or runs_of(tables_of(problem), "1f1b") is None:
        return
    left, offer_batch = seed % 4, StagedSearch.offer_batch

    def offer(self: StagedSearch, tables: StageTables, batch: PlanBatch) -> None:
        nonlocal left
        if not left:
            raise OutOfTime()
        left -= 1
        offer_batch(self, tables, batch)

    monkeypatch.setattr(StagedSearch, "offer_batch", offer)
    monkeypatch.setattr("automap_models.planners.staged.search.AT_FIRST", 1)
    search = StagedSearch(problem, Deadline(), 1.5 * shortest_s)
    try:
        search.whole(tables_of(problem))
    except OutOfTime as stopped:
        assert min(stopped.bound_s, search.step_s) <= shortest_s * (1 + 1e-9)
    else:
        assert search.step_s == pytest.approx(shortest_s, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(20))
def test_without_waiting_for_either_message_a_step_is_no_longer_and_never_falls(seed: int, schedule: str) -> None:
    rng = np.random.default_rng(seed)
    stages, micro_batches = int(rng.integers(2, 7)), int(rng.integers(1, 30))
    forward_s, backward_s, transfer_s, reduce_s = (
        rng.lognormal(size=(50, n)) * rng.choice([0.2, 1.0, 3.0]) for n in (stages, stages, stages - 1, stages)
    )

    times = (forward_s, backward_s, transfer_s, reduce_s)

    def least(scale: tuple[np.ndarray, ...]) -> np.ndarray:
        forward, backward, transfer, reduced = (of * by for of, by in zip(times, scale, strict=True))
        ready = -backward[..., None]
        return simulate_batch(
            forward, backward, transfer, micro_batches, schedule, ready, reduced[..., None], any_order=True
        )

    ones = tuple(np.ones_like(of) for of in times)
    whole = simulate_batch(
        forward_s, backward_s, transfer_s, micro_batches, schedule, -backward_s[..., None], reduce_s[..., None]
    )
    own = least(ones)
    assert (own <= whole * (1 + 1e-12)).all()
    for _ in range(10):
        smaller = tuple(of * rng.choice([0.0, 0.5, 0.9, 1.0], size=of.shape) for of in ones)
        assert (least(smaller) <= own * (1 + 1e-12)).all()


def test_there_are_no_runs_where_what_holds_for_them_does_not_hold_for_members(make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, 1, "1f1b")
    tables = tables_of(problem)
    assert runs_of(tables, "1f1b") is not None
    assert runs_of(tables, None) is None
    assert runs_of(tables_of(replace(problem, micro_batches=16, stages=2)), "1f1b-deep") is None
    windows = tables.windows.copy()
    windows[1, 0] += 1
    assert runs_of(replace(tables, windows=windows), "1f1b") is None
    assert runs_of(replace(tables, shardings=tables.shardings * 2), "1f1b") is None
