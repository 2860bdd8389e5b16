"""Hyper-parameters of agents that learn while they search: conf/search, conf/agent or the user's own YAML file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from automap_models.core.mesh import PlanKind
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

    def config(self) -> LearnerConfig:
        """The settings as the learner takes them."""
        return LearnerConfig(**{field.name: getattr(self, field.name) for field in fields(LearnerConfig)})


class PipelineAgentSettings(Document):
    """How the agent acts and learns; the keys are attributes of `rl.agent.AgentConfig`."""

    gamma: Share
    log_values: bool
    huber: Positive
    epsilon_start: Share
    epsilon_end: Share
    epsilon_iterations: Steps
    local_share: Share
    local_radius: Annotated[int, Meta(ge=0)]

    def config(self) -> AgentConfig:
        """The settings as the agent takes them."""
        return AgentConfig(**msgspec.structs.asdict(self))


class PipelineLearnerDocument(LearnerDocument):
    """A learner of episodes that branch; the learning rate stays the same online."""

    batch: Annotated[int, Meta(ge=1, le=1_024)]
    branches: Annotated[int, Meta(ge=1, le=64)]
    final_learning_rate: Positive


class SizeDocument(Document):
    """Of the network."""

    hidden: Annotated[int, Meta(ge=1, le=1_024)]


class PipelineAgentDocument(Document):
    """A file of conf/agent."""

    network: Literal["choices", "flat"]
    size: SizeDocument
    agent: PipelineAgentSettings
    learner: PipelineLearnerDocument


def read_pipeline_agent(name_or_path: str | Path) -> PipelineAgentDocument:
    """The shipped agent of that name (`default`, `paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "agent", "agent")
    document = read_yaml(path, PipelineAgentDocument, do="see conf/agent/default.yaml")
    document.agent.config()  # refuses what contradicts
    return document


class SearchAgentDocument(Document):
    """How the agent acts and learns; the keys are attributes of `rl.agent.AgentConfig`."""

    gamma: Share
    epsilon_start: Share
    epsilon_end: Share


class PlanKindDocument(Document):
    """What differs between the two kinds of plans.

    Attributes:
        linkage_groups: whether they order the decisions and rule out those that conflict by themselves.
        epsilon_iterations: decisions until ε is at its end.
    """

    linkage_groups: bool
    epsilon_iterations: Steps


class SearchDocument(Document):
    """A file of conf/search: how an agent searches.

    Attributes:
        hidden, layers: width and number of the network's layers below its heads.
        round: episodes between learner iterations.
        patience: episodes without a better plan after which the strategy is stable.
        agent, learner: the agent's and the learner's own.
        operator, data: what differs between the two kinds of plans.
    """

    hidden: Annotated[int, Meta(ge=1, le=4_096)]
    layers: Annotated[int, Meta(ge=1, le=16)]
    round: Annotated[int, Meta(ge=1, le=1_024)]
    patience: Steps
    agent: SearchAgentDocument
    learner: LearnerDocument
    operator: PlanKindDocument
    data: PlanKindDocument

    def of_kind(self, kind: PlanKind) -> PlanKindDocument:
        """What is said of plans of that kind."""
        return self.operator if kind == "operator" else self.data

    def agent_config(self, kind: PlanKind) -> AgentConfig:
        """The agent's hyper-parameters for plans of that kind."""
        iterations = self.of_kind(kind).epsilon_iterations
        unused: dict[str, Any] = {"log_values": False, "local_share": 0.0, "local_radius": 0}
        return AgentConfig(**msgspec.structs.asdict(self.agent), epsilon_iterations=iterations, **unused)


def read_search_agent(name_or_path: str | Path) -> SearchDocument:
    """The shipped agent of that name (`paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    return read_yaml(find_yaml(name_or_path, "search", "agent"), SearchDocument, do="see conf/search/paper.yaml")
