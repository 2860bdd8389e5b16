"""The explorer against every plan of a small model, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from automap_models.core.constraints import Constraints, Pin
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.portfolio.candidate import KINDS, Candidate, rank
from automap_models.planners.portfolio.explain import least_memory
from automap_models.planners.portfolio.explore import Exploration, ExploreConfig, ExplorePlanner
from automap_models.planners.portfolio.space import PlanningSpace, possible_stages, staged_problems

PATIENT = ExploreConfig(budget_s=600.0)
FORBIDDEN = [(), ("operator",), ("pipeline",), ("data",), ("operator", "pipeline"), ("data", "pipeline")]


def explore(space: PlanningSpace, config: ExploreConfig = PATIENT) -> Exploration:
    """What the planner's result says; raises where nothing fits."""
    result = ExplorePlanner(config).solve(space)
    plan, exploration = result.required_plan(), result.facts["exploration"]
    assert (plan, result.cost) == (exploration.best.plan, exploration.best.cost)
    return exploration


def decisions(exploration: Exploration) -> list[object]:
    """All of an exploration but how long it took."""
    plans = [
        (candidate.plan, candidate.problem.micro_batches, candidate.proven) for candidate in exploration.candidates
    ]
    return [plans, exploration.missing, exploration.proven, exploration.notes]


@pytest.fixture(scope="module")
def costed(make_model, every_plan, pair):
    """A function: every plan of a model on devices of a memory, with its problem and its cost."""

    @cache
    def of(seed, memory):
        space = PlanningSpace(make_model(seed), replace(pair, memory=memory), 16)
        return [(problem, plan, plan_cost(problem, plan)) for problem, plan in every_plan(space)]

    return of


def shortest(costed_plans, constraints):
    """Length of the shortest plan that fits by brute force, of all kinds and of each."""
    best = dict.fromkeys(("all", *KINDS), math.inf)
    for problem, plan, cost in costed_plans:
        possible = constraints.allow(problem.profile, problem.cluster.devices, problem.stages)
        if possible and cost.feasible and plan.check_valid(replace(problem, constraints=constraints))[0]:
            for kind in ("all", Candidate(problem, plan, cost).kind):
                best[kind] = min(best[kind], cost.length_s)
    return best


@pytest.mark.parametrize("forbidden", FORBIDDEN)
@pytest.mark.parametrize(("seed", "memory"), [(0, 32e9), (1, 16e9), (2, 9e9)])
def test_no_plan_is_shorter_by_brute_force(forbidden, seed, memory, make_model, costed, pair):
    space = PlanningSpace(make_model(seed), replace(pair, memory=memory), 16)
    constraints = Constraints(forbidden=frozenset(forbidden))
    expected = shortest(costed(seed, memory), constraints)
    space = replace(space, constraints=constraints)
    if expected["all"] == math.inf:
        with pytest.raises(Infeasible):
            explore(space)
        return
    exploration = explore(space)
    assert exploration.best.fits
    assert exploration.best.step_s == pytest.approx(expected["all"], rel=1e-9)
    assert exploration.proven.proof == "exact"
    assert exploration.proven.value == pytest.approx(expected["all"], rel=1e-9)
    for kind in ("data", "operator", "pipeline"):  # hybrids only matter where they win
        lengths = [
            candidate.step_s for candidate in exploration.candidates if candidate.kind == kind and candidate.fits
        ]
        assert min(lengths, default=math.inf) == pytest.approx(expected[kind], rel=1e-9)
    for candidate in exploration.candidates:
        assert candidate.plan.check_valid(replace(candidate.problem, constraints=constraints)) == (True, "")


@pytest.mark.parametrize("seed", range(3))
def test_every_figure_is_the_cost_model_s(seed, make_model, pair):
    exploration = explore(PlanningSpace(make_model(seed), pair, 16), PATIENT)
    assert {candidate.kind for candidate in exploration.candidates} >= {"data", "operator", "pipeline"}
    for candidate in exploration.candidates:
        assert candidate.plan.check_valid(candidate.problem) == (True, "")
        again = plan_cost(candidate.problem, candidate.plan)
        assert (candidate.step_s, candidate.memory_bytes) == (again.length_s, again.memory_bytes.max())
        assert candidate.parts.step_s == pytest.approx(again.length_s)
        assert candidate.parts.memory_bytes == pytest.approx(again.memory_bytes.max())
        if candidate.kind in ("data", "pipeline"):
            assert plan_cost(candidate.problem, candidate.plan).length_s == pytest.approx(candidate.step_s)


def test_data_parallelism_by_hand(make_model, pair):
    """16 samples on 4 devices in one micro-batch: 4 times the profiled 4 samples, a quarter on each device."""
    space = PlanningSpace(make_model(), pair, 16)
    (data,) = (candidate for candidate in explore(space, PATIENT).candidates if candidate.kind == "data")
    profile = space.model.profile
    ring = 2 * 0.5 / 100e9 + 2 * 0.5 / 10e9
    assert data.plan.micro_batches == 1  # of equal lengths the largest micro-batches
    assert data.step_s == pytest.approx(profile.C.sum() + ring * profile.W.sum())
    assert data.parts.gradients_s == pytest.approx(ring * profile.W.sum())
    assert data.parts.state_bytes == pytest.approx(4 * profile.W.sum())
    assert data.parts.stash_bytes == pytest.approx(profile.stash.sum())


