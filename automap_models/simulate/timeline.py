"""The result of a simulation: intervals on stages and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PassKind = Literal["forward", "backward", "send-forward", "send-backward", "all-reduce"]
"""What occupies a stage (forward, backward, all-reduce) or the link between two stages (the sends)."""


@dataclass(frozen=True)
class Interval:
    """When something occupies a stage or a link.

    Attributes:
        kind: what it is.
        resource: the stage of a pass or an all-reduce; s of a send over the link between the stages s and s + 1.
        micro_batch: for which micro-batch; of an all-reduce the last one.
        start_s, end_s: seconds from the start of the global batch.
    """

    kind: PassKind
    resource: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """What a simulation of one global batch gives.

    Attributes:
        schedule: the schedule's name.
        intervals: all of them, in order of their start.
        length_s: when the last one ends, seconds.
    """

    schedule: str
    intervals: tuple[Interval, ...]
    length_s: float
