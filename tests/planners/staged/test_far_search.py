"""Plans of hundreds of devices: valid routes, the shortest first, no longer than where they begin, near the optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.planners.staged.beam_kernel import route_length_s
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.far_search import DESCENTS, even_routes, far_routes
from automap_models.planners.staged.local_search import even_places, spread_out
from automap_models.planners.staged.plain_stages import PlainStages, plain_stages

DrawProblems = Callable[..., list[StagedProblem]]


def problem_of(seed: int, nodes: int = 64, stages: int = 8, memory: float = 1e18) -> StagedProblem:
    """200 instructions on nodes of eight devices."""
    rng = np.random.default_rng(seed)
    C, A, W = rng.uniform(size=(3, 200)) * [[1.0], [1e8], [1e8]]
    return StagedProblem(Profile.create(C, A, W, stash=A), Cluster(nodes, 8, 1e11, 1e9, memory), stages, 16)


def is_route(stages: PlainStages, route: np.ndarray) -> bool:
    """Whether it begins with nothing, ends with all, and every stage has boundaries and devices of its own."""
    ends = (route[:, 0] == 0).all() and route[:, -1].tolist() == [stages.C.size - 1, stages.devices]
    return bool(ends and (np.diff(route) > 0).all())


def cost_of(problem: StagedProblem, route: np.ndarray) -> StagedCost:
    """What a route costs, by the cost model."""
    boundary = plain_stages(problem)[1]
    cuts = tuple((boundary[route[0, 1:-1]] - 1).tolist())
    return plan_cost(problem, StagedPlan(cuts, tuple(route[1, 1:-1].tolist()), problem.micro_batches, "far", ()))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 10))
def test_places_are_spread_out(drawn: list[int], room: int) -> None:
    end = max(max(drawn, default=0), len(drawn)) + room + 1
    places = np.array([0, *sorted(drawn), end])
    apart = spread_out(places, end)
    assert apart[0] == 0
    assert apart[-1] == end
    assert (np.diff(apart) > 0).all()
    if (np.diff(places) > 0).all():
        assert (apart == places).all()


@pytest.mark.parametrize("seed", range(3))
def test_routes_to_begin_with_are_even_in_what_they_say(seed: int) -> None:
    """Points differ by one at most; parameters by no more than the largest point holds; devices go by computation."""
    stages, _ = plain_stages(problem_of(seed))
    computed, counted, weighed, held = routes = even_routes(stages)
    assert all(is_route(stages, route) for route in routes)
    assert (computed == even_places(stages.C, stages.stages, stages.devices)).all()
    assert np.ptp(np.diff(counted[0])) <= 1
    assert np.ptp(np.diff(stages.W[weighed[0]])) <= 2 * np.diff(stages.W).max()
    assert (held[1] == computed[1]).all()
    per_stage = stages.state_factor * stages.W + stages.held.mean() * stages.H / stages.parts[64]
    assert np.ptp(np.diff(per_stage[held[0]])) <= 2 * np.diff(per_stage).max()
    for route in (counted, weighed):
        deserved = np.diff(stages.C[route[0]]) / stages.C[-1] * stages.devices
        assert np.abs(np.diff(route[1]) - deserved).max() <= 1.0


def test_parameters_of_one_point_alone_still_make_a_route() -> None:
    C, W = np.ones(40), np.zeros(40)
    W[20] = 1e9
    cluster = Cluster(64, 8, 1e11, 1e9, 1e18)
    stages, _ = plain_stages(StagedProblem(Profile.create(C, np.ones(40), W), cluster, 8, 16))
    assert all(is_route(stages, route) for route in [*even_routes(stages), *far_routes(stages, 8)])


@pytest.mark.parametrize("seed", range(4))
def test_the_first_route_is_the_shortest_and_two_searches_are_equal(seed: int) -> None:
    stages, _ = plain_stages(problem_of(seed))
    routes = far_routes(stages, 8)
    lengths = [route_length_s(stages, route) for route in routes]
    assert all(is_route(stages, route) for route in routes)
    assert lengths == sorted(lengths)
    assert lengths[0] < min(route_length_s(stages, route) for route in even_routes(stages))
    assert (routes == far_routes(stages, 8)).all()


def test_more_reach_is_worth_its_time() -> None:
    """In the mean of several problems; without any, the first searches' ends stay as they are."""
    logs = []
    for seed in range(6):
        stages, _ = plain_stages(problem_of(seed, stages=12))
        none, some = far_routes(stages, 0), far_routes(stages, 8)
        assert 1 < len(none) <= DESCENTS
        logs.append([np.log(route_length_s(stages, routes[0])) for routes in (none, some)])
    gains = -np.diff(logs)[:, 0]
    assert (gains >= 0).all()
    assert gains.mean() > 0.01


