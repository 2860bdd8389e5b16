"""When a time that is read from a clock can be believed: the least of several runs that agree.

What else a machine does makes runs longer, never shorter. So the least of several counts, and runs go on until as many
as were asked for are within 10 % of it, or until there are six times as many:

    12.9   440.0   34.7   13.1   13.0          three asked for: settled at the fifth, 12.9
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

RunT = TypeVar("RunT")


def settled(seconds: Sequence[float], repeats: int) -> bool:
    """Whether as many runs as asked for agree with the least one."""
    least = min(seconds)
    return sum(taken <= 1.1 * least for taken in seconds) >= repeats


def repeated(run: Callable[[], RunT], seconds_of: Callable[[RunT], float], repeats: int) -> tuple[list[RunT], bool]:
    """Runs until they settle, and whether they did.

    Args:
        run: makes one.
        seconds_of: what it took.
        repeats: runs that have to agree, at least 1.
    """
    runs = [run() for _ in range(repeats)]
    while not (steady := settled([seconds_of(one) for one in runs], repeats)) and len(runs) < 6 * repeats:
        runs.append(run())
    return runs, steady
