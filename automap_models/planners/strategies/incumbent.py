"""The best strategy so far, and what need not be looked at because of it."""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.core.result import TIE
from automap_models.core.strategy import Strategy


@dataclass(frozen=True)
class Completion:
    """A strategy that fits, and its step."""

    strategy: Strategy
    step_s: float


@dataclass
class Incumbent:
    """The best strategy of a search so far.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends.
        best: None before any was found.
    """

    gap: float
    best: Completion | None = None

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        if self.best is None:
            return float("inf")
        return self.best.step_s * (1 - self.gap if self.gap else 1 - TIE)

    def take(self, completion: Completion | None) -> None:
        """Keep it where it is shorter."""
        if completion is not None and (self.best is None or completion.step_s < self.best.step_s):
            self.best = completion
