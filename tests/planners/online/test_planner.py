"""Online training: it reaches proven optima of small problems, the same with the same seed, and can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline, Progress
from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, agent_config, at_instructions
from automap_models.planners.online.search import OnlineRound
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.relaxation import lower_bound_s
from automap_models.resources import conf_dir


def problem(seed: int, n: int = 14, memory: float = 1e18) -> StagedProblem:
    """Three stages on three nodes of three devices."""
    rng = np.random.default_rng(seed)
    profile = Profile.create(rng.uniform(0.1, 1, n), rng.uniform(0.1, 2, n) * 1e8, rng.uniform(0, 1, n) * 2e8)
    return StagedProblem(profile, Cluster(3, 3, 5e10, 1e9, memory), 3, 8, granularity=n)


def train(staged: StagedProblem, **options: Any) -> Result[StagedProblem, StagedPlan]:
    return OnlinePlanner(OnlineConfig(**options)).solve(staged)


def optimum_s(staged: StagedProblem, radius: int) -> float:
    """The shortest plan with device cuts within the radius of (3, 6), by trying all of them."""
    near = (range(3 - radius, 4 + radius), range(6 - radius, 7 + radius))
    plans = (
        StagedPlan(cuts, devices, staged.micro_batches, "all")
        for cuts in combinations(range(len(staged.profile) - 1), 2)
        for devices in product(*near)
        if devices[0] < devices[1]
    )
    costs = (plan_cost(staged, plan) for plan in plans)
    return min(cost.length_s for cost in costs if cost.feasible)


@pytest.mark.parametrize("seed", range(3))
def test_the_agent_and_the_exact_search_reach_the_optimum_of_all_plans_on_the_candidates(seed: int) -> None:
    result = train(problem(seed), radius=1, episodes=480, seed=seed, prove_s=10.0)
    expected = optimum_s(problem(seed), 1)
    assert result.facts["candidate_bound"].proof == "exact"
    assert result.facts["candidate_bound"].value == pytest.approx(expected, rel=1e-9)
    assert result.cost.length_s == pytest.approx(expected, rel=1e-9)
    assert result.required_plan().check_valid(problem(seed)) == (True, "")
    assert "0.00 % above the shortest plan on these candidates" in result.notes[1]


def test_the_papers_agent_learns_to_plan_well() -> None:
    result = train(problem(1), agent="paper", radius=1, episodes=60, prove_s=10.0)
    assert all(len(entry.lengths_s) == 1 and entry.greedy_s is None for entry in result.search_log)
    assert (result.facts["pivots"], result.facts["episodes"]) == (2 * 3 * 13, 60)
    assert result.cost.length_s < 1.2 * result.facts["candidate_bound"].value


def test_the_same_seed_gives_the_same_rounds_and_another_one_others() -> None:
    def rounds(seed: int) -> tuple[OnlineRound, ...]:
        return train(problem(4), episodes=96, seed=seed).search_log

    assert rounds(1) == rounds(1) != rounds(2)


def test_a_warm_start_is_never_made_worse() -> None:
    best = train(problem(2), episodes=480)
    again = train(problem(2), episodes=48, warm_start=best.plan)
    assert again.cost.length_s <= best.cost.length_s


def test_a_warm_start_on_another_grid_is_the_same_plan_and_one_of_another_problem_is_refused() -> None:
    coarse = replace(problem(2), granularity=4)
    start = make_planner("exact").plan(coarse)
    assert start.coarse_cuts is not None
    result = train(problem(2), episodes=48, warm_start=start)
    assert result.cost.length_s <= plan_cost(coarse, start).length_s
    assert result.required_plan().check_valid(problem(2)) == (True, "")
    with pytest.raises(BadInput, match="the warm start: 8 micro-batches instead of 9"):
        train(replace(problem(2), micro_batches=9), warm_start=start)


def test_ctrl_c_gives_the_best_plan_so_far_and_a_note() -> None:
    def interrupt(news: Progress) -> None:
        assert news.total == 10_000
        if (news.done or 0) >= 96:
            raise KeyboardInterrupt

    result = OnlinePlanner(OnlineConfig(episodes=10_000)).solve(problem(3), watch=interrupt)
    assert result.facts["interrupted"]
    assert result.search_log[-1].episodes == 96
    assert result.cost.length_s == result.search_log[-1].best_s
    assert result.notes[0] == "interrupted: the best plan of 96 episodes, not the end of the training"


def test_a_deadline_ends_the_training_with_the_best_plan_so_far() -> None:
    planner = OnlinePlanner(OnlineConfig(agent="paper", episodes=10**6, prove_s=10.0))
    planner.solve(problem(3), deadline=Deadline(0.0))  # imports torch
    begun = time.process_time()
    result = planner.solve(problem(3), deadline=Deadline(0.5, time.process_time))
    assert time.process_time() - begun < 5.0
    assert result.status == "feasible"
    assert 0 < result.facts["episodes"] < 10**6


def test_without_time_to_train_the_look_ahead_s_first_plan_is_the_best_so_far() -> None:
    result = OnlinePlanner().solve(problem(3), deadline=Deadline(0.0))
    assert (result.status, result.search_log) == ("feasible", ())
    assert result.required_plan().check_valid(problem(3)) == (True, "")


def test_without_time_the_paper_s_agent_has_no_plan_and_rules_none_out() -> None:
    result = OnlinePlanner(OnlineConfig(agent="paper")).solve(problem(3), deadline=Deadline(0.0))
    assert (result.plan, result.status) == (None, "stopped")
    assert "none of 0 plans" in str(result.reason)


def test_the_registry_knows_it_and_refuses_what_it_does_not_know() -> None:
    planner = make_planner("online", episodes=48, radius=1)
    assert planner.plan(problem(0)).planner == "online"
    with pytest.raises(BadInput, match="planner online: has no option 'beam'"):
        make_planner("online", beam=4)


def test_what_fits_nowhere_is_proven_before_training() -> None:
    result = train(problem(0, memory=1e6))
    assert (result.plan, result.status) == (None, "infeasible")
    assert "none of the plans" in str(result.reason)


def test_more_stages_than_instructions_that_train_leave_no_candidate_but_prove_nothing() -> None:
    whole = problem(0)
    W = np.zeros(14)
    W[:2] = 1e8
    few = replace(whole, profile=Profile.create(whole.profile.C, whole.profile.A, W))
    result = train(few)
    assert (result.plan, result.status) == (None, "stopped")
    assert "only 2 instruction(s)" in str(result.reason)


def test_the_bound_holds_for_cuts_off_the_problem_s_grid() -> None:
    """It was once that of plans on the grid: here a grid of 3 points, with no plan as short as the best of all."""
    coarse = replace(problem(8), granularity=3)
    shortest_s = optimum_s(problem(8), 2)
    assert lower_bound_s(coarse) > 1.05 * shortest_s
    bound = train(coarse, radius=2, episodes=48).facts["candidate_bound"]
    assert bound.proof == "relaxation"
    assert bound.value <= shortest_s


def test_a_training_ends_once_the_look_ahead_knows_that_no_plan_is_shorter() -> None:
    """Of two stages it knows the length of every plan."""
    two = StagedProblem(problem(0).profile, Cluster(2, 4, 5e10, 1e9, 1e18), 2, 8, granularity=14)
    result = train(two, radius=3)
    plans = (StagedPlan((cut,), (device,), 8, "all") for cut in range(13) for device in range(1, 8))
    assert len(result.search_log) == 1
    assert result.search_log[0].best_s == pytest.approx(min(plan_cost(two, plan).length_s for plan in plans), rel=1e-9)


def test_rounding_does_not_keep_a_training_going_whose_best_plan_is_proven() -> None:
    """The bound of the best plan's own pivot was below its length by rounding, and all 2,064 episodes were played."""
    profile = read_profile(Path(__file__).resolve().parents[3] / "examples" / "t5_base_v100.npz")
    two = at_instructions(StagedProblem(profile, read_cluster("A"), 2, state_factor=2.0))
    assert len(train(two).search_log) == 1


# --- the agent's file --------------------------------------------------------------------------------------------


def test_an_unknown_agent_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="choose from default, paper"):
        make_planner("online", agent="rainbow")


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
    result = train(problem(1), agent=own)
    assert [len(entry.lengths_s) for entry in result.search_log] == [10, 10]


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
    spoil, words = WRONG[wrong]
    document = yaml.safe_load((conf_dir() / "online" / "default.yaml").read_text(encoding="utf-8"))
    spoil(document)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        agent_config(tmp_path / "mine.yaml")
