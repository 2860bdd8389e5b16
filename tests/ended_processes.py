"""Whether processes have ended, for tests that nobody is left behind."""

from __future__ import annotations

import time
from pathlib import Path


def gone(pids: list[int], within_s: float = 30.0) -> bool:
    """Whether none of these processes runs any more."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
