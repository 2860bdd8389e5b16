"""A moment at which a search has to stop, and the exception that says that it did."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """A search was stopped by its deadline.

    Attributes:
        bound_s: no plan that the search was to look at is shorter; 0 when it came to know nothing.
    """

    def __init__(self, bound_s: float = 0.0) -> None:
        super().__init__(f"stopped with a lower bound of {bound_s} s")
        self.bound_s = bound_s


class Deadline:
    """So many seconds from its making on; without a number, never."""

    def __init__(self, budget_s: float = float("inf")) -> None:
        self._end_s = time.monotonic() + budget_s

    @property
    def left_s(self) -> float:
        """Seconds until the time is up; 0 from then on."""
        return max(self._end_s - time.monotonic(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end_s

    def check(self) -> None:
        """Go on, or not.

        Raises:
            OutOfTime: the time is up.
        """
        if self.passed:
            raise OutOfTime
