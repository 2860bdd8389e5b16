"""Hyper-parameters of agents that learn while they search: conf/search, conf/online or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Positive, Share, find_yaml, read_yaml
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

Steps = Annotated[int, Meta(ge=1, le=10**9)]
"""How many of something that takes time only."""
Samples = Annotated[int, Meta(ge=1, le=10**6)]
"""How many of something that takes memory, too."""


class LearnerDocument(Document):
    """The settings of a learner; the keys are the attributes of `rl.learner.LearnerConfig`."""

    learning_rate: Positive
    batch: Annotated[int, Meta(ge=1, le=65_536)]
    iterations: Annotated[int, Meta(ge=1, le=65_536)]
    replay: Samples
    alpha: Share
    beta: Share
    target_every: Steps
    gradient_clip: Positive

    def learner(self) -> LearnerConfig:
        """The settings as the learner takes them."""
        return LearnerConfig(**msgspec.structs.asdict(self))


class OnlineAgentDocument(Document):
    """How the agent acts and learns; the keys are attributes of `rl.agent.AgentConfig`."""

    gamma: Share
    n_steps: Samples
    log_values: bool
    double: bool
    best_known: bool
    huber: Positive
    epsilon_start: Share
    epsilon_end: Share
    epsilon_iterations: Steps


class SmallLearnerDocument(LearnerDocument):
    """A learner of batches that the network of a pivot's three features can use."""

    batch: Annotated[int, Meta(ge=1, le=1_024)]


class OnlineDocument(Document):
    """A file of conf/online; the keys are the attributes of OnlineAgentConfig."""

    hidden: Annotated[int, Meta(ge=1, le=1_024)]
    look_ahead: bool
    reward: Literal["ideal/L", "1/L"]
    episodes: Steps
    round: Annotated[int, Meta(ge=1, le=256)]
    around: Annotated[int, Meta(ge=0, le=256)]
    agent: OnlineAgentDocument
    learner: SmallLearnerDocument


@dataclass(frozen=True)
class OnlineAgentConfig:
    """How an agent trains online.

    Attributes:
        hidden: width of the network.
        look_ahead: whether it reads a lower bound of L, learns log(ideal / L), begins with the plan that the bound
            suggests and explores only pivots that a shorter plan than the best one can have; without, the paper's
            features and all pivots that its masks leave.
        reward: what a plan earns: "ideal/L", which no unit scales, or "1/L".
        episodes: how many to play, by default.
        round: ε-greedy episodes between learner iterations; the first of several is greedy.
        around: further ones that explore around the best plan so far (planners.online.search).
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


def read_online_agent(name_or_path: str | Path) -> OnlineAgentConfig:
    """The shipped agent of that name (`default`, `paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "online", "agent")
    document = read_yaml(path, OnlineDocument, do="see conf/online/default.yaml")
    if document.around and not document.look_ahead:
        raise BadInput(f"$.around is {document.around} without look_ahead", where=str(path), do="give around: 0")
    agent = AgentConfig(**msgspec.structs.asdict(document.agent), local_share=0.0, local_radius=0)
    fields = {**msgspec.structs.asdict(document), "agent": agent, "learner": document.learner.learner()}
    return OnlineAgentConfig(**fields)


class SearchAgentDocument(Document):
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
    agent: SearchAgentDocument
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
    document = read_yaml(path, SearchDocument, do="see conf/search/paper.yaml")
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
