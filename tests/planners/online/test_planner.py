"""Online training: it reaches proven optima of small problems, the same with the same seed, and can be interrupted."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.plan import PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import Profile
from automap_models.cost.pipeline import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.online.planner import OnlineOptions, Trained, train_online
from automap_models.planners.online.search import OnlineRound
from automap_models.planners.registry import make_planner


def problem(seed: int, n: int = 14, memory: float = 1e18) -> PipelineProblem:
    """Three stages on three nodes of three devices."""
    rng = np.random.default_rng(seed)
    profile = Profile.create(rng.uniform(0.1, 1, n), rng.uniform(0.1, 2, n) * 1e8, rng.uniform(0, 1, n) * 2e8)
    return PipelineProblem(profile, Cluster(3, 3, 5e10, 1e9, memory), 3, 8, granularity=n)


def optimum_s(asked: PipelineProblem, radius: int) -> float:
    """The shortest plan with device cuts within the radius of (3, 6), by trying all of them."""
    near = (range(3 - radius, 4 + radius), range(6 - radius, 7 + radius))
    plans = (
        PipelinePlan(cuts, devices, asked.micro_batches, "all")
        for cuts in combinations(range(len(asked.profile) - 1), 2)
        for devices in product(*near)
        if devices[0] < devices[1]
    )
    costs = (plan_cost(asked, plan) for plan in plans)
    return min(cost.length_s for cost in costs if cost.feasible)


@pytest.mark.parametrize("seed", range(3))
def test_the_agent_and_the_exact_search_find_the_optimum_of_all_plans_on_the_candidates(seed: int) -> None:
    trained = train_online(problem(seed), OnlineOptions(radius=1, episodes=480, seed=seed))
    expected = optimum_s(problem(seed), 1)
    assert trained.optimum.proof == "exact"
    assert trained.optimum.bound_s == pytest.approx(expected, rel=1e-9)
    assert plan_cost(problem(seed), trained.plan).length_s == pytest.approx(expected, rel=1e-9)
    assert trained.plan.check_valid(problem(seed)) == (True, "")


def test_the_papers_agent_learns_to_plan_well() -> None:
    asked = problem(1)
    trained = train_online(asked, OnlineOptions(agent="paper", radius=1, episodes=150))
    assert all(len(each.lengths_s) == 1 and each.greedy_s is None for each in trained.rounds)
    assert trained.pivots == 2 * 3 * 13
    assert trained.gap < 0.2


def test_the_same_seed_gives_the_same_rounds_and_another_one_others() -> None:
    def rounds(seed: int) -> tuple[OnlineRound, ...]:
        return train_online(problem(4), OnlineOptions(episodes=96, seed=seed)).rounds

    assert rounds(1) == rounds(1) != rounds(2)


def test_a_warm_start_is_never_made_worse() -> None:
    asked = problem(2)
    best = train_online(asked, OnlineOptions(episodes=480)).plan
    again = train_online(asked, OnlineOptions(episodes=48, warm_start=best))
    assert plan_cost(asked, again.plan).length_s <= plan_cost(asked, best).length_s


def test_ctrl_c_gives_the_best_plan_so_far() -> None:
    def interrupt(each: OnlineRound, total: int) -> None:
        assert total == 10_000
        if each.episodes >= 96:
            raise KeyboardInterrupt

    trained: Trained = train_online(problem(3), OnlineOptions(episodes=10_000, watch=interrupt))
    assert trained.interrupted
    assert trained.rounds[-1].episodes == 96
    assert plan_cost(problem(3), trained.plan).length_s == trained.rounds[-1].best_s


def test_the_registry_knows_it() -> None:
    plan = make_planner("online").plan(problem(0))
    assert plan.planner == "online"
    assert plan.check_valid(problem(0)) == (True, "")


def test_what_fits_nowhere_is_said_before_training() -> None:
    with pytest.raises(Infeasible, match="none of the plans"):
        train_online(problem(0, memory=1e6))


def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown agent 'rainbow'"):
        train_online(problem(0), OnlineOptions(agent="rainbow"))
