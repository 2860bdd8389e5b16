"""Hyper-parameters of the agent that searches for sharding plans, from conf/search or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from automap_models.formats.schema import Document, Share, find_yaml, read_yaml
from automap_models.planners.agent_yaml import LearnerDocument, Samples, Steps
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

_HELP = "see conf/search/paper.yaml"


class AgentDocument(Document):
    """How the agent acts and learns; the keys are attributes of `rl.agent.AgentConfig`."""

    gamma: Share
    n_steps: Samples
    double: bool
    best_known: bool
    epsilon_start: Share
    epsilon_end: Share


class PlanKindDocument(Document):
    """What differs between the two kinds of plans."""

    linkage_groups: bool
    epsilon_iterations: Steps


class SearchDocument(Document):
    """A file of conf/search; the keys are the attributes of SearchConfig."""

    hidden: Annotated[int, Meta(ge=1, le=4_096)]
    layers: Annotated[int, Meta(ge=1, le=16)]
    round: Annotated[int, Meta(ge=1, le=1_024)]
    patience: Steps
    agent: AgentDocument
    learner: LearnerDocument
    operator: PlanKindDocument
    data: PlanKindDocument


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
    document = read_yaml(path, SearchDocument, do=_HELP)
    own = document.operator if kind == "operator" else document.data
    return SearchConfig(
        hidden=document.hidden,
        layers=document.layers,
        round=document.round,
        patience=document.patience,
        linkage_groups=own.linkage_groups,
        agent=AgentConfig(
            **msgspec.structs.asdict(document.agent),
            epsilon_iterations=own.epsilon_iterations,
            log_values=False,
            local_share=0.0,
            local_radius=0,
        ),
        learner=document.learner.learner(),
    )
