"""Lower bounds on steps and the search of all plans against brute force, and against what closed forms say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.staged import step_bounds
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.step_bounds import StepBounds
from automap_models.simulate.plan_step import step_cost

MakeProblem = Callable[..., StagedProblem]


def problems_of(make_problem: MakeProblem, seed: int, schedule: str) -> list[StagedProblem]:
    """A random model in two, three and four stages: with copies of parameters, whole samples, work to hold, updates."""
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, max_n=8, max_devices=6, max_stages=4)
    profile, count = problem.profile, len(problem.profile)
    shared = ()
    if seed % 3 == 0 and count > 2:
        uses = sorted(rng.choice(count, size=min(3, count), replace=False).tolist())
        shared = (SharedParameter("embedding", float(profile.W[uses[0]]), tuple(uses)),)
    meta = {**profile.meta, **({"microbatch_size": int(rng.integers(1, 12))} if seed % 2 else {})}
    problem = replace(
        problem,
        profile=replace(profile, meta=meta, shared_parameters=shared),
        schedule=schedule,
        micro_batches=int(rng.integers(1, 20)),
        constraints=Constraints(min_stage=0.25 * (seed % 2), equal_replicas=seed % 5 == 4),
    )
    most = min(4, problem.cluster.devices, problem.grid.cut_points.size + 1)
    equal = problem.constraints.equal_replicas
    numbers = (n for n in range(2, most + 1) if not equal or problem.cluster.devices % n == 0)
    return [replace(problem, stages=n) for n in numbers]


def every_step_s(problem: StagedProblem) -> Iterator[float]:
    """The steps of all valid plans on the grid that fit."""
    grid, cuts = problem.grid, problem.stages - 1
    for points in combinations(grid.cut_points.tolist(), cuts):
        for devices in combinations(range(1, problem.cluster.devices), cuts):
            plan = StagedPlan(grid.to_instructions(points), devices, problem.micro_batches, "brute force")
            if plan.check_valid(problem)[0] and (cost := step_cost(problem, plan)).feasible:
                yield cost.step_s


@pytest.mark.parametrize("schedule", WARM_UPS)
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_shorter_than_the_bound_and_the_search_finds_the_shortest(
    seed: int, schedule: str, make_problem: MakeProblem
) -> None:
    for problem in (problems := problems_of(make_problem, seed, schedule)):
        best_s = min(every_step_s(problem), default=np.inf)
        together = problems if not problem.constraints.equal_replicas else [problem]
        for limit_s in (1e6, *(share * best_s for share in (0.7, 0.999, 1.0, 1.2) if np.isfinite(best_s))):
            assert StepBounds(together, None).least_s(limit_s, NEVER)[problem] <= min(limit_s, best_s)
            plan, bound_s = shortest_below(problem, None, limit_s, NEVER, "exact")
            assert bound_s == pytest.approx(min(limit_s, best_s), rel=1e-8)
            assert (plan is None) == (limit_s <= best_s)
            if plan is not None:
                assert plan.check_valid(problem)[0]
                assert step_cost(problem, plan).step_s == pytest.approx(best_s, rel=LENGTH_ROUNDING)


@pytest.mark.parametrize("stages", [2, 4])
def test_equal_work_in_equal_stages_has_the_step_of_the_closed_form(stages: int) -> None:
    """Without messages and gradients (M + S - 1) · u is the step of equal stages, and no plan of S stages has less.

    Every instruction takes a second, and there are as many devices as stages.
    """
    count, micro = 16, 8
    profile = Profile.create(np.ones(count), A=np.full(count, 1e-9), W=np.full(count, 1e-9))
    problem = StagedProblem(profile, Cluster(1, stages, 1e12, 1e12, 1e12, "one"), stages, micro, schedule="1f1b")
    closed_s = (micro + stages - 1) * count / stages
    assert StepBounds([problem], None).least_s(1e6, NEVER)[problem] == pytest.approx(closed_s, rel=1e-6)
    plan, bound_s = shortest_below(problem, None, 1e6, NEVER, "exact")
    assert bound_s == pytest.approx(closed_s, rel=1e-6)
    assert plan is not None
    assert plan.cuts == tuple(range(count // stages - 1, count - 1, count // stages))


def test_without_time_or_room_nothing_is_known(monkeypatch: pytest.MonkeyPatch, make_problem: MakeProblem) -> None:
    problem = problems_of(make_problem, 1, "1f1b")[0]
    assert StepBounds([problem], None).least_s(1e6, Deadline(0.0))[problem] == 0.0
    assert shortest_below(problem, None, 1e6, Deadline(0.0), "exact") == (None, 0.0)
    monkeypatch.setattr(step_bounds, "MOST_BYTES", 100)
    assert StepBounds([problem], None).least_s(1e6, NEVER)[problem] == 0.0


@pytest.mark.parametrize("topo", ["A", "C", "v100-edr-4"])
def test_a_message_takes_as_long_as_to_the_devices_that_receive_it_fastest(topo: str) -> None:
    """Of all that there are, by the cost model; the compiled loop leaves those out that cannot be faster."""
    cluster = read_cluster(topo)
    problem = StagedProblem(Profile.create(np.ones(4), np.ones(4), np.ones(4)), cluster, stages=2, micro_batches=4)
    messages, devices = StepBounds([problem]).messages, cluster.devices
    for first, boundary in combinations(range(devices), 2):
        each_s = [transfer_s_per_byte(cluster, first, boundary, stop) for stop in range(boundary + 1, devices + 1)]
        assert messages[first, boundary] == pytest.approx(min(each_s), rel=1e-12)
