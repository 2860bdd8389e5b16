"""Timelines and runs for chrome://tracing and Perfetto.

Of a simulated timeline each stage has a row for its passes and one for its gradients, and each direction of a link
between stages has one. Of a run each measured row has the predicted one above it. Measured rows are called `stage 2`,
with several replicas `device 5 (stage 2)`, so that `automap infer --observed` reads them; predicted ones are called
`predicted 2`, which it leaves. The predicted step is laid out again from where each step starts.

The format is Chrome's Trace Event Format: complete events (`"ph": "X"`) with start and duration in microseconds,
metadata events (`"ph": "M"`) that name the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from automap_models.core.run_record import Pass, RunRecord
from automap_models.formats.atomic import write_text
from automap_models.simulate.engine import PASS_KINDS, Interval, Timeline

STAGES, LINKS = 0, 1
"""Process ids of the two groups of rows."""
OF_GRADIENTS = ("all-reduce", "tied-sum", "update")
"""Kinds that have a row of their own below that of the stage's passes."""
RUN_KINDS = {**{str(kind): str(name) for kind, name in PASS_KINDS.items()}, "U": "update", "G": "all-reduce"}
"""Kind of a pass of a run → name of its events."""
ROWS_A_STAGE = 1000
"""Rows of a stage of a run: its predicted one, then its replicas."""


def trace_document(timeline: Timeline) -> dict[str, Any]:
    """The timeline as a trace document."""
    return {
        "traceEvents": [*_row_names(timeline.intervals), *map(_event, timeline.intervals)],
        "displayTimeUnit": "ms",
        "otherData": {"schedule": timeline.schedule, "length_s": float(timeline.length_s)},
    }


def _row(interval: Interval) -> tuple[int, int]:
    """Process and thread: a stage's passes have an even one, its gradients the next one, which is right below."""
    if interval.is_send:
        return LINKS, int(interval.resource)
    return STAGES, 2 * int(interval.resource) + (interval.kind in OF_GRADIENTS)


def _row_names(intervals: Sequence[Interval]) -> Iterator[dict[str, Any]]:
    rows = sorted({_row(interval) for interval in intervals})
    ranks = 1 + max(interval.resource for interval in intervals if not interval.is_send)
    for process in sorted({process for process, _ in rows}):
        yield _metadata("process_name", process, 0, name="links" if process == LINKS else "stages")
        yield _metadata("process_sort_index", process, 0, sort_index=process)
    for process, row in rows:
        yield from _named(process, row, _row_name(process, row, ranks))


def _row_name(process: int, row: int, ranks: int) -> str:
    if process == LINKS:
        ends = row // 2, (row // 2 + 1) % ranks
        return "{} → {}".format(*(reversed(ends) if row % 2 else ends))
    return f"stage {row // 2}{' gradients' if row % 2 else ''}"


def _named(process: int, row: int, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("thread_name", process, row, name=name)
    yield _metadata("thread_sort_index", process, row, sort_index=row)


def _metadata(what: str, process: int, row: int, **arguments: str | int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": arguments}


def _event(interval: Interval) -> dict[str, Any]:
    is_sum = interval.kind in OF_GRADIENTS
    arguments = {} if is_sum else {"micro_batch": int(interval.micro_batch)}
    if interval.chunk:
        arguments["chunk"] = int(interval.chunk)
    name = interval.kind if is_sum else f"{interval.kind} {interval.micro_batch}"
    return _complete(name, interval.kind, _row(interval), interval.start_s, interval.end_s, **arguments)


def _complete(
    name: str, kind: str, row: tuple[int, int], start_s: float, end_s: float, **arguments: float
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": row[0],
        "tid": row[1],
        "ts": float(start_s) * 1e6,
        "dur": (float(end_s) - float(start_s)) * 1e6,
        "args": arguments,
    }


def write_trace(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write a trace file.

    Raises:
        BadInput: the file cannot be written.
    """
    write_text(path, json.dumps(document, allow_nan=False))


def run_trace_document(record: RunRecord, predicted: Timeline) -> dict[str, Any]:
    """Predicted and measured lanes of all steps that count."""
    return {
        "traceEvents": [*_run_rows(record), *_run_events(record, predicted)],
        "displayTimeUnit": "ms",
        "otherData": {"schedule": record.schedule.name, "clock": "wall", "busy_s": record.clock},
    }


def _run_rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", STAGES, 0, name="predicted and measured")
    for rank in range(record.schedule.ranks):
        yield from _named(STAGES, rank * ROWS_A_STAGE, f"predicted {rank}")
    for s, replicas in enumerate(record.replicas):
        for row, replica in enumerate(replicas):
            device = record.plan.stages[s].devices[0] + (replica or 0)
            name = f"stage {s}" if len(replicas) == 1 else f"device {device} (stage {s})"
            yield from _named(STAGES, _run_row(record, s, row), name)


def _run_row(record: RunRecord, stage: int, replica: int) -> int:
    """Below the predicted row of the stage's rank; virtual stages of a rank have rows of their own."""
    rank = record.schedule.rank_of[stage]
    return rank * ROWS_A_STAGE + 1 + (stage // record.schedule.ranks) * 100 + replica


def _run_events(record: RunRecord, predicted: Timeline) -> Iterator[dict[str, Any]]:
    begin_s = 0.0
    for step in record.counted:
        for one in predicted.intervals:
            if not one.is_send:
                row = (STAGES, one.resource * ROWS_A_STAGE)
                yield _run_event(one.kind, row, one, begin_s)
        for measured in step.passes:
            replica = record.replicas[measured.stage].index(measured.replica)
            row = (STAGES, _run_row(record, measured.stage, replica))
            yield _run_event(RUN_KINDS[measured.kind], row, measured, begin_s, busy_ms=1e3 * measured.busy_s)
        begin_s += max(step.length_s, predicted.length_s)


def _run_event(kind: str, row: tuple[int, int], one: Interval | Pass, begin_s: float, **more: float) -> dict[str, Any]:
    """An event of a step that begins at that time."""
    name, stamp = f"{kind} {one.micro_batch}", (begin_s + one.start_s, begin_s + one.end_s)
    return _complete(name, kind, row, *stamp, micro_batch=one.micro_batch, **more)
