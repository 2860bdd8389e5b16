"""How large a question may be and how long a search takes, whoever asks: the page, or an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from automap_models.errors import BadInput
from automap_models.planners.base import Progress, Watch

T = TypeVar("T")

LARGEST_QUESTION = 256 << 10
"""Bytes, a config.json or a plan in it included."""
LONGEST_SEARCH_S = 600.0
"""Of the clock on the wall, waiting for other searches not counted."""
MOST_WAITING = 8
"""Searches that wait for one that runs."""


class Stopped(Exception):
    """Nobody waits for the search any more, or it took too long."""


def require_small(nbytes: int, where: str) -> None:
    """Refuse a question of too many bytes.

    Raises:
        BadInput: it has more than LARGEST_QUESTION.
    """
    if nbytes > LARGEST_QUESTION:
        raise BadInput(f"has more than {LARGEST_QUESTION:,} bytes", where=where, do="give a smaller one")


def require_place(waiting: int) -> None:
    """Refuse a search beside too many others.

    Raises:
        BadInput: more than MOST_WAITING wait.
    """
    if waiting > MOST_WAITING:
        raise BadInput(f"{MOST_WAITING} others wait for the search that runs", where="search", do="try again later")


def limited(search: Callable[[Watch], T], watch: Watch, stopped: threading.Event) -> T:
    """What a search comes to.

    Args:
        search: tells the watch that it is given how far it is, and ends when that raises.
        watch: is told the same.
        stopped: is set when nobody waits any more.

    Raises:
        BadInput: it took more than LONGEST_SEARCH_S, or was stopped.
    """

    def tell(progress: Progress) -> None:
        if stopped.is_set():
            raise Stopped
        watch(progress)

    timer = threading.Timer(LONGEST_SEARCH_S, stopped.set)
    timer.start()
    try:
        return search(tell)
    except Stopped:
        raise BadInput(f"took more than {LONGEST_SEARCH_S:.0f} s", where="search") from None
    finally:
        timer.cancel()