def test_one_stage_takes_smaller_micro_batches_where_memory_is_short(make_model, pair):
    space = PlanningSpace(make_model(scale=1e8), pair, 64)
    needed = 4 * space.model.profile.W.sum() + 1.01 * space.model.profile.stash.sum()
    (data,) = (
        candidate
        for candidate in explore(PlanningSpace(space.model, replace(pair, memory=needed), 64), PATIENT).candidates
        if candidate.kind == "data"
    )
    assert data.fits
    assert data.plan.micro_batches == 4


def test_the_same_question_has_the_same_answer(make_model, pair):
    space = PlanningSpace(make_model(3), pair, 16)
    assert decisions(explore(space, PATIENT)) == decisions(explore(space, PATIENT))


def test_plans_are_ranked_by_length_those_that_do_not_fit_last(make_model, pair):
    exploration = explore(PlanningSpace(make_model(2), replace(pair, memory=12e9), 16), PATIENT)
    assert list(exploration.candidates) == rank(list(reversed(exploration.candidates)))
    fitting = [candidate.fits for candidate in exploration.candidates]
    assert fitting == sorted(fitting, reverse=True)
    assert not all(fitting)
    lengths = [candidate.step_s for candidate in exploration.candidates if candidate.fits]
    assert lengths == sorted(lengths)


def test_a_profile_without_operators_has_data_parallelism_and_pipelines(make_model, pair):
    exploration = explore(PlanningSpace(make_model(partitioned=False), pair, 16), PATIENT)
    assert {candidate.kind for candidate in exploration.candidates} == {"data", "pipeline"}
    assert {missing.kind: missing.reason for missing in exploration.missing} == dict.fromkeys(
        ("operator", "hybrid"), "a profile has no operations to partition"
    )


def test_without_a_batch_size_there_are_sixteen_micro_batches(make_model, pair):
    model = make_model()
    silent = replace(model, profile=replace(model.profile, meta={}))
    exploration = explore(PlanningSpace(silent, pair), PATIENT)
    assert {candidate.plan.micro_batches for candidate in exploration.candidates} == {16}
    with pytest.raises(BadInput, match="`microbatch_size`"):
        PlanningSpace(silent, pair, 16)


# --- constraints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(pins=(Pin("block_1/mlp", 1),)),
        Constraints(together=("block_*",)),
        Constraints(pins=(Pin("head", 2),), together=("block_1",)),
        Constraints(max_stages=2),
        Constraints(equal_replicas=True),
        Constraints(cut_at="block_*"),
        Constraints(cut_at="block_*", equal_replicas=True),
    ],
)
def test_constrained_plans_are_the_shortest_that_satisfy_them(constraints, make_model, costed, pair):
    space = PlanningSpace(
        make_model(5), replace(pair, memory=12e9), 16, constraints=Constraints(max_stages=constraints.max_stages)
    )
    exploration = explore(replace(space, constraints=constraints))
    assert exploration.best.plan.check_valid(exploration.best.problem) == (True, "")
    assert exploration.best.step_s == pytest.approx(shortest(costed(5, 12e9), constraints)["all"], rel=1e-9)


def test_constraints_that_contradict_one_another_are_refused_with_the_pair(make_model, pair):
    constraints = Constraints(pins=(Pin("block_0/mlp", 2), Pin("head", 1)))
    with pytest.raises(BadInput, match=r"`pins='block_0/mlp=2'` .*`pins='head=1'`"):
        explore(replace(PlanningSpace(make_model(), pair, 16), constraints=constraints))


@pytest.mark.parametrize(
    ("forbidden", "nodes", "kind", "reason"),
    [
        (("data",), 2, "data", "ruled out by `forbidden='data'`"),
        (("operator",), 2, "hybrid", "ruled out by `forbidden='operator'`"),
        (("data", "pipeline"), 2, "hybrid", "ruled out by `forbidden='pipeline'`"),
        (("data",), 3, "operator", "no dimension divides by all 6 devices, and `forbidden='data'` allows no replicas"),
    ],
)
def test_what_is_ruled_out_says_by_what(forbidden, nodes, kind, reason, make_model, pair):
    constraints = Constraints(forbidden=frozenset(forbidden))
    exploration = explore(replace(PlanningSpace(make_model(), replace(pair, nodes=nodes), 24), constraints=constraints))
    assert {missing.kind: missing.reason for missing in exploration.missing}[kind] == reason


def test_devices_that_stages_cannot_share_out_are_said(make_model, pair):
    """Without replicas and partitioned operators a stage has one device: two of them cannot have four."""
    constraints = Constraints(max_stages=2, forbidden=frozenset({"data"}))
    with pytest.raises(Infeasible, match="a sample and is as `max_stages=2` and `forbidden='data'` ask"):
        explore(PlanningSpace(make_model(partitioned=False), pair, 4, constraints=constraints))


