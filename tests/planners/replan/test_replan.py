"""Re-planning: planted speeds are recovered, plans for them are the best by brute force, bytes are counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optima import exact_search
from scipy.optimize import minimize_scalar

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import with_microbatch_size
from automap_models.core.observed import Attribution, Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.profiled_model import unsharded
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.files import read_profile
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner
from automap_models.planners.replan.replan import ReplanPlanner, corrected_profile, healthy_times, migration
from automap_models.planners.replan.search import (
    ReplanConfig,
    device_orders,
    node_orders,
    placed_cost,
    search,
    search_orders,
)
from automap_models.planners.replan.speeds import Speeds, fit_speeds, huber_locations
from automap_models.simulate.plan_step import step_cost

Draw = Callable[..., list[StagedProblem]]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CLUSTER = Cluster(2, 4, 130e9, 3.125e9, 32e9)
STAGE = np.repeat([0, 1], 4)


def observation(times: FloatArray, unit: str = "device") -> Observed:
    """One sample of every unit; times [2, units]."""
    forward, backward = ({u: np.array([t]) for u, t in enumerate(row.tolist())} for row in times)
    return Observed("device" if unit == "device" else "stage", forward, backward)


def predicted() -> FloatArray:
    return np.array([[1.0, 2.0], [2.0, 3.0]])


def test_planted_scales_and_a_straggler_are_recovered() -> None:
    scale, slow = np.array([[1.2, 0.9], [1.1, 1.0]]), np.ones(8)
    slow[5] = 1.7
    speeds = fit_speeds(observation((scale * predicted())[:, STAGE] * slow), *predicted(), STAGE, "instructions")
    np.testing.assert_allclose([speeds.forward_scale, speeds.backward_scale], scale, rtol=0.004)
    np.testing.assert_allclose(speeds.slowdown, slow, rtol=0.004)
    assert (speeds.slowdown[slow == 1.0] == 1.0).all()


def test_stalls_in_less_than_half_of_the_samples_do_not_matter() -> None:
    random = np.random.default_rng(0)
    times = predicted()[:, STAGE]
    forward, backward = (
        {d: t * np.where(random.random(21) < 0.3, 5.0, 1.0) for d, t in enumerate(row.tolist())} for row in times
    )
    speeds = fit_speeds(Observed("device", forward, backward), *predicted(), STAGE, "instructions")
    np.testing.assert_array_equal(speeds.slowdown, np.ones(8))
    np.testing.assert_allclose(speeds.forward_scale, 1.0, rtol=1e-9)


@pytest.mark.parametrize("attribute", ["instructions", "devices"])
def test_a_stage_that_is_slow_as_a_whole_is_put_down_to_what_the_caller_says(attribute: Attribution) -> None:
    cluster_of_3, three = np.repeat([0, 1, 2], 4), np.array([[1.0, 2.0, 1.5], [2.0, 3.0, 2.5]])
    times = three[:, cluster_of_3] * np.where(cluster_of_3 == 1, 1.3, 1.0)
    speeds = fit_speeds(observation(times), *three, cluster_of_3, attribute)
    slow = np.where(cluster_of_3 == 1, 1.3, 1.0)
    if attribute == "devices":
        np.testing.assert_allclose(speeds.slowdown, slow, rtol=0.02)
        np.testing.assert_allclose(speeds.forward_scale, 1.0, rtol=0.02)
    else:
        np.testing.assert_array_equal(speeds.slowdown, np.ones(12))
        np.testing.assert_allclose(speeds.forward_scale, [1.0, 1.3, 1.0])


@pytest.mark.parametrize(("factor", "devices_are_slow"), [(1.03, False), (1.2, True)])
def test_a_profile_measured_under_other_cuts_is_nearly_right(factor: float, devices_are_slow: bool) -> None:
    own, three = np.repeat([0, 1, 2], 4), np.array([[1.0, 2.0, 1.5], [2.0, 3.0, 2.5]])
    times = three[:, own] * np.where(own == 1, factor, 1.0)
    speeds = fit_speeds(observation(times), *three, own, "either")
    np.testing.assert_allclose(speeds.slowdown[4:8], factor if devices_are_slow else 1.0, rtol=1e-6)
    np.testing.assert_allclose(speeds.forward_scale, [1.0, 1.0 if devices_are_slow else factor, 1.0], rtol=1e-6)


def test_times_of_stages_count_for_all_of_their_devices() -> None:
    three = np.array([[1.0, 2.0, 1.5], [2.0, 3.0, 2.5]])
    observed = observation(three * [1.0, 1.0, 1.5], "stage")
    speeds = fit_speeds(observed, *three, np.repeat([0, 1, 2], 2), "devices")
    np.testing.assert_allclose(speeds.slowdown, [1, 1, 1, 1, 1.5, 1.5], rtol=0.02)


def test_what_was_known_is_expected_and_kept_where_nothing_was_measured() -> None:
    known = np.array([1.0, 1.5, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    observed = observation(predicted()[:, STAGE] * known)
    del observed.forward_s[3], observed.backward_s[3]  # type: ignore[attr-defined]
    speeds = fit_speeds(observed, *predicted(), STAGE, "instructions", known)
    np.testing.assert_allclose(speeds.slowdown, known, rtol=1e-6)
    np.testing.assert_allclose(speeds.forward_scale, 1.0, rtol=1e-6)


def test_a_straggler_that_recovered_is_healthy_again() -> None:
    known = np.array([1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    speeds = fit_speeds(observation(predicted()[:, STAGE]), *predicted(), STAGE, "instructions", known)
    np.testing.assert_array_equal(speeds.slowdown, np.ones(8))


@given(values=st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=12), error=st.floats(0.01, 0.3))
def test_the_location_is_huber_s_by_another_minimiser(values: list[float], error: float) -> None:
    numbers = np.array(values)
    errors, bend = np.full(numbers.size, error), 1.345
    location = huber_locations(numbers, errors, np.zeros(numbers.size, dtype=np.int64), bend)[0]

    def loss(centre: float) -> float:
        z = np.abs(numbers - centre) / error
        return float(np.where(z <= bend, z**2 / 2, bend * z - bend**2 / 2).sum())

    other = minimize_scalar(loss, bounds=(-1.0, 1.0), method="bounded", options={"xatol": 1e-10})
    assert loss(location) == pytest.approx(float(other.fun), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [({9: 1.0}, "device 9 is measured, but the plan has devices 0 to 7"), (None, "nothing is measured of stage 1")],
)
def test_times_of_another_plan_are_refused(change: dict[int, float] | None, words: str) -> None:
    own = {d: np.array([1.0]) for d in range(8 if change else 4)}
    own |= {d: np.array([t]) for d, t in (change or {}).items()}
    with pytest.raises(BadInput, match=words):
        fit_speeds(Observed("device", own, own), *predicted(), STAGE, "instructions")


@pytest.mark.parametrize("time_s", [1e308, 1e9, 1e-320])
def test_times_that_can_only_be_a_mistake_are_refused(time_s: float) -> None:
    times = predicted()[:, STAGE]
    times[:, 5] = time_s
    with pytest.raises(BadInput, match=r"device 5 took .* check that the times are seconds"):
        fit_speeds(observation(times), *predicted(), STAGE, "instructions")


@given(
    slow=st.lists(st.sampled_from([1.0, 1.1, 1.4, 2.0, 5.0]), min_size=2, max_size=7),
    samples=st.integers(1, 12) | st.none(),
)
def test_a_stage_works_with_the_best_of_all_subsets_of_its_devices(slow: list[float], samples: int | None) -> None:
    """Its fullest replica has a whole number of samples, where their number is known."""
    problem = replace(small_problem(), cluster=Cluster(1, len(slow), 1e9, 1e9, 1e9), slowdown=tuple(slow), stages=1)
    if samples is not None:
        profile = with_microbatch_size(problem.profile, samples)
        problem = replace(problem, profile=profile, schedule="1f1b")
    share = (lambda r: math.ceil(samples / r) / samples) if samples else (lambda r: 1 / r)
    for a, q in itertools.combinations(range(len(slow) + 1), 2):
        subsets = (s for size in range(1, q - a + 1) for s in itertools.combinations(slow[a:q], size))
        assert 1 / problem.stage_speeds.rate[a, q] == pytest.approx(min(max(s) * share(len(s)) for s in subsets))
    idle = problem.idle_positions(StagedPlan((), (), 1, ""))
    assert len(slow) - len(idle) == problem.stage_speeds.replicas[0, len(slow)]
    assert all(slow[i] >= slow[d] for i in idle for d in set(range(len(slow))) - set(idle))


def test_the_cost_on_unequal_devices_is_that_of_their_slowest_working_replicas_summed_by_hand(
    random_problems: Draw,
) -> None:
    random = np.random.default_rng(2)
    for problem in random_problems(seed=5, count=30):
        plan = exact_search(replace(problem, cluster=replace(problem.cluster, memory=1e15)))
        assert plan is not None
        slowdown = random.uniform(1.0, 3.0, problem.cluster.devices)
        bounds = plan.stage_devices(problem.cluster.devices)
        idle = {first for first, last in bounds if last > first and random.random() < 0.5}
        unequal = replace(problem, slowdown=tuple(slowdown))
        cost, equal, p = plan_cost(unequal, plan, idle), plan_cost(problem, plan), problem.profile
        for s, (first, last) in enumerate(plan.stage_instructions(len(p))):
            own, working = slice(first, last + 1), [d for d in range(bounds[s][0], bounds[s][1] + 1) if d not in idle]
            slowest = max(slowdown[d] for d in working)
            assert cost.forward_s[s] == pytest.approx(slowest * p.C_fwd[own].sum() / len(working))
            assert cost.backward_s[s] == pytest.approx(slowest * (p.C - p.C_fwd)[own].sum() / len(working))
            stash = min(plan.micro_batches, plan.stages - s) * p.stash[own].sum() / len(working)
            assert cost.memory_bytes[s] == pytest.approx(problem.state_factor * p.W[own].sum() + stash)
        np.testing.assert_array_equal(cost.transfer_s, equal.transfer_s)
        np.testing.assert_array_equal(cost.all_reduce_s, equal.all_reduce_s)


def steps_of_all_plans(problem: StagedProblem) -> list[float]:
    n, devices, steps = len(problem.profile), problem.cluster.devices, []
    for device_cuts in itertools.combinations(range(1, devices), problem.stages - 1):
        for cuts in itertools.combinations(range(n - 1), problem.stages - 1):
            cost = step_cost(problem, StagedPlan(cuts, device_cuts, problem.micro_batches, ""))
            if cost.feasible:
                steps.append(cost.step_s)
    return steps


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", None])
def test_the_exact_search_for_unequal_devices_is_the_best_by_brute_force(
    schedule: str | None, random_problems: Draw
) -> None:
    random = np.random.default_rng(1)
    for seed, healthy in enumerate(random_problems(seed=11, count=12, instructions=(5, 8), stages=(2, 3))):
        devices = healthy.cluster.devices
        slowdown = np.where(random.random(devices) < 0.5, random.uniform(0.5, 3.0, devices), 1.0)
        problem = replace(
            healthy,
            profile=with_microbatch_size(healthy.profile, 1 + seed),
            schedule=schedule,
            slowdown=tuple(slowdown.tolist()),
            granularity=len(healthy.profile),
        )
        steps, plan = steps_of_all_plans(problem), exact_search(problem)
        if not steps:
            assert plan is None
            continue
        assert plan is not None
        assert step_cost(problem, plan).step_s == pytest.approx(min(steps), rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", None])
def test_the_search_is_never_worse_than_its_start_and_never_better_than_all_plans(
    schedule: str | None, random_problems: Draw
) -> None:
    for drawn in random_problems(seed=3, count=8, instructions=(5, 8), stages=(2, 3)):
        healthy = replace(drawn, schedule=schedule)
        plan = exact_search(healthy)
        if plan is None:
            continue
        problem = replace(healthy, slowdown=(1.8, *[1.0] * (healthy.cluster.devices - 1)))
        shortest = search(problem, [plan])
        assert shortest is not None
        start, best_s = step_cost(problem, plan), shortest[1].step_s
        assert best_s >= min(steps_of_all_plans(problem)) * (1.0 - 1e-9)
        if start.feasible:
            assert best_s <= start.step_s * (1.0 + 1e-9)
        assert shortest[0].check_valid(problem) == (True, "")


@pytest.mark.parametrize(
    ("slowdown", "words"), [((1.0,), "1 numbers"), ((0.0,) * 8, "8 numbers"), ((math.nan,) * 8, "8 positive numbers")]
)
def test_speeds_that_are_none_are_refused(slowdown: tuple[float, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(small_problem(), slowdown=slowdown)


def test_distinct_orders_of_nodes_are_as_many_as_patterns_of_their_speeds() -> None:
    speeds = [(1.0,), (1.5,), (1.0,), (2.0,)]
    orders = list(node_orders(speeds))
    assert orders[0] == (0, 1, 2, 3)
    patterns = [tuple(speeds[node] for node in order) for order in orders]
    assert len(set(patterns)) == len(patterns) == math.factorial(4) // math.factorial(2)


def test_orders_of_devices_keep_nodes_together() -> None:
    slowdown = np.array([1.0, 1.2, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0])
    for order in device_orders(CLUSTER, tuple(range(8)), slowdown):
        assert sorted(order) == list(range(8))
        assert [len({d // 4 for d in order[:4]}), len({d // 4 for d in order[4:]})] == [1, 1]


def small_problem() -> StagedProblem:
    n = 24
    profile = Profile.create(C=np.full(n, 3e-3), A=np.full(n, 1e4), W=np.full(n, 1e6), C_fwd=np.full(n, 1e-3))
    return StagedProblem(profile, CLUSTER, stages=2, micro_batches=8)


def running(problem: StagedProblem) -> PlacedPlan:
    plan = exact_search(problem)
    assert plan is not None
    return PlacedPlan(plan, tuple(range(problem.cluster.devices)))


def measured(problem: StagedProblem, job: PlacedPlan, slowdown: FloatArray) -> Observed:
    return observation(np.stack(healthy_times(problem, job))[:, job.stage_of_device()] * slowdown)


def replanned(
    problem: StagedProblem, job: PlacedPlan, slowdown: FloatArray, **options: float
) -> Result[ReplanProblem, PlacedPlan]:
    return ReplanPlanner().solve(ReplanProblem(problem, job, measured(problem, job, slowdown), **options))


def test_nobody_waits_for_a_straggler_and_the_plan_gets_shorter() -> None:
    problem = small_problem()
    job, slowdown = running(problem), np.ones(8)
    slowdown[2] = 2.0
    result = replanned(problem, job, slowdown, restart_s=3.0)
    after, facts = result.required_plan(), result.facts
    # By hand: the running job waits for its slowest device in every stage that it belongs to.
    healthy_forward_s = plan_cost(problem, job.plan).forward_s[0]
    assert facts["running_cost"].forward_s[0] == pytest.approx(2.0 * healthy_forward_s, rel=0.01)
    # By hand: with all devices as fast as the seven healthy ones the work of 8 takes 8/7 as long.
    healthy = placed_cost(problem, job, np.ones(8)).length_s
    assert 1.0 < result.cost.length_s / healthy < 8 / 7 + 0.03
    stage, works = after.stage_of_device(), after.working()
    assert not works[2] or (stage == stage[2]).sum() == 1
    assert facts["saved_s"] == facts["running_cost"].length_s - result.cost.length_s
    assert facts["pays_after_steps"] == math.ceil((facts["migration"].migration_s + 3.0) / facts["saved_s"])


def test_nothing_changes_where_nothing_is_wrong() -> None:
    problem = small_problem()
    job = running(problem)
    result = replanned(problem, job, np.ones(8))
    assert result.plan is job
    moved = result.facts["migration"]
    assert (result.facts["pays_after_steps"], moved.received_bytes, moved.migration_s) == (None, 0.0, 0.0)
    np.testing.assert_allclose(result.facts["corrected"].profile.C, problem.profile.C)


def test_the_search_log_lists_the_device_orders_that_were_searched_the_running_one_first() -> None:
    problem = small_problem()
    job, slowdown = running(problem), np.ones(8)
    slowdown[2] = 2.0
    result = replanned(problem, job, slowdown)
    assert result.search_log[0].device_order == job.device_order
    assert 1 < len(result.search_log) <= 4
    assert result.cost.length_s <= min(order.step_s for order in result.search_log) * (1.0 + 1e-3)


def test_without_time_the_running_plan_goes_on_and_a_note_says_so() -> None:
    problem = small_problem()
    job, slowdown = running(problem), np.ones(8)
    slowdown[2] = 2.0
    result = ReplanPlanner().solve(
        ReplanProblem(problem, job, measured(problem, job, slowdown)), deadline=Deadline(0.0)
    )
    assert (result.plan, result.status, result.facts["saved_s"]) == (job, "feasible", 0.0)
    assert "deadline" in result.notes[0]


def test_that_no_plan_fits_is_a_result() -> None:
    problem = small_problem()
    job = running(problem)
    tight = replace(problem, cluster=replace(problem.cluster, memory=1e6))
    result = replanned(tight, job, np.ones(8))
    assert (result.plan, result.cost, result.status) == (None, None, "stopped")
    with pytest.raises(Infeasible, match="no plan was found that fits"):
        result.required_plan()


def test_a_start_is_kept_where_the_search_knows_no_shorter_plan() -> None:
    problem = small_problem()
    worst = PlacedPlan(StagedPlan((0,), (1,), problem.micro_batches, "worst"), tuple(range(8)))
    exact = exact_search(problem)
    assert exact is not None
    best = search_orders(problem, worst, np.ones(8), [exact]).plan
    assert placed_cost(problem, best, np.ones(8)).length_s <= plan_cost(problem, exact).length_s * (1.0 + 1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"restart_s": -1.0}, "-1 seconds"),
        ({"restart_s": math.inf}, "inf seconds"),
        ({"known_slowdown": np.ones(7)}, "one a device"),
        ({"known_slowdown": np.zeros(8)}, "no positive numbers"),
        ({"running": PlacedPlan(StagedPlan((11,), (4,), 8, ""), (0,) * 8)}, "0 to 7 once each"),
        ({"running": PlacedPlan(StagedPlan((11,), (4,), 8, ""), tuple(range(8)), (0, 1, 2, 3))}, "without a device"),
        ({"running": PlacedPlan(StagedPlan((11,), (4,), 8, ""), tuple(range(8)), (9,))}, "are not all among 0 to 7"),
        ({"running": PlacedPlan(StagedPlan((11,), (4,), 9, ""), tuple(range(8)))}, "9 micro-batches instead of 8"),
        (
            {
                "staged": replace(small_problem(), shardings=(replace(unsharded(small_problem().profile), degree=2),)),
                "running": PlacedPlan(StagedPlan((11,), (4,), 8, "", shardings=(0, 1)), tuple(range(8))),
            },
            "stage 1 shares its operators",
        ),
    ],
)
def test_what_is_no_running_job_is_refused(change: dict[str, Any], words: str) -> None:
    problem = small_problem()
    job = running(problem)
    with pytest.raises(BadInput, match=words):
        ReplanProblem(**{"staged": problem, "running": job, "observed": measured(problem, job, np.ones(8)), **change})


def test_a_profile_is_corrected_instruction_by_instruction_and_says_so() -> None:
    problem = small_problem()
    job = running(problem)
    speeds = Speeds(np.array([2.0, 1.0]), np.array([3.0, 1.0]), np.ones(8), np.zeros(8))
    profile = corrected_profile(problem.profile, job.plan, speeds)
    cut = job.plan.cuts[0]
    np.testing.assert_allclose(profile.C_fwd[: cut + 1], 2e-3)
    np.testing.assert_allclose(profile.C[: cut + 1], 2e-3 + 6e-3)
    np.testing.assert_allclose(profile.C[cut + 1 :], 3e-3)
    assert profile.meta["corrected_under"] == list(job.plan.cuts)


def test_the_second_measurement_under_the_same_cuts_is_about_devices() -> None:
    problem = small_problem()
    job = running(problem)
    first = replanned(problem, job, np.ones(8))
    times = measured(problem, job, np.where(STAGE == 0, 1.4, 1.0))
    second = ReplanPlanner().solve(ReplanProblem(first.facts["corrected"], job, times))
    slowdown = second.facts["speeds"].slowdown
    assert slowdown[:4] / slowdown[4:] == pytest.approx(np.full(4, 1.4), rel=0.01)


@given(seed=st.integers(0, 10**6))
def test_moved_bytes_are_those_counted_one_by_one(seed: int) -> None:
    """Sets of (device, instruction) instead of arrays."""
    random = np.random.default_rng(seed)
    problem = small_problem()
    problem = replace(problem, profile=Profile.create(np.ones(24), np.ones(24), random.random(24)))

    def placed() -> PlacedPlan:
        cuts, device_cuts = (int(random.integers(0, 23)),), (int(random.integers(1, 8)),)
        order = tuple(random.permutation(8).tolist())
        idle = order[:1] if device_cuts[0] > 1 and random.random() < 0.5 else ()
        return PlacedPlan(StagedPlan(cuts, device_cuts, 8, ""), order, idle)

    def holds(job: PlacedPlan) -> set[tuple[int, int]]:
        return {
            (device, i)
            for position, device in enumerate(job.device_order)
            for i in range(24)
            if device not in job.idle and (i > job.plan.cuts[0]) == (position >= job.plan.device_cuts[0])
        }

    before, after = placed(), placed()
    moved, weight = migration(problem, before, after), 3.0 * problem.profile.W
    lacking = holds(after) - holds(before)
    assert moved.received_bytes == pytest.approx(sum(weight[i] for _, i in lacking))
    in_nodes = {(device // 4, i) for device, i in holds(before)}
    entering = {(device // 4, i) for device, i in lacking} - in_nodes
    assert moved.between_nodes_bytes == pytest.approx(sum(weight[i] for _, i in entering))
    assert migration(problem, before, before).migration_s == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", None])
def test_a_new_plan_on_a_real_profile_for_a_slow_node(schedule: str | None) -> None:
    """By the step under a schedule: whole samples, and all-reduces that the backward pass hides."""
    cluster = Cluster(2, 8, 130e9, 3.125e9, 32e9)
    problem = StagedProblem(read_profile(EXAMPLES / "vgg19_v100.npz"), cluster, stages=2, schedule=schedule)
    job, slowdown = PlacedPlan(make_planner("uniform").plan(problem), tuple(range(16))), np.ones(16)
    slowdown[8:16] = 1.5
    after = search_orders(problem, job, slowdown, config=ReplanConfig(most_orders=2)).plan
    assert placed_cost(problem, after, slowdown).step_s < placed_cost(problem, job, slowdown).step_s
    assert after.plan.check_valid(problem) == (True, "")
    assert placed_cost(problem, after, slowdown).feasible
