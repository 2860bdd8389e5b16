"""A moment at which a search has to stop, and the exception that says that it did."""

from __future__ import annotations

import time
from collections.abc import Callable


class OutOfTime(Exception):
    """A search was stopped by its deadline.

    Attributes:
        bound_s: no plan that the search was to look at is shorter; 0 when it came to know nothing.
    """

    def __init__(self, bound_s: float = 0.0) -> None:
        super().__init__(f"stopped with a lower bound of {bound_s} s")
        self.bound_s = bound_s


class Deadline:
    """So many seconds from its making on; without a number, never.

    Args:
        budget_s: how many.
        clock: by which; `time.process_time` counts processor time, whatever else the machine does.
        within: another deadline, which ends this one, too.
    """

    def __init__(
        self,
        budget_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        within: Deadline | None = None,
    ) -> None:
        self._clock, self._within = clock, within
        self._end_s = clock() + budget_s

    def part(self, budget_s: float, clock: Callable[[], float] | None = None) -> Deadline:
        """So many seconds from now on, by the same clock or another, but no longer than this deadline."""
        return Deadline(budget_s, self._clock if clock is None else clock, self)

    @property
    def left_s(self) -> float:
        """Seconds until the time is up, by its clock; 0 from then on."""
        own_s = max(self._end_s - self._clock(), 0.0)
        return own_s if self._within is None else min(own_s, self._within.left_s)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end_s or (self._within is not None and self._within.passed)

    def check(self) -> None:
        """Go on, or not.

        Raises:
            OutOfTime: the time is up.
        """
        if self.passed:
            raise OutOfTime


NEVER = Deadline()
"""The deadline that never comes."""
