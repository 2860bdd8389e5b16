"""Online training: it reaches proven optima of small problems, the same with the same seed, and can be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.online.planner import OnlineOptions, Trained, agent_config, train_online
from automap_models.planners.online.search import OnlineRound
from automap_models.planners.registry import make_planner
from automap_models.resources import conf_dir


def problem(seed: int, n: int = 14, memory: float = 1e18) -> StagedProblem:
    """Three stages on three nodes of three devices."""
    rng = np.random.default_rng(seed)
    profile = Profile.create(rng.uniform(0.1, 1, n), rng.uniform(0.1, 2, n) * 1e8, rng.uniform(0, 1, n) * 2e8)
    return StagedProblem(profile, Cluster(3, 3, 5e10, 1e9, memory), 3, 8, granularity=n)


def optimum_s(asked: StagedProblem, radius: int) -> float:
    """The shortest plan with device cuts within the radius of (3, 6), by trying all of them."""
    near = (range(3 - radius, 4 + radius), range(6 - radius, 7 + radius))
    plans = (
        StagedPlan(cuts, devices, asked.micro_batches, "all")
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
    assert trained.optimum.value == pytest.approx(expected, rel=1e-9)
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


def test_a_training_ends_once_the_look_ahead_knows_that_no_plan_is_shorter() -> None:
    """Of two stages it knows the length of every plan."""
    asked = StagedProblem(problem(0).profile, Cluster(2, 4, 5e10, 1e9, 1e18), 2, 8, granularity=14)
    trained = train_online(asked, OnlineOptions(radius=3))
    plans = (StagedPlan((cut,), (device,), 8, "all") for cut in range(13) for device in range(1, 8))
    assert len(trained.rounds) == 1
    assert trained.rounds[0].best_s == pytest.approx(min(plan_cost(asked, plan).length_s for plan in plans), rel=1e-9)


# --- the agent's file --------------------------------------------------------------------------------------------


def test_an_unknown_agent_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="choose from default, paper"):
        train_online(problem(0), OnlineOptions(agent="rainbow"))


def test_the_papers_hyper_parameters_are_shipped() -> None:
    """Auto-MAP §5.1, as printed."""
    paper = agent_config("paper")
    agent, learner = paper.agent, paper.learner
    assert (agent.gamma, agent.double, agent.epsilon_start, agent.epsilon_end) == (0.6, True, 1.0, 0.1)
    assert agent.epsilon_iterations == 10_000
    assert (learner.batch, learner.learning_rate, learner.replay, learner.target_every) == (64, 1e-3, 2_000, 100)
    assert (learner.alpha, learner.beta) == (0.2, 0.6)
    assert (paper.look_ahead, paper.reward, paper.around) == (False, "1/L", 0)


def test_an_agent_of_ones_own_is_a_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    document = yaml.safe_load((conf_dir() / "online" / "default.yaml").read_text(encoding="utf-8"))
    own.write_text(yaml.safe_dump(document | {"episodes": 20, "round": 4, "around": 6}), encoding="utf-8")
    trained = train_online(problem(1), OnlineOptions(agent=own))
    assert [len(each.lengths_s) for each in trained.rounds] == [10, 10]


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a missing key": (lambda d: d.pop("around"), "[$][.]around is missing"),
    "an unknown key": (lambda d: d["agent"].update(noisy=True), "unknown key 'noisy'"),
    "another reward": (lambda d: d.update(reward="L"), "reward is 'L', not 1/L or ideal/L"),
    "what only the look-ahead can": (lambda d: d.update(look_ahead=False), "around is 32 without look_ahead"),
    "a round that fills the memory": (lambda d: d.update(round=10**9), "round is 1000000000, not a whole number ≤ 256"),
    "a batch that fills the memory": (
        lambda d: d["learner"].update(batch=10**9),
        "batch is 1000000000, not a whole number ≤ 1024",
    ),
    "a share beyond one": (lambda d: d["agent"].update(epsilon_start=1.5), "epsilon_start is 1.5"),
    "logarithms of discounted values": (lambda d: d["agent"].update(gamma=0.6), "log_values with gamma 0.6"),
    "no rate": (lambda d: d["learner"].update(learning_rate=float("inf")), "not valid YAML in line"),
    "no flag": (lambda d: d.update(look_ahead="perhaps"), "look_ahead is 'perhaps'"),
    "no section": (lambda d: d.update(learner=7), "[$][.]learner is 7"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused(wrong: str, tmp_path: Path) -> None:
    spoil, said = WRONG[wrong]
    document = yaml.safe_load((conf_dir() / "online" / "default.yaml").read_text(encoding="utf-8"))
    spoil(document)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        agent_config(tmp_path / "mine.yaml")
