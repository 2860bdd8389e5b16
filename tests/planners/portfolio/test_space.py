"""Which numbers of stages and micro-batches compete, and that the best of them wins as in single runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from optima import exact_search

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER
from automap_models.planners.portfolio.length import LengthSearch
from automap_models.planners.portfolio.space import PlanningSpace, default_batch, divisors, stage_numbers
from automap_models.planners.staged.costs import StagedResult

CLUSTER = Cluster(nodes=2, devices_per_node=3, intra=100.0, inter=1.0, memory=1e9, name="six")
ENDLESS = LengthSearch(None, prove_s=np.inf, refine_s=0.0, deadline=NEVER)
"""Proves everything."""


def candidates(
    base: StagedProblem,
    stages: Iterable[int],
    global_batch: int | None = None,
) -> tuple[StagedProblem, ...]:
    """The problems of a planning space around this one."""
    space = PlanningSpace(
        ProfiledModel(base.profile),
        base.cluster,
        global_batch,
        base.micro_batches,
        tuple(stages),
        base.state_factor,
        base.granularity,
    )
    return space.pipelines()


def choose(problems: Sequence[StagedProblem], search: LengthSearch) -> StagedResult:
    """The best plan of these problems by the length L; raises where nothing fits."""
    result = replace(search, baselines=[]).solve(problems)
    result.required_plan()
    return result


def problem(n: int = 8, size: int | None = 4, cluster: Cluster = CLUSTER) -> StagedProblem:
    profile = Profile.create(C=np.ones(n), A=np.ones(n), W=np.ones(n), meta={"microbatch_size": size})
    return StagedProblem(profile, cluster, stages=2, micro_batches=8)


@pytest.mark.parametrize(
    ("own", "devices", "samples"),
    [
        (16, 32, 256),  # 16 micro-batches, eight samples for each device
        (8, 32, 128),
        (1, 4, 16),
        (1, 32, 128),  # 16 samples would leave half of the devices without any
        (3, 32, 192),
        (32, 256, 1024),
    ],
)
def test_a_step_that_nobody_gives_has_16_micro_batches_and_four_samples_for_each_device(
    own: int, devices: int, samples: int
) -> None:
    profile = problem(size=own).profile
    assert default_batch(profile, devices) == samples >= 4 * devices
    assert samples % own == samples % devices == 0 or own * 16 == samples


@pytest.mark.parametrize(("parameters", "tokens"), [(0.5e9, 2**19), (4e9, 2**20), (40e9, 2**21)])
def test_a_step_of_tokens_has_as_many_as_models_of_that_size_are_trained_with(parameters: float, tokens: int) -> None:
    meta = {"microbatch_size": 1, "sample_tokens": 1024, "parameter_dtype": "bfloat16"}
    half = parameters / 2
    profile = Profile.create(C=[1.0] * 2, A=[1.0] * 2, W=[2 * half] * 2, frozen=[0.0, 0.0], meta=meta)
    assert default_batch(profile, 32) == tokens / 1024
    frozen = Profile.create(C=[1.0] * 2, A=[1.0] * 2, W=[1.0] * 2, frozen=[2 * half] * 2, meta=meta)
    assert default_batch(frozen, 32) == tokens / 1024


def test_a_profile_without_samples_has_no_batch_of_its_own() -> None:
    assert default_batch(problem(size=None).profile, 32) is None


@pytest.mark.parametrize("number", [1, 2, 36, 97, 720, 65_536])
def test_divisors_are_those_of_trial_division(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_stages_go_from_one_to_what_devices_and_cut_points_allow() -> None:
    assert list(stage_numbers(problem())) == [1, 2, 3, 4, 5, 6]
    assert list(stage_numbers(problem(n=3))) == [1, 2, 3]
    assert max(stage_numbers(problem(n=200, cluster=replace(CLUSTER, devices_per_node=32)))) == 16


def test_a_micro_batch_has_a_sample_for_every_replica_of_an_even_split() -> None:
    """Twelve samples on six devices: with one stage at least six each, with two three, with three two."""
    problems = candidates(problem(), (3, 1, 2), global_batch=12)
    assert [(p.stages, p.micro_batches) for p in problems] == [
        *((1, 1), (1, 2)),
        *((2, 1), (2, 2), (2, 3), (2, 4)),
        *((3, 1), (3, 2), (3, 3), (3, 4), (3, 6)),
    ]
    for p in problems:
        assert microbatch_size(p.profile) == 12 // p.micro_batches
        np.testing.assert_allclose(p.profile.C * p.micro_batches, 12 / 4 * problem().profile.C)


def test_a_batch_too_small_for_the_cluster_is_refused() -> None:
    with pytest.raises(BadInput, match=r"2 samples .* 6 devices"):
        candidates(problem(), (1, 2), global_batch=2)


def best_of_single_runs(problems: tuple[StagedProblem, ...]) -> float:
    """The least length over all problems, each searched alone from nothing."""
    plans = [(p, exact_search(p)) for p in problems]
    return min((plan_cost(p, plan).length_s for p, plan in plans if plan), default=np.inf)


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_the_best_of_single_exact_runs_over_stages_and_micro_batches(
    seed: int, random_problems: Callable[..., list[StagedProblem]]
) -> None:
    """Problems of all sorts; memory binds now and then."""
    (drawn,) = random_problems(seed, 1, granularity=128 if seed % 2 else 16)
    profile = replace(drawn.profile, meta={"microbatch_size": 8})
    base = replace(drawn, profile=profile, stages=1)
    if seed % 3 == 0:
        base = replace(base, cluster=replace(base.cluster, nodes=2, devices_per_node=8))
    stages = range(1, min(4, *stage_numbers(base)[-1:]) + 1)
    problems = candidates(base, stages, global_batch=48)
    expected = best_of_single_runs(problems)
    if not np.isfinite(expected):
        with pytest.raises(Infeasible):
            choose(problems, ENDLESS)
        return
    choice = choose(problems, ENDLESS)
    assert choice.cost.length_s == pytest.approx(expected, rel=1e-9)
    assert choice.bound is not None
    assert choice.bound.proof == "exact"
    assert choice.bound.value == pytest.approx(expected, rel=1e-9)
    assert choice.required_plan().check_valid(choice.problem) == (True, "")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_about_each_candidate_holds(
    seed: int, random_problems: Callable[..., list[StagedProblem]]
) -> None:
    (drawn,) = random_problems(100 + seed, 1, memory=(1.0, 20.0))
    problems = candidates(drawn, stage_numbers(drawn)[:4])
    choice = choose(problems, ENDLESS)
    assert [(t.stages, t.micro_batches) for t in choice.search_log] == [(p.stages, p.micro_batches) for p in problems]
    assert [p is choice.problem for p in problems] == [t.chosen for t in choice.search_log]
    for entry, p in zip(choice.search_log, problems, strict=True):
        optimum = exact_search(p)
        if entry.outcome == "does not fit":
            assert optimum is None
        elif optimum is not None and entry.bound_s is not None:
            optimum_s = plan_cost(p, optimum).length_s
            assert entry.bound_s <= optimum_s * (1 + 1e-9)
            assert entry.step_s is None or entry.step_s >= optimum_s * (1 - 1e-9)


def test_without_time_every_bound_still_holds(random_problems: Callable[..., list[StagedProblem]]) -> None:
    for drawn in random_problems(7, 10, memory=(2.0, 20.0)):
        problems = candidates(drawn, stage_numbers(drawn)[:4])
        choice = choose(problems, replace(ENDLESS, prove_s=0.0))
        assert choice.bound is not None
        assert choice.bound.value <= best_of_single_runs(problems) * (1 + 1e-9)
        assert choice.cost.length_s >= best_of_single_runs(problems) * (1 - 1e-9)


def test_of_equally_long_plans_the_one_with_fewest_micro_batches_is_chosen() -> None:
    """Data parallelism takes as long for one large micro-batch as for many small ones."""
    problems = candidates(problem(), (1,), global_batch=48)
    assert len(problems) > 2
    assert choose(problems, ENDLESS).required_plan().micro_batches == 1


def test_a_smaller_micro_batch_is_chosen_where_a_large_one_does_not_fit() -> None:
    """Data parallelism on six devices keeps stash·m/4 / 6 bytes: 24 samples are one byte too many, 12 fit."""
    profile = replace(problem().profile, stash=np.full(8, 3.0))
    weights = 4.0 * float(profile.W.sum())
    cluster = replace(CLUSTER, memory=weights + 8 * 3.0 * 24 / 4 / 6 - 1.0)
    problems = candidates(replace(problem(), profile=profile, cluster=cluster), (1,), global_batch=24)
    choice = choose(problems, ENDLESS)
    assert choice.required_plan().micro_batches == 2
    assert [t.outcome for t in choice.search_log][:2] == ["does not fit", "proven"]


def test_refinement_never_loses_to_refined_single_runs_that_are_near() -> None:
    rng = np.random.default_rng(3)
    for _ in range(4):
        C, A, W = rng.uniform(size=(3, 64))
        profile = Profile.create(C=C + 0.1, A=A * 0.1, W=W)
        base = StagedProblem(profile, replace(CLUSTER, memory=1e9), stages=2, micro_batches=8, granularity=16)
        refining = replace(ENDLESS, refine_s=np.inf)
        problems = candidates(base, (1, 2, 3))
        on_grid = choose(problems, ENDLESS)
        together = choose(problems, refining)
        alone = [choose([p], refining).cost.length_s for p in problems]
        assert together.cost.length_s <= on_grid.cost.length_s
        near = [
            own
            for own, t in zip(alone, together.search_log, strict=True)
            if t.step_s and t.step_s <= on_grid.cost.length_s
        ]
        assert together.cost.length_s <= min(near) * (1 + 1e-9)
