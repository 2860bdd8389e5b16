"""Hyper-parameters of the agent of online pipeline planning, from conf/online or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from automap_models.errors import BadInput
from automap_models.formats.yaml_fields import YamlFields, find_yaml, load_yaml
from automap_models.planners.agent_yaml import LEARNER, AgentFields
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

_HELP = "see conf/online/default.yaml"
_TOP = ("hidden", "look_ahead", "reward", "episodes", "round", "around", "agent", "learner")
_AGENT = ("gamma", "n_steps", "log_values", "double", "best_known", "huber")
_EXPLORING = ("epsilon_start", "epsilon_end", "epsilon_iterations")
_LARGEST = {
    "hidden": 1_024,
    "episodes": 10**9,
    "round": 256,
    "around": 256,
    "n_steps": 10**6,
    "epsilon_iterations": 10**9,
    "batch": 1_024,
    "iterations": 65_536,
    "replay": 10**6,
    "target_every": 10**9,
}
REWARDS = ("ideal/L", "1/L")


@dataclass(frozen=True)
class OnlineConfig:
    """How an agent trains online.

    Attributes:
        hidden: width of the network.
        look_ahead: whether it reads a lower bound of L, learns log(ideal / L), begins with the plan that the bound
            suggests and explores only pivots that a shorter plan than the best one can have; without, the paper's
            features and all pivots that its masks leave.
        reward: what a plan earns, one of REWARDS: ideal / L, which no unit scales, or 1 / L.
        episodes: how many to play, by default.
        round: ε-greedy episodes between learner iterations; the first of several is greedy.
        around: further ones that explore around the best plan so far (planners.online.exploration).
        agent, learner: the agent's and the learner's own.
    """

    hidden: int
    look_ahead: bool
    reward: str
    episodes: int
    round: int
    around: int
    agent: AgentConfig
    learner: LearnerConfig


def read_online_config(name_or_path: str | Path) -> OnlineConfig:
    """The shipped agent of that name (`default`, `paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "online", "agent")
    given = YamlFields(load_yaml(path, _HELP), str(path), required=_TOP, optional=(), do=_HELP)
    whole = AgentFields(given, _LARGEST)
    reward, look_ahead, around = given.text("reward", ""), whole.flag("look_ahead"), whole.count("around", 0)
    if reward not in REWARDS:
        raise BadInput(f"reward is {reward!r}", where=str(path), do=f"give {' or '.join(REWARDS)}")
    if around and not look_ahead:
        raise BadInput(f"around is {around} without look_ahead", where=str(path), do="give around: 0")
    return OnlineConfig(
        hidden=whole.count("hidden"),
        look_ahead=look_ahead,
        reward=reward,
        episodes=whole.count("episodes"),
        round=whole.count("round"),
        around=around,
        agent=_agent(whole.section("agent", (*_AGENT, *_EXPLORING), _HELP)),
        learner=whole.section("learner", LEARNER, _HELP).learner(),
    )


def _agent(given: AgentFields) -> AgentConfig:
    return AgentConfig(
        gamma=given.share("gamma"),
        n_steps=given.count("n_steps"),
        log_values=given.flag("log_values"),
        double=given.flag("double"),
        epsilon_start=given.share("epsilon_start"),
        epsilon_end=given.share("epsilon_end"),
        epsilon_iterations=given.count("epsilon_iterations"),
        local_share=0.0,
        local_radius=0,
        best_known=given.flag("best_known"),
        huber=given.positive("huber"),
    )
