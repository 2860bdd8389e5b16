"""Hyper-parameters of the agent that searches for sharding plans, from conf/search or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from automap_models.formats.yaml_fields import YamlFields, find_yaml, load_yaml
from automap_models.planners.agent_yaml import LEARNER, AgentFields
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

_HELP = "see conf/search/paper.yaml"
_AGENT = ("gamma", "n_steps", "double", "best_known", "epsilon_start", "epsilon_end")
_KIND = ("linkage_groups", "epsilon_iterations")
_LARGEST = {
    "hidden": 4_096,
    "layers": 16,
    "round": 1_024,
    "patience": 10**9,
    "n_steps": 10**6,
    "epsilon_iterations": 10**9,
    "batch": 65_536,
    "iterations": 65_536,
    "replay": 10**6,
    "target_every": 10**9,
}


@dataclass(frozen=True)
class SearchConfig:
    """How an agent searches.

    Attributes:
        hidden, layers: width and number of the network's layers below its heads.
        round: episodes between learner iterations.
        patience: episodes without a better plan after which the strategy is stable.
        linkage_groups: whether they order the decisions and rule out those that conflict by themselves.
        agent, learner: the agent's and the learner's own.
    """

    hidden: int
    layers: int
    round: int
    patience: int
    linkage_groups: bool
    agent: AgentConfig
    learner: LearnerConfig


def read_search_config(name_or_path: str | Path, kind: str) -> SearchConfig:
    """The shipped agent of that name (`paper`), or the one in that YAML file.

    Args:
        kind: of the plans that it shall search for, "operator" or "data".

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "search", "agent")
    top = ("hidden", "layers", "round", "patience", "agent", "learner", "operator", "data")
    whole = AgentFields(YamlFields(load_yaml(path, _HELP), str(path), required=top, optional=(), do=_HELP), _LARGEST)
    agent, learner = whole.section("agent", _AGENT, _HELP), whole.section("learner", LEARNER, _HELP)
    own = {name: whole.section(name, _KIND, _HELP) for name in ("operator", "data")}[kind]
    return SearchConfig(
        hidden=whole.count("hidden"),
        layers=whole.count("layers"),
        round=whole.count("round"),
        patience=whole.count("patience"),
        linkage_groups=own.flag("linkage_groups"),
        agent=AgentConfig(
            gamma=agent.share("gamma"),
            n_steps=agent.count("n_steps"),
            log_values=False,
            double=agent.flag("double"),
            epsilon_start=agent.share("epsilon_start"),
            epsilon_end=agent.share("epsilon_end"),
            epsilon_iterations=own.count("epsilon_iterations"),
            local_share=0.0,
            local_radius=0,
            best_known=agent.flag("best_known"),
        ),
        learner=learner.learner(),
    )
