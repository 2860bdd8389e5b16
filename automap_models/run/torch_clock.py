"""When passes start and end, and what they take of their device.

On a CPU a pass takes the processor time of the thread that computes, in which autograd works there, too; on a GPU the
time between two events of its stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from automap_models.core.run_record import Pass

CLOCKS = {"cpu": "processor time", "cuda": "events of the CUDA stream"}
"""Kind of device → what `Pass.busy_s` is."""


class Clock:
    """The passes of one step of a process; start and end are seconds of the machine's monotonic clock."""

    def __init__(self, device: torch.device, replica: int) -> None:
        self.device, self.replica = device, replica
        self.passes: list[Pass] = []
        self._events: list[tuple[str, int, int, float, float, Any, Any]] = []

    @contextmanager
    def timing(self, kind: str, stage: int, micro_batch: int = 0) -> Iterator[None]:
        """What runs inside is that pass."""
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start_s = time.perf_counter()
            begin.record()
            yield
            end.record()
            self._events.append((kind, stage, micro_batch, start_s, time.perf_counter(), begin, end))
            return
        start_s, busy_s = time.perf_counter(), time.thread_time()
        yield
        busy_s = time.thread_time() - busy_s
        end_s = time.perf_counter()
        self.passes.append(Pass(kind, stage, self.replica, micro_batch, start_s, end_s, busy_s))

    def read(self) -> list[Pass]:
        """The passes so far; on a GPU when all of them are over, with their times on its stream."""
        if self._events:
            torch.cuda.synchronize(self.device)
            first = self._events[0]
            for kind, stage, micro_batch, _, _, begin, end in self._events:
                start_s = first[3] + first[5].elapsed_time(begin) / 1e3
                busy_s = begin.elapsed_time(end) / 1e3
                self.passes.append(Pass(kind, stage, self.replica, micro_batch, start_s, start_s + busy_s, busy_s))
            self._events.clear()
        return self.passes
