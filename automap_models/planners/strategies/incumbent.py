"""The best strategy so far, what need not be looked at because of it, and the best ones of each sort on the way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from automap_models.core.result import TIE
from automap_models.core.strategy import Strategy


@dataclass(frozen=True)
class Completion:
    """A strategy that fits, its step, and bytes of the fullest device."""

    strategy: Strategy
    step_s: float
    held_bytes: float = 0.0


@dataclass
class Incumbent:
    """The best strategy of a search so far.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends.
        patience: strategies after which a search may give up.
        best: None before any was found.
        trials: strategies that were taken or were not better.
        best_after: how many it had been when the best one came.
        of_sorts: the shortest strategy of each sort (`sort_of`), with which a search with fewer choices can begin.
    """

    gap: float
    patience: int
    best: Completion | None = None
    trials: int = 0
    best_after: int = 0
    of_sorts: dict[Hashable, Completion] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        if self.best is None:
            return float("inf")
        return self.best.step_s * (1 - self.gap if self.gap else 1 - TIE)

    def take(self, completion: Completion | None) -> None:
        """Keep it where it is shorter."""
        self.trials += 1
        if completion is None:
            return
        sort = sort_of(completion.strategy)
        if sort not in self.of_sorts or completion.step_s < self.of_sorts[sort].step_s:
            self.of_sorts[sort] = completion
        if self.best is None or completion.step_s < self.best.step_s:
            self.best, self.best_after = completion, self.trials

    @property
    def stale(self) -> bool:
        """Whether as many strategies came after the best one as before: a better one is not to be expected."""
        return self.trials >= max(self.patience, 2 * self.best_after)


def sort_of(strategy: Strategy) -> Hashable:
    """Which choices a strategy makes."""
    s = strategy
    degrees = (s.tp > 1, s.cp > 1, s.pp > 1)
    recomputes = s.recompute != "none"
    return (*degrees, recomputes, s.zero > 0, s.sequence_parallel, s.layers is None, (s.schedule, s.vp) == ("1f1b", 1))
