"""Hyper-parameters of the agent of online pipeline planning, from conf/online or the user's own YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Positive, Share, find_yaml, read_yaml
from automap_models.planners.agent_yaml import LearnerDocument, Samples, Steps
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import LearnerConfig

_HELP = "see conf/online/default.yaml"


class AgentDocument(Document):
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
    agent: AgentDocument
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


def read_online_agent(name_or_path: str | Path) -> OnlineAgentConfig:
    """The shipped agent of that name (`default`, `paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "online", "agent")
    document = read_yaml(path, OnlineDocument, do=_HELP)
    if document.around and not document.look_ahead:
        raise BadInput(f"$.around is {document.around} without look_ahead", where=str(path), do="give around: 0")
    return OnlineAgentConfig(
        hidden=document.hidden,
        look_ahead=document.look_ahead,
        reward=document.reward,
        episodes=document.episodes,
        round=document.round,
        around=document.around,
        agent=AgentConfig(**msgspec.structs.asdict(document.agent), local_share=0.0, local_radius=0),
        learner=document.learner.learner(),
    )
