"""The learning agent and the searches that it is compared with, against the proven optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.errors import BadInput
from automap_models.planners.base import PlannerOptions
from automap_models.planners.registry import make_planner
from automap_models.planners.rounds import Round
from automap_models.planners.sharding.config import read_search_config
from automap_models.planners.sharding.milp import most_partitioned
from automap_models.planners.sharding.search import AgentSearch
from automap_models.resources import conf_dir

Draw = Callable[..., ShardingProblem]


def trap(wings: int = 3) -> ShardingProblem:
    """Greedy's worst case: the largest class excludes `wings` others that together hold more parameters."""
    own = [0] * 4 + [wing for wing in range(1, wings + 1) for _ in range(3)]
    variables = tuple(Variable(f"p{i}", (4,), "f32", 16.0, "parameter") for i in range(len(own)))
    conflicts = np.array([[0, wing] for wing in range(1, wings + 1)])
    classes = ShardingClasses(variables, np.array(own), np.full(wings + 1, 4), conflicts)
    return ShardingProblem("trap", "operator", classes, Cluster(1, 8, 1e9, 1e9, 1e9), 4)


@pytest.mark.parametrize("seed", range(6))
def test_the_agent_reaches_the_proven_optimum_of_small_problems(seed: int, random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(seed, classes=(6, 14))
    plan = make_planner("agent", PlannerOptions(seed=seed), "operator").plan(problem)
    assert plan.check_valid(problem) == (True, "")
    assert plan.optimality is not None
    assert plan.partitioned == plan.optimality.bound == most_partitioned(problem).bound
    assert not plan.interrupted


def test_greedy_falls_into_the_trap_and_the_agent_does_not() -> None:
    """Partitioned are 4 parameters by the largest class, 9 by the three that it excludes."""
    assert make_planner("greedy", None, "operator").plan(trap()).partitioned == 4
    assert make_planner("agent", None, "operator").plan(trap()).partitioned == 9


def test_the_second_stage_leads_out_of_the_trap() -> None:
    """Sharding a wing undoes the largest class, and what that excluded is decided again."""
    search = AgentSearch(trap(), read_search_config("paper", "operator"), seed=0)
    search.rate(np.array([[True, False, False, False]]))
    search.run(episodes=1)  # already played: only the second stage is left
    assert search.best.partitioned == 9


@pytest.mark.parametrize("planner", ["agent", "random"])
def test_equal_seeds_search_alike(planner: str, random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(3, classes=(12, 14))

    def scores(seed: int) -> list[tuple[int, ...]]:
        rounds: list[Round] = []
        options = PlannerOptions(seed=seed, episodes=64, watch=rounds.append)
        make_planner(planner, options, "operator").plan(problem)
        return [told.scores for told in rounds]

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)


def test_a_watcher_is_told_of_every_episode_in_order() -> None:
    rounds: list[Round] = []
    plan = make_planner("agent", PlannerOptions(watch=rounds.append), "operator").plan(trap())
    assert np.cumsum([len(told.scores) for told in rounds]).tolist() == [told.episodes for told in rounds]
    assert rounds[-1].episodes == plan.episodes
    assert rounds[-1].best == plan.partitioned == max(score for told in rounds for score in told.scores)
    assert [told.stage for told in rounds] == sorted(told.stage for told in rounds)
    assert rounds[0].epsilon == 1.0
    assert all(told.greedy == told.scores[0] for told in rounds if told.stage == 1)


@pytest.mark.parametrize("planner", ["agent", "random"])
def test_ctrl_c_returns_the_best_plan_so_far_marked_as_such(planner: str, random_sharding_problem: Draw) -> None:
    best = []

    def watch(told: Round) -> None:
        best.append(told.best)
        if len(best) == 3:
            raise KeyboardInterrupt

    problem = random_sharding_problem(3, classes=(12, 14))
    plan = make_planner(planner, PlannerOptions(watch=watch), "operator").plan(problem)
    assert plan.interrupted
    assert (plan.partitioned, plan.episodes) == (best[-1], 48)
    assert plan.check_valid(problem) == (True, "")


def test_a_search_leaves_torch_s_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    during: list[int] = []
    options = PlannerOptions(episodes=16, watch=lambda told: during.append(torch.get_num_threads()))
    make_planner("agent", options, "operator").plan(trap())
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert set(during) == {1}
    assert after == 3


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(random_sharding_problem: Draw) -> None:
    problem, config = random_sharding_problem(3, classes=(12, 14)), read_search_config("paper", "operator")
    whole: list[Round] = []
    AgentSearch(problem, config, 0, whole.append).run()
    rounds: list[Round] = []

    def interrupting(told: Round) -> None:
        rounds.append(told)
        if len(rounds) == 4:
            raise KeyboardInterrupt

    search = AgentSearch(problem, config, 0, interrupting)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    search.run()
    assert rounds == whole


@pytest.mark.parametrize("planner", ["agent", "random"])
def test_stopping_at_the_optimum_is_asked_for(planner: str) -> None:
    stopped = make_planner(planner, PlannerOptions(stop_at_optimum=True), "operator").plan(trap())
    patient = make_planner(planner, PlannerOptions(), "operator").plan(trap())
    assert stopped.partitioned == patient.partitioned == 9
    assert stopped.episodes < patient.episodes


def test_random_search_plays_the_episodes_it_is_given_and_greedy_one() -> None:
    assert make_planner("random", PlannerOptions(episodes=100), "operator").plan(trap()).episodes == 100
    assert make_planner("greedy", None, "operator").plan(trap()).episodes == 1


@pytest.mark.parametrize("planner", ["agent", "greedy", "random"])
def test_auto_data_parallelism_goes_without_linkage_groups(planner: str) -> None:
    """Two inputs with a shared batch; the sequence is dead."""
    inputs = tuple(Variable(name, (8, 6), "s32", 192.0, "input") for name in ("ids", "labels"))
    classes = ShardingClasses(inputs, np.array([0, 1, 0, 2]), np.array([8, 1, 1]), np.empty((0, 2), dtype=np.int64))
    problem = ShardingProblem("tokens", "data", classes, Cluster(1, 8, 1e9, 1e9, 1e9), 8)
    plan = make_planner(planner, None, "data").plan(problem)
    assert plan.dims == (0, 0)


# --- the agent's file --------------------------------------------------------------------------------------------


def test_the_paper_s_hyper_parameters_are_shipped() -> None:
    """Auto-MAP §5.1, as printed."""
    operator, data = (read_search_config("paper", kind) for kind in ("operator", "data"))
    agent, learner = operator.agent, operator.learner
    assert (agent.gamma, agent.double, agent.epsilon_start, agent.epsilon_end) == (0.6, True, 1.0, 0.1)
    assert (learner.batch, learner.replay, learner.target_every) == (64, 2_000, 100)
    assert (learner.alpha, learner.beta) == (0.2, 0.6)
    assert learner.learning_rate < 1e-3
    assert (agent.epsilon_iterations, data.agent.epsilon_iterations) == (2_000, 500)
    assert (operator.linkage_groups, data.linkage_groups) == (True, False)
    assert replace(operator, linkage_groups=False, agent=data.agent) == data


WRONG = {
    "a missing key": (lambda d: d.pop("patience"), "[$][.]patience is missing"),
    "an unknown key": (lambda d: d["agent"].update(noisy=True), "unknown key 'noisy'"),
    "a share beyond one": (lambda d: d["agent"].update(gamma=1.5), "gamma is 1.5"),
    "a network that fills the memory": (
        lambda d: d.update(hidden=10**9),
        "hidden is 1000000000, not a whole number ≤ 4096",
    ),
    "a replay that fills the memory": (
        lambda d: d["learner"].update(replay=10**12),
        "replay is 1000000000000, not a whole number ≤ 1000000",
    ),
    "half a layer": (lambda d: d.update(layers=1.5), "layers is 1.5"),
    "no rate": (lambda d: d["learner"].update(learning_rate=0), "learning_rate is 0"),
    "no number": (lambda d: d["learner"].update(batch=float("nan")), "not valid YAML in line"),
    "no section": (lambda d: d.update(agent=7), "[$][.]agent is 7"),
    "no flag": (lambda d: d["data"].update(linkage_groups=2), "linkage_groups is 2"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_when_the_planner_is_made(wrong: str, tmp_path: Path) -> None:
    spoil, said = WRONG[wrong]
    document = yaml.safe_load((conf_dir() / "search" / "paper.yaml").read_text(encoding="utf-8"))
    spoil(document)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        make_planner("agent", PlannerOptions(agent=tmp_path / "mine.yaml"), "operator")


def test_an_unknown_agent_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="choose from paper"):
        make_planner("agent", PlannerOptions(agent="nobody"), "data")


def test_without_torch_the_agent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"automap-models\[torch\]"):
        make_planner("agent", None, "operator")