# --- what would fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("forbidden", [(), ("operator",), ("pipeline",)])
def test_the_least_memory_is_that_of_all_plans(seed, forbidden, make_model, costed, pair):
    space = PlanningSpace(make_model(seed), replace(pair, memory=1e9), 16)
    constraints = Constraints(forbidden=frozenset(forbidden))
    needed = [
        cost.memory_bytes.max()
        for problem, plan, cost in costed(seed, 1e9)
        if plan.check_valid(replace(problem, constraints=constraints))[0]
    ]
    assert least_memory(replace(space, constraints=constraints))[0] == pytest.approx(min(needed), rel=2e-3)


def test_what_is_said_to_fit_does(make_model, pair):
    model = make_model(1, scale=4e9)
    with pytest.raises(Infeasible, match=r"no plan fits the 16 GB .* devices with [\d.]+ GB would fit") as raised:
        explore(PlanningSpace(model, replace(pair, memory=16e9), 16), PATIENT)
    message = str(raised.value)
    gigabytes = float(message.partition("devices with ")[2].split()[0])
    assert explore(PlanningSpace(model, replace(pair, memory=gigabytes * 1.001e9), 16), PATIENT).best.fits
    with pytest.raises(Infeasible):
        explore(PlanningSpace(model, replace(pair, memory=gigabytes * 0.99e9), 16), PATIENT)
    nodes = int(message.partition("GB would fit")[2].partition(", ")[2].split()[0])
    assert explore(PlanningSpace(model, replace(pair, memory=16e9, nodes=nodes), 16), PATIENT).best.fits
    with pytest.raises(Infeasible):
        explore(PlanningSpace(model, replace(pair, memory=16e9, nodes=nodes - 1), 16), PATIENT)


def test_a_pipeline_is_found_without_time_for_proofs(make_model, pair):
    """Only pipelines fit, which tables and moves find without any time for proofs."""
    space = PlanningSpace(make_model(1), replace(pair, memory=9e9), 16)
    constraints = Constraints(forbidden=frozenset({"operator"}))
    assert explore(replace(space, constraints=constraints)).best.kind == "pipeline"
    hasty = explore(replace(space, constraints=constraints), ExploreConfig(budget_s=1e-9))
    assert (hasty.best.kind, hasty.proven.proof) == ("pipeline", "relaxation")


def test_a_search_without_time_claims_no_more_than_it_knows(make_model, pair):
    space = PlanningSpace(make_model(2), pair, 16)
    hasty, patient = explore(space, ExploreConfig(budget_s=1e-9)), explore(space, PATIENT)
    assert hasty.proven.proof == "relaxation"
    assert hasty.proven.value <= patient.best.step_s <= hasty.best.step_s * (1 + 1e-9)


def test_stages_that_cannot_share_out_the_devices_are_passed_over(make_model, pair):
    """With one sample at a time no stage has two replicas, so that two stages cannot have six devices between them."""
    space = PlanningSpace(
        make_model(partitioned=False), replace(pair, nodes=3), 16, constraints=Constraints(max_stages=2)
    )
    assert any(possible_stages(problem) is None for problem in staged_problems(space))
    exploration = explore(space, PATIENT)
    assert exploration.proven.value == exploration.best.step_s


def test_clusters_beyond_the_tables_are_refused(make_model, pair):
    with pytest.raises(BadInput, match="at most 512"):
        explore(PlanningSpace(make_model(), replace(pair, nodes=300)))


def test_too_few_samples_for_any_plan_are_said(make_model, pair):
    with pytest.raises(Infeasible, match="1 to 4 stages in 1 micro-batch gives each of the 4 devices"):
        explore(
            PlanningSpace(
                make_model(partitioned=False), pair, 1, constraints=Constraints(forbidden=frozenset({"pipeline"}))
            )
        )


# --- why a plan loses --------------------------------------------------------------------------------------------


def test_the_reason_names_the_largest_loss(make_model, pair):
    slow = explore(PlanningSpace(make_model(scale=20e9), replace(pair, inter=1e9, memory=1e12), 16), PATIENT)
    (data,) = (candidate for candidate in slow.candidates if candidate.kind == "data")
    assert slow.reason(data).startswith("gradient all-reduce of ")
    assert "over 2 nodes" in slow.reason(data)
    share = round(100 * data.parts.gradients_s / data.step_s)
    assert slow.reason(data).endswith(f"{share} % of the step")
    assert slow.reason(slow.best) == ""


def test_a_plan_that_does_not_fit_says_what_fills_it(make_model, pair):
    exploration = explore(PlanningSpace(make_model(2), replace(pair, memory=12e9), 16), PATIENT)
    (data,) = (candidate for candidate in exploration.candidates if candidate.kind == "data")
    held = f"{data.memory_bytes / 1e9:.3g} GB of 12.0 GB, {data.parts.state_bytes / 1e9:.3g} GB of it training state"
    assert exploration.reason(data) == f"does not fit: {held}"


def test_lengths_are_finite(make_model, pair):
    assert np.isfinite(
        [candidate.step_s for candidate in explore(PlanningSpace(make_model(), pair, 16), PATIENT).candidates]
    ).all()
