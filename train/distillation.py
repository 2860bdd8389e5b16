"""Training by a teacher: the module whose pupil sees one step ahead, and whose teacher has cost-to-go tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from automap_models.envs.pipeline.env import Problems
from automap_models.errors import BadInput
from automap_models.rl.distillation import (
    DERIVED,
    LossSettings,
    derived,
    empty_lesson,
    lesson_loss,
    taught,
)
from automap_models.rl.fused import require_compiler
from automap_models.rl.lessons import Lessons
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import LookAheadQNetwork
from automap_models.rl.replay import Items

from .rainbow import RainbowModule


@dataclass(frozen=True)
class DistillationConfig:
    """How a teacher's values are learned.

    Attributes:
        temperatures: differences of action values that count (rl.distillation); the first is that of priorities.
        regret: weight of what the pupil's choices lose on average.
        compile: compile what is computed of states into fused loops (rl.fused): a minute a function, once on a machine.

    Raises:
        BadInput: a temperature or the weight is out of its range, or there is nothing to compile with.
    """

    temperatures: list[float] = field(default_factory=lambda: [0.02, 0.1, 0.5])
    regret: float = 0.0
    compile: bool = False

    def __post_init__(self) -> None:
        if not self.regret >= 0:
            raise BadInput(f"is {self.regret}", where="distillation.regret", do="give 0 or more")
        if self.compile:
            require_compiler("distillation.compile")
        if not self.temperatures or not min(self.temperatures) > 0:
            raise BadInput(f"is {self.temperatures}", where="distillation.temperatures", do="give numbers above 0")


class DistillationModule(RainbowModule):
    """RainbowModule whose replay holds states of its own episodes with a teacher's values of all their actions.

    The network is an OneStepQNetwork; `branches` episodes are played on each problem.

    Args:
        distillation: a plain mapping of DistillationConfig.
        rainbow: arguments of RainbowModule.
    """

    online: OneStepQNetwork

    def __init__(self, *, distillation: dict[str, Any], **rainbow: Any) -> None:
        super().__init__(**rainbow)
        self.distillation = DistillationConfig(**distillation)
        # Not a submodule: it has nothing to learn, and its values are those of its look-ahead.
        teacher = LookAheadQNetwork(replace(self.size, residual="log"))
        self._lessons = Lessons(self.online, teacher, compiled=self.distillation.compile)

    def _empty_row(self) -> Items:
        return empty_lesson(self.size)

    def _empty_derived(self) -> Items:
        return {name: column for name, column in self._empty_row().items() if name in DERIVED}

    def _episodes(self, index: Tensor, problems: Problems, epsilon: float) -> tuple[Items, Tensor]:
        """Episodes of the pupil with the teacher's values."""
        episodes = self.settings.branches
        skip_last = self.exact_decisions
        return taught(self.agent, self._lessons, index, problems, episodes, epsilon, self.generator, skip_last)

    def _derive(self, problems: Problems, items: Items) -> Items:
        """The features of rows."""
        return derived(self._lessons, problems, items)

    def _weighted_loss(self, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See rl.learner.Loss."""
        chosen = self.distillation
        settings = LossSettings(chosen.temperatures, self.agent.config.huber, chosen.regret)
        return lesson_loss(self.online, items, weights.to(self.device), settings)
