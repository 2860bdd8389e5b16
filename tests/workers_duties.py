"""What workers do in tests: they import this module, which needs nothing."""

from __future__ import annotations

import os
import signal
import time


def rank_and_pid(rank: int) -> tuple[int, int]:
    return rank, os.getpid()


def fail_in(rank: int, culprit: int, how: str) -> int:
    """One worker ends, by an exception or by a signal; the others would go on for minutes."""
    if rank == culprit:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("what the culprit says")
    time.sleep(300)
    return rank
