"""The trace holds what the timeline holds, in the units and rows that viewers expect."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.passes import build_schedule
from automap_models.core.schedules import WARM_UPS
from automap_models.errors import BadInput
from automap_models.formats.chrome_trace import trace_document, write_trace
from automap_models.simulate.engine import Interval, Timeline, simulate

TINY = Timeline(
    "1f1b",
    (
        Interval("forward", 0, 0, 0.0, 1.0),
        Interval("send-forward", 0, 0, 1.0, 1.5),
        Interval("forward", 1, 0, 1.5, 2.0),
        Interval("backward", 1, 0, 2.0, 3.25),
        Interval("all-reduce", 1, 0, 3.25, 3.5),
        Interval("send-backward", 1, 0, 3.25, 3.5),
    ),
    3.5,
)


def _events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_a_small_timeline_is_told_event_by_event() -> None:
    document = trace_document(TINY)
    complete = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"], e["args"]) for e in _events(document, "X")]
    assert complete == [
        ("forward 0", 0, 0, 0.0, 1e6, {"micro_batch": 0}),
        ("send-forward 0", 1, 0, 1e6, 0.5e6, {"micro_batch": 0}),
        ("forward 0", 0, 2, 1.5e6, 0.5e6, {"micro_batch": 0}),
        ("backward 0", 0, 2, 2e6, 1.25e6, {"micro_batch": 0}),
        ("all-reduce", 0, 3, 3.25e6, 0.25e6, {}),
        ("send-backward 0", 1, 1, 3.25e6, 0.25e6, {"micro_batch": 0}),
    ]
    assert document["otherData"] == {"schedule": "1f1b", "length_s": 3.5}


def test_rows_are_named_and_sorted() -> None:
    names = {(e["name"], e["pid"], e["tid"]): e["args"] for e in _events(trace_document(TINY), "M")}
    assert names == {
        ("process_name", 0, 0): {"name": "stages"},
        ("process_sort_index", 0, 0): {"sort_index": 0},
        ("process_name", 1, 0): {"name": "links"},
        ("process_sort_index", 1, 0): {"sort_index": 1},
        ("thread_name", 0, 0): {"name": "stage 0"},
        ("thread_sort_index", 0, 0): {"sort_index": 0},
        ("thread_name", 0, 2): {"name": "stage 1"},
        ("thread_sort_index", 0, 2): {"sort_index": 2},
        ("thread_name", 0, 3): {"name": "stage 1 gradients"},
        ("thread_sort_index", 0, 3): {"sort_index": 3},
        ("thread_name", 1, 0): {"name": "0 → 1"},
        ("thread_sort_index", 1, 0): {"sort_index": 0},
        ("thread_name", 1, 1): {"name": "1 → 0"},
        ("thread_sort_index", 1, 1): {"sort_index": 1},
    }


def test_one_stage_has_no_links() -> None:
    names = [e["args"].get("name") for e in _events(trace_document(Timeline("gpipe", TINY.intervals[:1], 1.0)), "M")]
    assert names == ["stages", None, "stage 0", None]


@given(
    stages=st.integers(1, 4),
    micro_batches=st.integers(1, 6),
    schedule=st.sampled_from(sorted(WARM_UPS)),
    seed=st.integers(0, 99),
)
def test_events_of_a_row_follow_each_other_and_add_up(
    stages: int, micro_batches: int, schedule: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    forward, backward, reduce = rng.random((3, stages))
    transfer = rng.random(stages - 1)
    document = trace_document(
        simulate(forward, backward, transfer, reduce, build_schedule(schedule, stages, micro_batches))
    )
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in _events(document, "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    assert sorted(rows) == [(0, row) for row in range(2 * stages)] + [(1, s) for s in range(2 * stages - 2)]
    for (process, row), events in rows.items():
        events.sort()
        assert all(a + d <= b + 1e-3 for (a, d), (b, _) in pairwise(events))
        stage, of_gradients = divmod(row, 2)
        passes = transfer[row // 2] if process else forward[stage] + backward[stage]
        busy_s = reduce[stage] if not process and of_gradients else micro_batches * passes
        assert sum(d for _, d in events) == pytest.approx(busy_s * 1e6)


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", trace_document(TINY))
    assert json.loads((tmp_path / "trace.json").read_text()) == trace_document(TINY)


def test_a_trace_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        write_trace(tmp_path, trace_document(TINY))
