"""What the YAML files of agents that learn while they search have in common (conf/search, conf/online)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from automap_models.formats.schema import Document, Positive, Share
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
        return LearnerConfig(
            learning_rate=self.learning_rate,
            batch=self.batch,
            iterations=self.iterations,
            replay=self.replay,
            alpha=self.alpha,
            beta=self.beta,
            target_every=self.target_every,
            gradient_clip=self.gradient_clip,
        )