def test_from_a_route_on_nothing_longer_comes_out() -> None:
    stages, _ = plain_stages(problem_of(5))
    begin = even_routes(stages)[2]
    routes = far_routes(stages, 8, begin)
    lengths = [route_length_s(stages, route) for route in (*routes, begin)]
    assert all(first <= second for first, second in pairwise(lengths))
    again = far_routes(stages, 8, routes[0])
    assert route_length_s(stages, again[0]) <= lengths[0]


def test_small_problems_end_near_the_optimum(random_problems: DrawProblems) -> None:
    """Against the exact search, which proves it; lengths are those of the cost model."""
    exact, ratios = ExactPlanner(), []
    for problem in random_problems(11, 40, granularity=64, stages=(2, 4), memory=(2.0, 20.0)):
        best = exact.solve(problem)
        if best.plan is None:
            continue
        stages = plain_stages(problem)[0]
        route = far_routes(stages, 8)[0]
        cost = cost_of(problem, route)
        assert np.isinf(route_length_s(stages, route)) or cost.length_s == pytest.approx(route_length_s(stages, route))
        ratios.append(cost.length_s / best.cost.length_s if cost.feasible else np.inf)
    fits = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    assert len(fits) > 0.9 * len(ratios) > 20
    assert fits.min() >= 1 - 1e-9
    assert fits.mean() < 1.02


def test_what_fits_counts() -> None:
    """A plan fits where that of even computation does not; where none can, this comes back."""
    whole = problem_of(2)
    routes = even_routes(plain_stages(whole)[0])
    tight = problem_of(2, memory=0.95 * cost_of(whole, routes[0]).memory_bytes.max())
    assert not cost_of(tight, routes[0]).feasible
    assert cost_of(tight, far_routes(plain_stages(tight)[0], 8)[0]).feasible
    little = plain_stages(problem_of(2, memory=1.0))[0]
    assert (far_routes(little, 8)[0] == routes[0]).all()


def test_where_hardly_anything_fits_memory_is_shared_evenly() -> None:
    """Very uneven computation, and memory for the fourth even route: of some problems no other leads to what fits."""
    rng, alone = np.random.default_rng(7), 0
    for _ in range(6):
        C, W, stash = (
            rng.lognormal(sigma=3.0, size=200),
            rng.uniform(size=200) * 1e6,
            rng.lognormal(sigma=0.5, size=200),
        )
        profile = Profile.create(C, 1e9 * stash, W, stash=1e9 * stash)
        roomy = StagedProblem(profile, Cluster(128, 8, 1e11, 1e9, 1e18), 32, 64)
        need = cost_of(roomy, even_routes(plain_stages(roomy)[0])[3]).memory_bytes.max()
        tight = replace(roomy, cluster=Cluster(128, 8, 1e11, 1e9, float(need)))
        stages = plain_stages(tight)[0]
        assert cost_of(tight, far_routes(stages, 8)[0]).feasible
        others = [far_routes(stages, 8, route)[0] for route in even_routes(stages)[:3]]
        alone += not any(cost_of(tight, route).feasible for route in others)
    assert alone >= 2
