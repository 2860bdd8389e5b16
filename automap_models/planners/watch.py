"""What a planner tells whoever watches it while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """One piece of news.

    Attributes:
        what: what is being done, for people: "searching 3 of 40 combinations of stages and micro-batches".
        done, total: how far it is, in any unit; None where that is unknown.
        detail: the planner's own record, such as the round of episodes that an agent has just played.
    """

    what: str
    done: int | None = None
    total: int | None = None
    detail: Any = None


Watch = Callable[[Progress], None]


def SILENT(news: Progress) -> None:
    """The watcher that nobody hears."""
