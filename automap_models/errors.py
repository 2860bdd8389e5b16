"""The errors by which a request fails through no defect of ours."""

from __future__ import annotations


class AutomapError(Exception):
    """An error made for people: what is wrong, where, and what to do about it, in one sentence.

    The sentence names an argument as Python has it, between backticks and perhaps with a value: "`stages`: 9 stages on
    the 8 devices of cluster A; give at most 8", "use `planner='exact'`". A command shows its own option in its place.
    `details` stand above it: a traceback, or what a process said last.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None, details: str = "") -> None:
        self.what, self.where, self.do, self.details = what, where, do, details
        sentence = f"{where}: {what}" if where else what
        super().__init__(f"{sentence}; {do}" if do else sentence)


def is_of_type(value: object) -> str:
    """What a message says of a value of a wrong type: `is of type int`, or `is None`."""
    return "is None" if value is None else f"is of type {type(value).__name__}"


class BadInput(AutomapError):
    """A file or an argument cannot be used as it is (exit code 2)."""

    exit_code = 2


class UserCodeError(BadInput):
    """Code that the user named, such as a factory, raised: `details` holds its traceback."""


class Infeasible(AutomapError):
    """The input is fine, but no plan fits the cluster (exit code 3)."""

    exit_code = 3


class RunFailed(AutomapError):
    """A run has ended before its time, because one of its processes did (exit code 1).

    `details` holds what that process said last: a traceback of its own.
    """
