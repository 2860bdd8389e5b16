"""Online training: it comes near proven optima, the same with the same seed, and can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.planners.base import Deadline, Progress
from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, agent_config
from automap_models.planners.online.search import COPIES, OnlineRound
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.search import ExactPlanner
from automap_models.resources import conf_dir

FEW = 6 * COPIES
"""Episodes of a round of the default agent at most: six branches of each copy."""


def problem(seed: int, n: int = 14, memory: float = 1e18) -> StagedProblem:
    """Three stages on three nodes of three devices."""
    rng = np.random.default_rng(seed)
    profile = Profile.create(rng.uniform(0.1, 1, n), rng.uniform(0.1, 2, n) * 1e8, rng.uniform(0, 1, n) * 2e8)
    return StagedProblem(profile, Cluster(3, 3, 5e10, 1e9, memory), 3, 8, granularity=n)


def train(staged: StagedProblem, **options: Any) -> Result[StagedProblem, StagedPlan]:
    return OnlinePlanner(OnlineConfig(**options)).solve(staged)


@pytest.mark.parametrize("seed", range(3))
def test_the_agent_comes_near_the_optimum_and_the_exact_search_says_how_near(seed: int) -> None:
    result = train(problem(seed), episodes=4 * FEW, seed=seed, prove_s=10.0)
    expected = ExactPlanner().solve(problem(seed)).cost.length_s
    assert result.bound is not None and result.bound.proof == "exact"
    assert result.bound.value == pytest.approx(expected, rel=1e-9)
    assert expected * (1 - 1e-9) <= result.cost.length_s <= 1.05 * expected
    assert result.required_plan().check_valid(problem(seed)) == (True, "")
    assert "% above the shortest plan on the grid" in result.notes[1]


def test_the_papers_agent_plays_whole_episodes() -> None:
    result = train(problem(1), agent="paper", episodes=4 * COPIES)
    assert [len(entry.lengths_s) for entry in result.search_log] == [COPIES] * 4
    assert result.facts == {"episodes": 4 * COPIES, "interrupted": False}
    assert result.required_plan().check_valid(problem(1)) == (True, "")


def test_what_is_told_of_a_round_is_what_its_plans_take() -> None:
    for entry in train(problem(2), episodes=2 * FEW).search_log:
        finite = [length for length in (*entry.lengths_s, entry.greedy_s) if np.isfinite(length)]
        assert entry.best_s <= min(finite) * (1 + 1e-5)


def test_the_same_seed_gives_the_same_rounds_and_another_one_others() -> None:
    def rounds(seed: int) -> tuple[OnlineRound, ...]:
        return train(problem(4), episodes=FEW + 1, seed=seed).search_log

    assert rounds(1) == rounds(1) != rounds(2)


def test_a_warm_start_is_never_made_worse_on_whatever_grid_it_was_made() -> None:
    coarse = replace(problem(2), granularity=4)
    start = make_planner("exact").plan(coarse)
    result = train(problem(2), episodes=1, warm_start=start)
    assert result.cost.length_s <= plan_cost(coarse, start).length_s
    assert result.required_plan().check_valid(problem(2)) == (True, "")
    with pytest.raises(BadInput, match="the warm start: 8 micro-batches instead of 9"):
        train(replace(problem(2), micro_batches=9), warm_start=start)


def test_ctrl_c_gives_the_best_plan_so_far_and_a_note() -> None:
    def interrupt(news: Progress) -> None:
        raise KeyboardInterrupt

    result = OnlinePlanner(OnlineConfig(episodes=10_000)).solve(problem(3), watch=interrupt)
    assert result.facts["interrupted"]
    assert len(result.search_log) == 1
    assert result.cost.length_s == result.search_log[0].best_s
    assert (
        result.notes[0]
        == f"interrupted: the best plan of {result.facts['episodes']} episodes, not the end of the training"
    )


def test_a_deadline_ends_the_training_with_the_best_plan_so_far() -> None:
    planner = OnlinePlanner(OnlineConfig(agent="paper", episodes=10**6))
    planner.solve(problem(3), deadline=Deadline(0.0))  # imports torch
    result = planner.solve(problem(3), deadline=Deadline(0.5, time.process_time))
    assert result.status == "feasible"
    assert 0 < result.facts["episodes"] < 10**6


def test_without_time_there_is_no_plan_and_none_is_ruled_out() -> None:
    result = OnlinePlanner().solve(problem(3), deadline=Deadline(0.0))
    assert (result.plan, result.status) == (None, "stopped")
    assert "none of 0 plans" in str(result.reason)


def test_the_registry_knows_it_and_refuses_what_it_does_not_know() -> None:
    assert make_planner("online", episodes=1).plan(problem(0)).planner == "online"
    with pytest.raises(BadInput, match="planner online: has no option 'beam'"):
        make_planner("online", beam=4)


def test_what_fits_nowhere_is_proven_before_training() -> None:
    result = train(problem(0, memory=1e6))
    assert (result.plan, result.status) == (None, "infeasible")
    assert "none of the plans" in str(result.reason)


def test_one_stage_leaves_nothing_to_cut() -> None:
    with pytest.raises(BadInput, match="nothing to cut with 1 stage"):
        train(replace(problem(0), stages=1))


def test_a_problem_with_a_schedule_gets_the_plan_for_its_length_and_its_step() -> None:
    result = train(replace(problem(5), schedule="1f1b"), episodes=1)
    assert result.plan == train(problem(5), episodes=1).plan
    assert result.cost.simulated_s is not None and result.bound is None


# --- the agent's file --------------------------------------------------------------------------------------------


def test_an_unknown_agent_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="choose from default, paper"):
        make_planner("online", agent="rainbow")


def test_the_papers_hyper_parameters_are_shipped() -> None:
    """Auto-MAP §5.1, as printed."""
    paper = agent_config("paper")
    agent, learner = paper.agent, paper.learner
    assert (agent.gamma, agent.epsilon_start, agent.epsilon_end) == (0.6, 1.0, 0.1)
    assert agent.epsilon_iterations == 10_000
    assert (learner.batch, learner.learning_rate, learner.replay, learner.target_every) == (64, 1e-3, 2_000, 100)
    assert (learner.alpha, learner.beta, paper.network) == (0.2, 0.6, "flat")


def test_an_agent_of_ones_own_is_a_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    document = yaml.safe_load((conf_dir() / "agent" / "default.yaml").read_text(encoding="utf-8"))
    document["learner"] |= {"branches": 2, "iterations": 1}
    own.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = train(problem(1), agent=own, episodes=3 * COPIES)
    assert [len(entry.lengths_s) for entry in result.search_log] == [2 * COPIES] * 2


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a missing key": (lambda d: d.pop("size"), "[$][.]size is missing"),
    "an unknown key": (lambda d: d["agent"].update(noisy=True), "unknown key 'noisy'"),
    "another network": (lambda d: d.update(network="deep"), "network is 'deep', not choices or flat"),
    "a batch that fills the memory": (
        lambda d: d["learner"].update(batch=10**9),
        "batch is 1000000000, not a whole number ≤ 1024",
    ),
    "a share beyond one": (lambda d: d["agent"].update(epsilon_start=1.5), "epsilon_start is 1.5"),
    "logarithms of discounted values": (lambda d: d["agent"].update(gamma=0.6), "log_values with gamma 0.6"),
    "no rate": (lambda d: d["learner"].update(learning_rate=float("inf")), "not valid YAML in line"),
    "no flag": (lambda d: d["agent"].update(log_values="perhaps"), "log_values is 'perhaps'"),
    "no section": (lambda d: d.update(learner=7), "[$][.]learner is 7"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused(wrong: str, tmp_path: Path) -> None:
    spoil, words = WRONG[wrong]
    document = yaml.safe_load((conf_dir() / "agent" / "default.yaml").read_text(encoding="utf-8"))
    spoil(document)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        agent_config(tmp_path / "mine.yaml")
