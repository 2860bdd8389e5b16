"""Plans by compiled tables: valid, as long as they say, near the optimum, and only as good as the memory allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.local_search import even_places
from automap_models.planners.staged.plain_stages import plain_of, plain_stages
from automap_models.planners.staged.stage_arrays import C
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.planners.staged.table_kernel import chosen_points, first_least, plans_by_tables
from automap_models.planners.staged.table_plans import LOOKS, best_routes, scaled, shortened, table_plans

LAW = settings(deadline=None)
DrawProblems = Callable[..., list[StagedProblem]]


def length_of(problem: StagedProblem, plan: StagedPlan) -> float:
    """L; inf where it does not fit."""
    assert plan.check_valid(problem) == (True, "")
    cost = plan_cost(problem, plan)
    return cost.length_s if cost.feasible else np.inf


def huge(seed: int, devices: int, stages: int, memory: float = 1e18) -> StagedProblem:
    """A problem of 200 instructions on nodes of eight devices."""
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(-3, 0, 2)
    C, A, W = rng.uniform(size=200), rng.uniform(size=200) * scale[0] * 1e9, rng.uniform(size=200) * scale[1] * 1e9
    cluster = Cluster(devices // 8, 8, 1e11, 1e9, memory)
    return StagedProblem(Profile.create(C, A, W, stash=A), cluster, stages, 16)


def test_plans_of_small_problems_are_near_the_optimum(random_problems: DrawProblems) -> None:
    """Of two to four stages, with memory that some plans do not fit, against the exact search."""
    exact, ratios = ExactPlanner(), []
    for problem in random_problems(3, 60, granularity=64, memory=(1.5, 20.0)):
        best = exact.solve(problem)
        if best.plan is None or problem.stages < 2:
            continue
        plans = table_plans(problem, 4, 8, "tables")
        ratios.append(length_of(problem, plans[0]) / best.cost.length_s)
        assert len({(plan.cuts, plan.device_cuts) for plan in plans}) == len(plans) <= 4
    assert len(ratios) > 30
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(np.isinf(ratios)) < 0.05
    assert np.mean([ratio for ratio in ratios if np.isfinite(ratio)]) < 1.01


def test_a_plan_is_shortened_by_searches_from_it(random_problems: DrawProblems) -> None:
    """Never longer, mostly shorter; what nothing is shorter than comes back as it is, and so do optima."""
    exact, shorter, drawn = ExactPlanner(), 0, 0
    for problem in random_problems(5, 30, granularity=64, stages=(2, 4), memory=(4.0, 20.0)):
        plan = UniformPlanner().solve(problem).plan
        best = exact.solve(problem)
        if plan is None or best.plan is None:
            continue
        length_s = length_of(problem, shortened(problem, plan, 8))
        assert best.cost.length_s * (1 - 1e-9) <= length_s <= length_of(problem, plan)
        shorter, drawn = shorter + (length_s < length_of(problem, plan)), drawn + 1
        assert shortened(problem, best.plan, 8) is best.plan
    assert shorter > drawn / 2 > 5


@pytest.mark.parametrize("reach", [0, 8])
def test_the_first_is_the_shortest(random_problems: DrawProblems, reach: int) -> None:
    for problem in random_problems(8, 20, granularity=64, stages=(2, 4), memory=(4.0, 20.0)):
        lengths = [length_of(problem, plan) for plan in table_plans(problem, 4, reach, "tables")]
        assert lengths[0] <= min(lengths) * (1 + 1e-5)


def test_what_the_tables_call_a_plan_s_length_is_its_length(random_problems: DrawProblems) -> None:
    """By the cost model, up to float32, at every guess; followed through as many levels as there are stages."""
    checked = 0
    for problem in random_problems(21, 12, granularity=64, stages=(2, 5), memory=(4.0, 20.0)):
        stages, boundary = plain_stages(problem)
        ideal_s = float(stages.sums[C][-1]) * stages.micro_batches / stages.devices
        for guess in (0.0, 1.0, 3.0):
            sizes = np.arange(1, min(32, stages.devices) + 1)
            lengths, places = plans_by_tables(
                *scaled(stages, ideal_s, 0.0),
                32,
                min(32, stages.devices),
                sizes,
                np.float32(guess),
                np.float32(1e30),
                3,
            )
            assert sorted(lengths.tolist()) == lengths.tolist()
            for length, (cuts, devices) in zip(lengths.tolist(), places.tolist(), strict=True):
                own = tuple(int(boundary[k]) - 1 for k in cuts)
                plan = StagedPlan(own, tuple(devices), problem.micro_batches, "t", problem.grid.to_points(own))
                assert length * ideal_s == pytest.approx(length_of(problem, plan), rel=1e-4)
                checked += 1
    assert checked > 60


def test_a_limit_keeps_the_plans_that_are_shorter(random_problems: DrawProblems) -> None:
    for problem in random_problems(22, 12, granularity=64, stages=(3, 5), memory=(4.0, 20.0)):
        stages, _ = plain_stages(problem)
        arrays, given = scaled(stages, float(stages.sums[C][-1]) * stages.micro_batches / stages.devices, 0.0)
        units = min(32, stages.devices)
        sizes = np.arange(1, units + 1)
        free, places = plans_by_tables(arrays, given, 32, units, sizes, np.float32(1), np.float32(1e30), 1)
        if free.size:
            tight, same = plans_by_tables(
                arrays, given, 32, units, sizes, np.float32(1), free[0] * np.float32(1.0001), 1
            )
            assert tight[0] == free[0]
            np.testing.assert_array_equal(same, places)


@pytest.mark.parametrize(("devices", "stages"), [(64, 8), (128, 16), (1024, 32), (17 * 8, 5)])
def test_large_clusters_are_planned_device_by_device(devices: int, stages: int) -> None:
    problem = huge(devices, devices, stages)
    plans = table_plans(problem, 4, 8, "tables")
    even = StagedPlan(*even_cuts(problem), problem.micro_batches, "even")
    assert length_of(problem, plans[0]) < length_of(problem, even)


def even_cuts(problem: StagedProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Instruction cuts and device cuts of even stages."""
    stages, boundary = plain_stages(problem)
    route = even_places(stages.sums[C], stages.stages, stages.devices)
    return tuple((boundary[route[0, 1:-1]] - 1).tolist()), tuple(route[1, 1:-1].tolist())


