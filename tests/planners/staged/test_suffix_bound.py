"""The bound by suffixes against brute force, the exact planner, and problems whose optimum has a closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.planners.base import Deadline
from automap_models.planners.staged import search, suffix_bound
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.search import anytime_search
from automap_models.planners.staged.suffix_bound import suffix_bound_s

pytest.importorskip("numba")  # without it there is no such bound

MakeProblem = Callable[..., StagedProblem]


def problem_of(make_problem: MakeProblem, seed: int) -> StagedProblem:
    """Two to four stages; half of the problems have whole samples."""
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, max_n=8, max_devices=6, max_stages=4)
    size = {"microbatch_size": int(rng.integers(1, 12))} if seed % 2 else {}
    return replace(
        problem,
        profile=replace(problem.profile, meta={**problem.profile.meta, **size}),
        stages=max(problem.stages, 2),
        micro_batches=int(rng.integers(1, 20)),
    )


def every_cost(problem: StagedProblem) -> Iterator[StagedCost]:
    """The costs of all valid plans on the grid that fit."""
    grid, cuts = problem.grid, problem.stages - 1
    for points in combinations(grid.cut_points.tolist(), cuts):
        for devices in combinations(range(1, problem.cluster.devices), cuts):
            plan = StagedPlan(grid.to_instructions(points), devices, problem.micro_batches, "brute force")
            if plan.check_valid(problem)[0] and (cost := plan_cost(problem, plan)).feasible:
                yield cost


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_falls_below_it_whatever_the_limit(seed: int, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, seed)
    tables = tables_of(problem)
    best_s = min((cost.length_s for cost in every_cost(problem)), default=np.inf)
    for limit_s in (np.inf, *(share * best_s for share in (0.5, 0.9, 0.999, 1.0, 1.01, 1.5) if np.isfinite(best_s))):
        bound_s = suffix_bound_s(tables, limit_s, Deadline())
        assert 0.0 < bound_s <= min(limit_s, best_s)


@pytest.mark.parametrize("seed", range(5, 25))
def test_a_limit_hardly_above_the_optimum_is_no_bound(seed: int, make_problem: MakeProblem) -> None:
    """Numbers kept in float32 seemed longer than such a limit, which was returned: 1e-9 to 1e-7 above the optimum."""
    problem = problem_of(make_problem, seed)
    best_s = min((cost.length_s for cost in every_cost(problem)), default=np.inf)
    for above in (1e-9, 3e-9, 1e-8, 3e-8, 1e-7):
        bound_s = suffix_bound_s(tables_of(problem), best_s * (1 + above), Deadline())
        assert bound_s <= best_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_without_communication_it_is_the_shortest_length(seed: int, make_problem: MakeProblem) -> None:
    problem = problem_of(make_problem, 2 * seed)
    nothing = np.zeros(len(problem.profile))
    profile = replace(problem.profile, A=nothing, W=nothing)
    problem = replace(problem, profile=profile)
    best_s = min((cost.length_s for cost in every_cost(problem)), default=np.inf)
    assert suffix_bound_s(tables_of(problem), np.inf, Deadline()) == pytest.approx(best_s, rel=1e-5)


def chain(stages: int, nodes: int, micro_batches: int) -> StagedProblem:
    """16 instructions of 1, 2, 3 … sixteenths of a second that send next to nothing, on nodes of 8 devices."""
    profile = Profile.create(np.arange(1, 17) / 16, A=np.full(16, 1e-3), W=np.full(16, 1e-3))
    return StagedProblem(profile, Cluster(nodes, 8, 130e9, 3.125e9, 32e9, "chain"), stages, micro_batches)


def shortest_span_s(problem: StagedProblem) -> float:
    """T where nothing is sent: u of the first stage, and what follows, or M times u, over all cuts and devices."""
    C, devices, micro = problem.profile.C, problem.cluster.devices, problem.micro_batches
    before = np.concatenate(([0.0], np.cumsum(C)))

    @cache
    def rest_s(stages: int, i: int, a: int) -> float:
        if stages == 1:
            return float(micro * (before[-1] - before[i]) / (devices - a))
        return min(
            max(micro * u, u + rest_s(stages - 1, k, q))
            for k in range(i + 1, len(C) - stages + 2)
            for q in range(a + 1, devices - stages + 2)
            for u in (float(before[k] - before[i]) / (q - a),)
        )

    return rest_s(problem.stages, 0, 0)


def test_a_large_problem_is_proven_where_the_bound_reaches_the_plan() -> None:
    problem = chain(stages=8, nodes=5, micro_batches=12)
    assert search.is_large(problem)
    result = anytime_search(problem, Deadline())
    assert result.finished
    assert result.cost is not None
    assert result.cost.length_s == pytest.approx(shortest_span_s(problem), rel=1e-6)
    assert suffix_bound_s(tables_of(problem), np.inf, Deadline()) == pytest.approx(result.cost.length_s, rel=1e-4)


def test_there_is_none_without_time_and_for_tables_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(chain(stages=4, nodes=2, micro_batches=8))
    assert suffix_bound_s(tables, 10.0, Deadline()) > 0.0
    assert suffix_bound_s(tables, 10.0, Deadline(0.0)) == 0.0
    monkeypatch.setattr(suffix_bound, "MOST_BYTES", 1000)
    assert suffix_bound_s(tables, 10.0, Deadline()) == 0.0
