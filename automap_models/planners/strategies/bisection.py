"""Lower bounds that are found by asking whether a step of so many seconds is too short for a family."""

from __future__ import annotations

from abc import ABC, abstractmethod

from automap_models.planners.strategies.family_costs import FamilyCosts

CLOSE = 1e-3
"""Relative difference of the two ends of the range that the bisection stops at."""


class Bisection(ABC):
    """The bound of a family, which gets tighter call by call.

    Args:
        costs: of the family. What ranks do once a step, evenly, is added to the bound.
    """

    def __init__(self, costs: FamilyCosts) -> None:
        self.once_s = costs.ranks.even_update_s + costs.tied_s
        self.possible_s = float("inf")  # as far as is known, a strategy may take as long

    @abstractmethod
    def is_too_short(self, step_s: float) -> bool:
        """Whether nothing of the family ends within so many seconds, but for what is done once a step."""

    def shorter_range(self, low_s: float, high_s: float) -> tuple[float, float]:
        """A part of a range of steps: what is below it is too short, what ends it may not be.

        The range is halved until one step more is known to be too short, or its ends are CLOSE.
        """
        while high_s - low_s > CLOSE * high_s:
            middle_s = 0.5 * (low_s + high_s)
            if self.is_too_short(middle_s):
                return middle_s, high_s
            high_s = middle_s
        return low_s, high_s

    def tighter(self, low_s: float, high_s: float) -> float:
        """No strategy of the family is shorter, seconds: `low_s` where nothing more is to be known.

        Args:
            low_s: another bound.
            high_s: finite; of a longer bound it is enough to know that it is as long as this.
        """
        if high_s < self.possible_s:
            if self.is_too_short(high_s - self.once_s):
                return max(low_s, high_s)
            self.possible_s = high_s
        low, possible = self.shorter_range(low_s - self.once_s, self.possible_s - self.once_s)
        self.possible_s = possible + self.once_s
        return max(low_s, low + self.once_s)

    def bound(self, low_s: float, high_s: float) -> float:
        """The bound in the end; arguments as of `tighter`."""
        while (bound_s := self.tighter(low_s, high_s)) > low_s and bound_s < high_s:
            low_s = bound_s
        return bound_s
