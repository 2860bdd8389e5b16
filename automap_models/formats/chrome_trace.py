"""A simulated schedule for chrome://tracing and Perfetto.

Each stage has a row for its passes and one for its gradients, each direction of a link between stages has one.

The format is Chrome's Trace Event Format: complete events (`"ph": "X"`) with start and duration in microseconds,
metadata events (`"ph": "M"`) that name the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from automap_models.formats.atomic import write_text

STAGES, LINKS = 0, 1
"""Process ids of the two groups of rows."""
OF_GRADIENTS = ("all-reduce", "tied-sum", "update")
"""Kinds that have a row of their own below that of the stage's passes."""


class IntervalLike(Protocol):
    """What a trace needs of `simulate.engine.Interval`; sends are the kinds that begin with `send`; seconds."""

    @property
    def kind(self) -> str:
        """What is done."""

    @property
    def resource(self) -> int:
        """The stage or rank s; for sends 2·s of the link from it to the next one, after the last one the first, 2·s + 1
        of the link back."""

    @property
    def micro_batch(self) -> int:
        """For which micro-batch."""

    @property
    def chunk(self) -> int:
        """Which virtual stage of its rank it is for."""

    @property
    def start_s(self) -> float:
        """Its start."""

    @property
    def end_s(self) -> float:
        """Its end."""


class TimelineLike(Protocol):
    """What a trace needs of `simulate.engine.Timeline`."""

    @property
    def schedule(self) -> str:
        """The schedule's name."""

    @property
    def intervals(self) -> Sequence[IntervalLike]:
        """All intervals."""

    @property
    def length_s(self) -> float:
        """When the last one ends."""


def trace_document(timeline: TimelineLike) -> dict[str, Any]:
    """The timeline as a trace document."""
    return {
        "traceEvents": [*_row_names(timeline.intervals), *map(_event, timeline.intervals)],
        "displayTimeUnit": "ms",
        "otherData": {"schedule": timeline.schedule, "length_s": float(timeline.length_s)},
    }


def write_trace(path: str | os.PathLike[str], timeline: TimelineLike) -> None:
    """Write a trace file.

    Raises:
        BadInput: the file cannot be written.
    """
    write_text(path, json.dumps(trace_document(timeline), allow_nan=False))


def _row(interval: IntervalLike) -> tuple[int, int]:
    """Process and thread: a stage's passes have an even one, its gradients the next one, which is right below."""
    if interval.kind.startswith("send"):
        return LINKS, int(interval.resource)
    return STAGES, 2 * int(interval.resource) + (interval.kind in OF_GRADIENTS)


def _row_names(intervals: Sequence[IntervalLike]) -> Iterator[dict[str, Any]]:
    rows = sorted({_row(interval) for interval in intervals})
    ranks = 1 + max(interval.resource for interval in intervals if not interval.kind.startswith("send"))
    for process in sorted({process for process, _ in rows}):
        yield _metadata("process_name", process, 0, name="links" if process == LINKS else "stages")
        yield _metadata("process_sort_index", process, 0, sort_index=process)
    for process, row in rows:
        yield _metadata("thread_name", process, row, name=_row_name(process, row, ranks))
        yield _metadata("thread_sort_index", process, row, sort_index=row)


def _row_name(process: int, row: int, ranks: int) -> str:
    if process == LINKS:
        ends = row // 2, (row // 2 + 1) % ranks
        return "{} → {}".format(*(reversed(ends) if row % 2 else ends))
    return f"stage {row // 2}{' gradients' if row % 2 else ''}"


def _metadata(what: str, process: int, row: int, **arguments: str | int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": arguments}


def _event(interval: IntervalLike) -> dict[str, Any]:
    process, row = _row(interval)
    of_all = interval.kind in OF_GRADIENTS
    arguments = {} if of_all else {"micro_batch": int(interval.micro_batch)}
    if interval.chunk:
        arguments["chunk"] = int(interval.chunk)
    return {
        "name": interval.kind if of_all else f"{interval.kind} {interval.micro_batch}",
        "cat": interval.kind,
        "ph": "X",
        "pid": process,
        "tid": row,
        "ts": float(interval.start_s) * 1e6,
        "dur": (float(interval.end_s) - float(interval.start_s)) * 1e6,
        "args": arguments,
    }
