"""What a simulation saw: intervals on stages, links and all-reduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "backward", "send-forward", "send-backward", "all-reduce"]


@dataclass(frozen=True)
class Interval:
    """`resource` is the stage for passes and all-reduces, the boundary (s → s+1) for sends; seconds."""

    kind: Kind
    resource: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """All intervals of one global batch, in order of their start, and when the last one ends."""

    schedule: str
    intervals: tuple[Interval, ...]
    length_s: float
