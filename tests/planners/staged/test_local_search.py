"""The beam search and the local search: never worse than what they begin with, and optimal where they should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import Deadline
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.beam_search import Places, Route, route_of, shortest_through
from automap_models.planners.staged.exact import certify
from automap_models.planners.staged.local_search import far_offsets, local_search, powers
from automap_models.planners.staged.refine import refine
from automap_models.planners.staged.search import exact_search, is_large
from automap_models.planners.staged.stage_tables import StageTables, stage_tables

MakeProblem = Callable[..., StagedProblem]
Solver = Callable[[StagedProblem], float]


def length_of(problem: StagedProblem, tables: StageTables, route: Route) -> float:
    """L by the cost model of a route that must be a valid plan that fits."""
    cuts, device_cuts = route.cuts(tables)
    points = problem.grid.to_points(cuts)
    plan = StagedPlan(cuts, device_cuts, problem.micro_batches, "test", points)
    assert plan.check_valid(problem) == (True, "")
    cost = plan_cost(problem, plan)
    assert cost.feasible
    return cost.length_s


def everywhere(tables: StageTables) -> list[Places]:
    """Every place where a stage may begin."""
    places = []
    for s in range(1, tables.stages):
        k, d = np.arange(s, tables.end - tables.stages + s + 1), np.arange(s, tables.replicas_in_all)
        places.append((np.repeat(d, k.size), np.tile(k, d.size)))
    return places


def uniform_start(problem: StagedProblem, tables: StageTables) -> Route | None:
    """Uniform cuts; None where they do not fit."""
    try:
        plan = UniformPlanner().plan(problem)
    except Infeasible:
        return None
    return route_of(tables, plan, plan_cost(problem, plan).length_s)


def large_problem(seed: int, *, stages: int = 8, devices: int = 64) -> StagedProblem:
    """A problem that counts as large, of 40 instructions."""
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(-3, 0, 2)
    C, A, W = rng.uniform(size=40), rng.uniform(size=40) * scale[0] * 1e9, rng.uniform(size=40) * scale[1] * 1e9
    cluster = Cluster(devices // 8, 8, 1e11, 1e9, 1e18)
    return StagedProblem(Profile.create(C, A, W), cluster, stages, int(2 ** rng.uniform(0, 7)))


def test_of_two_stages_the_beam_search_finds_the_optimum_among_all_plans(
    make_problem: MakeProblem, brute_force: Solver
) -> None:
    """With two stages there is one suffix for each place: the beam loses nothing that counts."""
    checked = 0
    for seed in range(80):
        problem = make_problem(seed)
        if problem.stages != 2:
            continue
        tables, best_s = stage_tables(problem), brute_force(problem)
        start = uniform_start(problem, tables)
        if start is None:
            continue
        route = shortest_through(tables, start, everywhere(tables))
        if route is None:
            assert start.length_s == pytest.approx(best_s, rel=1e-9)
        else:
            assert length_of(problem, tables, route) == pytest.approx(best_s, rel=1e-9)
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("seed", range(20))
def test_what_the_beam_search_finds_is_as_long_as_it_says(seed: int, make_problem: MakeProblem) -> None:
    """And fits, and is shorter than the plan known, though no shorter than the optimum."""
    problem = make_problem(seed, max_n=20, max_devices=8, max_stages=5)
    tables = stage_tables(problem)
    start = uniform_start(problem, tables)
    if problem.stages == 1 or start is None:
        return
    route, best = shortest_through(tables, start, everywhere(tables)), exact_search(problem)
    assert best is not None
    best_s = plan_cost(problem, best).length_s
    if route is not None:
        length_s = length_of(problem, tables, route)
        assert route.length_s == pytest.approx(length_s, rel=1e-9)
        assert best_s * (1 - 1e-9) <= length_s < start.length_s


def test_the_plan_known_is_not_lost_among_its_own_places(make_problem: MakeProblem) -> None:
    """Were it said to be a little longer than it is, it would be found again."""
    for seed in range(40):
        problem = make_problem(seed, max_n=20, max_devices=8, max_stages=5)
        tables = stage_tables(problem)
        start = uniform_start(problem, tables)
        if problem.stages == 1 or start is None:
            continue
        own = [(start.device[s : s + 1], start.boundary[s : s + 1]) for s in range(1, problem.stages)]
        assert shortest_through(tables, start, own) is None
        route = shortest_through(tables, replace(start, length_s=1.001 * start.length_s), own)
        assert route is not None
        assert route.length_s == pytest.approx(start.length_s, rel=1e-12)


def test_small_problems_are_nearly_always_solved(make_problem: MakeProblem) -> None:
    """Against the optimum of the exact search, from uniform cuts; none may be far off."""
    ratios = []
    for seed in range(60):
        problem = make_problem(seed, max_n=20, max_devices=8, max_stages=5)
        tables = stage_tables(problem)
        start = uniform_start(problem, tables)
        if problem.stages == 1 or start is None:
            continue
        route, best = local_search(tables, problem.cluster, start, Deadline()), exact_search(problem)
        assert best is not None
        assert route.length_s <= start.length_s
        ratios.append(length_of(problem, tables, route) / plan_cost(problem, best).length_s)
    assert len(ratios) >= 20
    assert np.mean(np.array(ratios) < 1 + 1e-9) >= 0.95
    assert max(ratios) < 1.05


@pytest.mark.parametrize("devices_per_node", [1, 3, 6])
def test_nodes_of_any_size_are_searched(devices_per_node: int) -> None:
    problem = replace(large_problem(1), cluster=Cluster(12 // devices_per_node, devices_per_node, 1e11, 1e9, 1e18))
    tables = stage_tables(problem)
    start = uniform_start(problem, tables)
    assert start is not None
    route = local_search(tables, problem.cluster, start, Deadline())
    assert length_of(problem, tables, route) <= start.length_s


def test_the_same_seed_finds_the_same_plan() -> None:
    problem = large_problem(2)
    tables = stage_tables(problem)
    start = uniform_start(problem, tables)
    assert start is not None
    first, second = (local_search(tables, problem.cluster, start, Deadline(), seed=7) for _ in range(2))
    assert first.cuts(tables) == second.cuts(tables)


def test_without_time_the_start_comes_back() -> None:
    problem = large_problem(3)
    tables = stage_tables(problem)
    start = uniform_start(problem, tables)
    assert start is not None
    assert local_search(tables, problem.cluster, start, Deadline(0.0)) is start


@pytest.mark.parametrize("seed", range(3))
def test_a_large_problem_is_corrected_even_if_the_proof_has_no_time_to_end(seed: int) -> None:
    """The plan that a stopped search found was once thrown away: only refinement made large plans shorter."""
    problem = large_problem(seed)
    assert is_large(problem)
    uniform = UniformPlanner().plan(problem)
    uniform_s = plan_cost(problem, uniform).length_s
    certificate = certify(problem, uniform, Deadline(0.5))
    assert certificate.plan is not None
    corrected_s = plan_cost(problem, certificate.plan).length_s
    assert certificate.bound.value <= corrected_s < uniform_s
    assert certificate.plan.check_valid(problem) == (True, "")
    refined = refine(problem, certificate.plan, Deadline(0.1))
    assert plan_cost(problem, refined).length_s <= corrected_s


def test_a_plan_that_is_not_proven_is_refined_far_from_where_it_is() -> None:
    """Two heavy instructions on one of two devices: the cut between them is 40 instructions away."""
    C = np.full(100, 1e-3)
    C[50], C[51] = 1.0, 1.0
    profile = Profile.create(C, A=np.ones(100), W=np.ones(100))
    problem = StagedProblem(profile, Cluster(1, 2, 1e9, 1e9, 1e18), 2, granularity=10)
    start = StagedPlan((9,), (1,), problem.micro_batches, "test", (0,))
    best = refine(problem, start, Deadline())
    assert best.cuts == (50,)


def test_offsets_are_all_powers_in_both_directions() -> None:
    assert powers(3, 26).tolist() == [-9, -3, -1, 0, 1, 3, 9]
    assert powers(3, 27).tolist() == [-27, -9, -3, -1, 0, 1, 3, 9, 27]
    assert powers(2, 0).tolist() == [-1, 0, 1]
    by_boundary, by_device = far_offsets(128, 16)
    assert by_boundary.tolist()[-6:] == [1, 2, 4, 8, 16, 32]
    assert by_device.tolist() == [-4, -2, -1, 0, 1, 2, 4]
