"""Hyper-parameters of the agent that searches for sharding plans, from conf/search or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from automap_models.errors import BadInput
from automap_models.formats.yaml_fields import YamlFields, find_yaml, load_yaml
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

_HELP = "see conf/search/paper.yaml"
_LEARNER = tuple(field.name for field in fields(LearnerConfig))
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
"""What a whole number may be at most, so that none fills the memory."""


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
    whole = YamlFields(load_yaml(path, _HELP), str(path), required=top, optional=(), do=_HELP)
    agent, learner = _section(whole, "agent", _AGENT), _section(whole, "learner", _LEARNER)
    own = {each: _section(whole, each, _KIND) for each in ("operator", "data")}[kind]
    return SearchConfig(
        hidden=_count(whole, "hidden"),
        layers=_count(whole, "layers"),
        round=_count(whole, "round"),
        patience=_count(whole, "patience"),
        linkage_groups=own.flag("linkage_groups", True),
        agent=AgentConfig(
            gamma=_share(agent, "gamma"),
            n_steps=_count(agent, "n_steps"),
            log_values=False,
            double=agent.flag("double", True),
            epsilon_start=_share(agent, "epsilon_start"),
            epsilon_end=_share(agent, "epsilon_end"),
            epsilon_iterations=_count(own, "epsilon_iterations"),
            local_share=0.0,
            local_radius=0,
            best_known=agent.flag("best_known", False),
        ),
        learner=LearnerConfig(
            learning_rate=_positive(learner, "learning_rate"),
            batch=_count(learner, "batch"),
            iterations=_count(learner, "iterations"),
            replay=_count(learner, "replay"),
            alpha=_share(learner, "alpha"),
            beta=_share(learner, "beta"),
            target_every=_count(learner, "target_every"),
            gradient_clip=_positive(learner, "gradient_clip"),
        ),
    )


def _section(whole: YamlFields, key: str, required: tuple[str, ...]) -> YamlFields:
    return YamlFields(whole.document[key], f"{whole.source}, {key}", required=required, optional=(), do=_HELP)


def _count(given: YamlFields, key: str) -> int:
    """A whole number from 1 to what fits."""
    number, most = given.number(key), _LARGEST[key]
    if not (1 <= number <= most and number.is_integer()):
        raise BadInput(f"{key} is {number:g}", where=given.source, do=f"give a whole number from 1 to {most:,}")
    return int(number)


def _share(given: YamlFields, key: str) -> float:
    number = given.number(key)
    if not 0 <= number <= 1:
        raise BadInput(f"{key} is {number:g}", where=given.source, do="give a number from 0 to 1")
    return number


def _positive(given: YamlFields, key: str) -> float:
    number = given.number(key)
    if not 0 < number < float("inf"):
        raise BadInput(f"{key} is {number:g}", where=given.source, do="give a number greater than 0")
    return number
