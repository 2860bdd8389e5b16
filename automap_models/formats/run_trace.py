"""A run for chrome://tracing and Perfetto: above each measured row the predicted one.

Measured rows are called `stage 2`, with several replicas `device 5 (stage 2)`, so that `automap infer --observed` reads
them; predicted ones `predicted 2`, which it leaves. The predicted step is laid out again from where each step starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from automap_models.core.run_record import RunRecord
from automap_models.formats.atomic import write_text
from automap_models.simulate.engine import PASS_KINDS, Timeline

NAMES: dict[str, str] = {
    **{str(kind): str(name) for kind, name in PASS_KINDS.items()},
    "U": "update",
    "G": "all-reduce",
}
"""Kind of a pass → name of its events."""
ROWS_A_STAGE = 1000
"""Rows of a stage: its predicted one, then its replicas."""


def run_trace_document(record: RunRecord, predicted: Timeline) -> dict[str, Any]:
    """Predicted and measured lanes of all steps that count."""
    return {
        "traceEvents": [*_names(record), *_events(record, predicted)],
        "displayTimeUnit": "ms",
        "otherData": {"schedule": record.schedule.name, "clock": "wall", "busy_s": record.clock},
    }


def write_run_trace(path: str | os.PathLike[str], record: RunRecord, predicted: Timeline) -> None:
    """Write a trace file.

    Raises:
        BadInput: the file cannot be written.
    """
    write_text(path, json.dumps(run_trace_document(record, predicted), allow_nan=False))


def _names(record: RunRecord) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", 0, name="predicted and measured")
    for rank in range(record.schedule.ranks):
        yield from _named(rank * ROWS_A_STAGE, f"predicted {rank}")
    for s, replicas in enumerate(record.replicas):
        for row, replica in enumerate(replicas):
            device = record.plan.stages[s].devices[0] + (replica or 0)
            name = f"stage {s}" if len(replicas) == 1 else f"device {device} (stage {s})"
            yield from _named(_row(record, s, row), name)


def _named(row: int, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("thread_name", row, name=name)
    yield _metadata("thread_sort_index", row, sort_index=row)


def _row(record: RunRecord, stage: int, replica: int) -> int:
    """Below the predicted row of the stage's rank; virtual stages of a rank have rows of their own."""
    rank = record.schedule.rank_of[stage]
    return rank * ROWS_A_STAGE + 1 + (stage // record.schedule.ranks) * 100 + replica


def _events(record: RunRecord, predicted: Timeline) -> Iterator[dict[str, Any]]:
    start_s = 0.0
    for step in record.counted:
        for interval in predicted.intervals:
            if not interval.kind.startswith("send"):
                stamp = (start_s + interval.start_s, interval.end_s - interval.start_s)
                yield _event(interval.kind, interval.resource * ROWS_A_STAGE, interval.micro_batch, *stamp)
        for one in step.passes:
            row = _row(record, one.stage, record.replicas[one.stage].index(one.replica))
            stamp = (start_s + one.start_s, one.end_s - one.start_s)
            yield _event(NAMES[one.kind], row, one.micro_batch, *stamp, busy_ms=1e3 * one.busy_s)
        start_s += max(step.length_s, predicted.length_s)


def _metadata(what: str, row: int, **arguments: str | int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": row, "args": arguments}


def _event(name: str, row: int, micro_batch: int, start_s: float, length_s: float, **more: float) -> dict[str, Any]:
    return {
        "name": f"{name} {micro_batch}",
        "cat": name,
        "ph": "X",
        "pid": 0,
        "tid": row,
        "ts": 1e6 * start_s,
        "dur": 1e6 * length_s,
        "args": {"micro_batch": micro_batch, **more},
    }
