"""A stage has to earn its place: what a plan takes without it decides, not how little it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.contender import Contender, Rated
from automap_models.planners.portfolio.gain import (
    fewest_stages,
    what_more_stages_gain,
    what_small_stages_gain,
    with_stages_merged,
)
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.simulate.step import step_cost

MakeProblem = Callable[..., StagedProblem]


def even(stages: int, compute: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> StagedProblem:
    """Four instructions on a node of four devices, between which nothing takes time."""
    profile = Profile.create(
        np.array(compute), np.full(4, 1.0), np.full(4, 1.0), np.array(compute) / 3, np.full(4, 1.0)
    )
    return StagedProblem(profile, Cluster(1, 4, 1e15, 1e15, 1e18, "even"), stages, 4, schedule="1f1b")


def rated(problem: StagedProblem, *plans: StagedPlan) -> tuple[list[Contender], list[Rated]]:
    """Contenders of one to as many stages as the problem, and the plans with theirs."""
    contenders = [Contender(replace(problem, stages=S)) for S in range(1, problem.stages + 1)]
    own = [contenders[plan.stages - 1] for plan in plans]
    return contenders, [(one.costs(plan).step_s, one, plan) for one, plan in zip(own, plans, strict=True)]


def test_of_plans_within_the_gain_the_fewest_stages_win(make_problem: MakeProblem) -> None:
    contender = Contender(make_problem(0))
    one, two, three = (StagedPlan(tuple(range(S - 1)), tuple(range(1, S)), 4, "x") for S in (1, 2, 3))
    plans = [(1.004, contender, two), (1.0, contender, three), (1.2, contender, one)]
    assert fewest_stages(plans, 0.0)[1] is three
    assert fewest_stages(plans, 0.005)[1] is two
    assert fewest_stages(plans, 0.003)[1] is three
    assert fewest_stages(plans, 0.5)[1] is one


def test_stages_are_merged_as_long_as_the_step_stays_near() -> None:
    """A stage of no work behind two of even work: with it merged the step is as short, with all merged it is too."""
    problem = even(3, (1.0, 1.0, 1.0, 0.0))
    contenders, plans = rated(problem, StagedPlan((1, 2), (2, 3), 4, "x"))
    merged = list(with_stages_merged(plans, contenders, 1.0, 1.0, Deadline()))
    assert [plan.stages for _, _, plan in merged] == [2]
    step_s, contender, plan = merged[0]
    assert step_s == step_cost(contender.problem, plan).step_s <= plans[0][0]
    assert not list(with_stages_merged(merged, contenders, 1.0, 1.0, Deadline()))  # one stage is there anyway
    assert not list(with_stages_merged(plans, contenders[2:], 1.0, 1.0, Deadline()))  # two are not asked for


@pytest.mark.parametrize("seed", range(6))
def test_no_two_stages_of_what_is_chosen_can_be_merged_for_less_than_the_gain(
    seed: int, make_problem: MakeProblem
) -> None:
    problem = replace(make_problem(seed, max_n=12, max_devices=6, max_stages=4), schedule="1f1b")
    space = PlanningSpace(ProfiledModel(problem.profile), problem.cluster, schedule="1f1b")
    result = AutoPlanner(AutoConfig(min_gain=0.02)).solve(space)
    if result.plan is None:
        return
    plan, chosen = result.plan, result.problem
    for s in range(plan.stages - 1):
        cuts, devices = (of[:s] + of[s + 1 :] for of in (plan.cuts, plan.device_cuts))
        fewer = replace(chosen, stages=plan.stages - 1)
        cost = step_cost(fewer, StagedPlan(cuts, devices, plan.micro_batches, "merged"))
        # What is chosen may itself be longer than the shortest plan of all, by less than the gain.
        assert not cost.feasible or cost.step_s > result.cost.step_s


def test_the_report_says_what_stages_that_compute_little_gain() -> None:
    problem = even(3, (1.0, 1.0, 1.0, 1e-4))
    two, three = StagedPlan((1,), (2,), 4, "x"), StagedPlan((1, 2), (2, 3), 4, "x")
    _, plans = rated(problem, two, three)
    (one_s, _, _), (own_s, winner, plan) = plans
    longer = f"{100 * (one_s / own_s - 1):.2g} % longer"
    known = [(step_s, other.stages) for step_s, _, other in plans]
    assert list(what_small_stages_gain(winner.problem, plan, own_s, known)) == [
        "stage 2 computes less than 10 % of an even share of the work: the shortest plan known with 2 rather than 3 "
        f"stages is {longer}"
    ]
    assert not list(what_small_stages_gain(winner.problem, plan, own_s, known[1:]))  # nothing is known of fewer stages
    assert not list(what_small_stages_gain(plans[0][1].problem, two, one_s, known))


def test_the_report_says_what_more_stages_would_gain() -> None:
    _, plans = rated(even(2), StagedPlan((), (), 4, "x"), StagedPlan((1,), (2,), 4, "x"))
    (one_s, one, plan), (_, two, other) = plans
    assert list(what_more_stages_gain(one, plan, [(one_s, one, plan), (0.996 * one_s, two, other)])) == [
        "2 stages rather than 1 would shorten the step by 0.4 % only, which is less than a stage has to"
    ]
    assert not list(what_more_stages_gain(one, plan, [(one_s, one, plan), (1.1 * one_s, two, other)]))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_is_no_longer_than_if_its_stages_had_been_asked_for(
    seed: int, make_problem: MakeProblem
) -> None:
    problem = replace(make_problem(40 + seed, max_n=16, max_devices=6, max_stages=4), schedule="1f1b")
    space = PlanningSpace(ProfiledModel(problem.profile), problem.cluster, schedule="1f1b")
    planner = AutoPlanner(AutoConfig(certify_s=5.0, refine_s=2.0))
    result = planner.solve(space)
    if result.plan is None:
        return
    fixed = planner.solve(replace(space, stages=(result.plan.stages,)))
    assert fixed.plan is not None
    assert result.cost.step_s <= fixed.cost.step_s * (1 + 1e-9)
