"""The learning agent against the proven optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.result import Result
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, ShardingWork, Variable
from automap_models.envs.sharding.propagation import Propagation
from automap_models.errors import BadInput
from automap_models.planners.agent_yaml import read_search_agent
from automap_models.planners.base import SILENT, Progress, Watch
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.search import AgentSearch, Round
from automap_models.resources import conf_dir

Solved = Result[ShardingProblem, ShardingPlan]
Draw = Callable[..., ShardingProblem]


def trap(wings: int = 3) -> ShardingProblem:
    """Greedy decisions fail: the largest class excludes `wings` others that together hold more parameters."""
    own = [0] * 4 + [wing for wing in range(1, wings + 1) for _ in range(3)]
    variables = tuple(Variable(f"p{i}", (4,), "f32", 16.0, "parameter") for i in range(len(own)))
    conflicts = np.array([[0, wing] for wing in range(1, wings + 1)])
    classes = ShardingClasses(variables, np.array(own), np.full(wings + 1, 4), conflicts)
    return ShardingProblem("trap", classes, Cluster(1, 8, 1e9, 1e9, 1e9), (MeshAxis("model", 4),))


def solve(planner: str, problem: ShardingProblem, watch: Watch = SILENT, **config: Any) -> Solved:
    return make_planner(planner, kind="sharding", **config).solve(problem, watch=watch)


@pytest.fixture(scope="module")
def trapped() -> tuple[Solved, list[Progress]]:
    """What the agent makes of the trap, and what it tells meanwhile."""
    news: list[Progress] = []
    return solve("agent", trap(), news.append), news


@pytest.mark.parametrize("seed", range(2))
def test_the_agent_reaches_the_proven_optimum_of_small_problems(seed: int, random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(seed, classes=(6, 14))
    result = solve("agent", problem, seed=seed)
    assert result.required_plan().check_valid(problem) == (True, "")
    assert result.bound == solve("milp", problem).bound
    assert result.cost.partitioned == result.bound.value
    assert result.status == "optimal"
    assert not result.facts["interrupted"]


def test_greedy_decisions_fall_into_the_trap_and_the_agent_does_not(trapped: tuple[Solved, list[Progress]]) -> None:
    """Partitioned are 4 parameters by the largest class, 9 by the three that it excludes."""
    (along,) = trap().along
    assert Propagation(along).greedy(linkage_groups=True) == [0]
    assert trapped[0].required_plan().partitioned() == 9


def test_the_second_stage_leads_out_of_the_trap() -> None:
    """Sharding a wing undoes the largest class, and what that excluded is decided again."""
    search = AgentSearch(trap(), read_search_agent("paper"), seed=0)
    search.rate(np.array([[True, False, False, False]]))
    search.run(episodes=1)  # already played: only the second stage is left
    assert search.best.partitioned == 9


def test_equal_seeds_search_alike(random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(3, classes=(12, 14))

    def scores(seed: int) -> list[tuple[int, ...]]:
        return [played.scores for played in solve("agent", problem, seed=seed, episodes=64).search_log]

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)


def test_a_watcher_is_told_of_every_episode_in_order(trapped: tuple[Solved, list[Progress]]) -> None:
    result, news = trapped
    rounds: Sequence[Round] = result.search_log
    assert np.cumsum([len(played.scores) for played in rounds]).tolist() == [progress.done for progress in news]
    assert rounds[-1].episodes == news[-1].done == result.facts["episodes"]
    assert rounds[-1].best == result.cost.partitioned == max(score for played in rounds for score in played.scores)
    assert [played.stage for played in rounds] == sorted(played.stage for played in rounds)
    assert rounds[0].epsilon == 1.0
    assert all(played.greedy == played.scores[0] for played in rounds if played.stage == 1)


def test_ctrl_c_returns_the_best_plan_so_far_marked_as_such(random_sharding_problem: Draw) -> None:
    reports = list[Progress]()

    def watch(news: Progress) -> None:
        reports.append(news)
        if len(reports) == 3:
            raise KeyboardInterrupt

    problem = random_sharding_problem(3, classes=(12, 14))
    result = solve("agent", problem, watch)
    assert result.facts["interrupted"]
    assert reports[-1].what.startswith(f"episode 48: best plan partitions {result.cost.partitioned},")
    assert result.facts["episodes"] == 48
    assert result.required_plan().check_valid(problem) == (True, "")


def test_a_search_leaves_torch_s_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    during: list[int] = []
    solve("agent", trap(), lambda news: during.append(torch.get_num_threads()), episodes=16)
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert set(during) == {1}
    assert after == 3


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(random_sharding_problem: Draw) -> None:
    problem, config = random_sharding_problem(3, classes=(12, 14)), read_search_agent("paper")
    whole = AgentSearch(problem, config, 0)
    whole.run(episodes=128)

    def interrupting(news: Progress) -> None:
        if len(search.rounds) == 4:
            raise KeyboardInterrupt

    search = AgentSearch(problem, config, 0, interrupting)
    with pytest.raises(KeyboardInterrupt):
        search.run(episodes=128)
    search.run(episodes=128)
    assert search.rounds == whole.rounds


def test_stopping_at_the_optimum_is_asked_for(trapped: tuple[Solved, list[Progress]]) -> None:
    stopped, patient = solve("agent", trap(), stop_at_optimum=True), trapped[0]
    assert stopped.cost.partitioned == patient.cost.partitioned == 9
    assert stopped.facts["episodes"] < patient.facts["episodes"]


def test_auto_data_parallelism_goes_without_linkage_groups() -> None:
    """Two inputs with a shared batch; the sequence is dead."""
    inputs = tuple(Variable(name, (8, 6), "s32", 192.0, "input") for name in ("ids", "labels"))
    classes = ShardingClasses(inputs, np.array([0, 1, 0, 2]), np.array([8, 1, 1]), np.empty((0, 2), dtype=np.int64))
    problem = ShardingProblem("tokens", classes, Cluster(1, 8, 1e9, 1e9, 1e9), (MeshAxis("data", 8),))
    assert solve("agent", problem).required_plan().dims == ((0, 0),)


@pytest.mark.parametrize(
    ("mesh", "objective", "sentence"),
    [
        ((MeshAxis("data", 2), MeshAxis("model", 4)), "count", "decides along one axis"),
        ((MeshAxis("model", 4),), "time", "cannot plan for the least time"),
        ((MeshAxis("model", 4),), "memory", "cannot plan for the least memory"),
    ],
)
def test_it_says_what_it_is_not_made_for(mesh: Mesh, objective: Any, sentence: str) -> None:
    variables = (Variable("p", (8,), "f32", 32.0, "parameter"), Variable("x", (8,), "f32", 32.0, "input"))
    classes = ShardingClasses(variables, np.arange(2), np.full(2, 8), np.empty((0, 2), dtype=np.int64))
    nothing = np.zeros((2, 2))
    work = ShardingWork(1.0, 0.0, nothing, 64.0, nothing, nothing, nothing, np.zeros(2))
    problem = ShardingProblem("two", classes, Cluster(1, 8, 1e9, 1e9, 1e9), mesh, objective, work)
    with pytest.raises(BadInput, match=f"`planner='agent'`: .*{sentence}"):
        solve("agent", problem)


def test_an_option_that_means_nothing_to_it_is_refused() -> None:
    with pytest.raises(BadInput, match="has no option 'time_limit_s'"):
        make_planner("agent", kind="sharding", time_limit_s=1)


@pytest.mark.parametrize("name", ["greedy", "random"])
def test_a_planner_that_was_given_up_is_refused_like_any_unknown_one(name: str) -> None:
    with pytest.raises(BadInput, match="choose from agent, milp"):
        make_planner(name, kind="sharding")


# --- the agent's file --------------------------------------------------------------------------------------------


def test_the_paper_s_hyper_parameters_are_shipped() -> None:
    """Auto-MAP §5.1, as printed."""
    document = read_search_agent("paper")
    agent, learner = document.agent_config("operator"), document.learner.config()
    assert (agent.gamma, agent.epsilon_start, agent.epsilon_end) == (0.6, 1.0, 0.1)
    assert (learner.batch, learner.replay, learner.target_every) == (64, 2_000, 100)
    assert (learner.alpha, learner.beta) == (0.2, 0.6)
    assert learner.learning_rate < 1e-3
    assert (document.operator.linkage_groups, document.data.linkage_groups) == (True, False)
    assert (agent.epsilon_iterations, document.data.epsilon_iterations) == (2_000, 500)
    assert replace(agent, epsilon_iterations=500) == document.agent_config("data")


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
    spoil, sentence = WRONG[wrong]
    document = yaml.safe_load((conf_dir() / "search" / "paper.yaml").read_text(encoding="utf-8"))
    spoil(document)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(BadInput, match=sentence):
        make_planner("agent", kind="sharding", agent=tmp_path / "mine.yaml")


def test_an_unknown_agent_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="choose from paper"):
        make_planner("agent", kind="sharding", agent="nobody")


def test_without_torch_the_agent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"automap-models\[torch\]"):
        make_planner("agent", kind="sharding")