def test_where_nothing_fits_a_valid_plan_comes_back() -> None:
    problem = huge(1, 16, 4, memory=1.0)
    plans = table_plans(problem, 4, 8, "tables")
    assert np.isinf(length_of(problem, plans[0]))


def test_whole_samples_and_a_schedule_s_stash_are_regarded() -> None:
    """Four samples on up to 13 replicas take the time of one a replica; GPipe holds all micro-batches."""
    problem = huge(2, 16, 3, memory=4e11)
    profile = Profile.create(
        problem.profile.C,
        problem.profile.A,
        problem.profile.W,
        stash=problem.profile.stash,
        meta={"microbatch_size": 4},
    )
    gpipe = replace(problem, profile=profile, schedule="gpipe")
    stages, _ = plain_stages(gpipe)
    assert stages.held.tolist() == [16, 16, 16]
    assert stages.parts.max() == 4
    for plan in table_plans(gpipe, 4, 8, "tables"):
        assert plan.check_valid(gpipe) == (True, "")


def test_stages_of_tables_are_those_of_the_problem(random_problems: DrawProblems) -> None:
    for problem in random_problems(4, 6, granularity=16, memory=(2.0, 20.0)):
        own, tables = plain_stages(problem)[0], stage_tables(problem)
        for ours, theirs in zip(own, plain_of(tables) or (), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_mixed_clusters_have_no_plain_stages() -> None:
    problem = huge(3, 16, 3)
    slow = replace(problem, slowdown=(2.0, *[1.0] * 15))
    assert plain_of(stage_tables(problem)) is not None
    assert plain_of(stage_tables(slow)) is None


@LAW
@given(st.integers(0, 2**32), st.integers(8, 40), st.integers(7, 20))
def test_the_points_of_tables_are_cuts_in_order_with_both_ends_among_them(seed: int, cuts: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = rng.random((5, cuts + 1), dtype=np.float32)
    arrays[[0, 2, 3, 4]] = arrays[[0, 2, 3, 4]].cumsum(axis=1)
    points = chosen_points(arrays, most)
    assert (np.diff(points) > 0).all() and points.size <= most
    ends = {*range(3), *range(cuts - 3, cuts)}
    assert ends <= set(points.tolist()) <= set(range(cuts))


@LAW
@given(st.lists(st.floats(0, float(np.float32(1e30)), width=32) | st.sampled_from([0.0, 1.5, np.inf]), max_size=40))
def test_the_least_by_bits_is_the_first_least_by_number(lengths: list[float]) -> None:
    score = np.abs(np.array(lengths, dtype=np.float32))  # -0.0 is no length
    finite = score.size and np.isfinite(score.min())
    assert first_least(score) == (int(score.argmin()) if finite else -1)


def test_the_same_routes_come_out_again() -> None:
    stages, _ = plain_stages(huge(5, 64, 8))
    first, second = (best_routes(stages, 0.0, 4, 8, LOOKS[1][1]) for _ in range(2))
    assert [route.tobytes() for route in first] == [route.tobytes() for route in second]
