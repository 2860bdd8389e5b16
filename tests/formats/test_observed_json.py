"""Measured times: times.json and traces of several tools, and what is refused in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.passes import build_schedule
from automap_models.errors import BadInput
from automap_models.formats.chrome_trace import trace_document, write_trace
from automap_models.formats.observed_json import Observed, read_observed
from automap_models.simulate.engine import simulate

TIMES: dict[str, Any] = {"schema": 1, "kind": "observed"}


def written(folder: Path, document: object) -> Path:
    path = folder / "times.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read(folder: Path, document: object) -> Observed:
    return read_observed(written(folder, document))


def test_devices_with_one_or_several_samples(tmp_path: Path) -> None:
    devices = [
        {"device": 7, "forward_s": [0.1, 0.2], "backward_s": 0.3},
        {"device": 2, "forward_s": 1, "backward_s": 2},
    ]
    observed = read(tmp_path, {**TIMES, "devices": devices})
    assert observed.unit == "device"
    assert {device: times.tolist() for device, times in observed.forward_s.items()} == {7: [0.1, 0.2], 2: [1.0]}
    assert {device: times.tolist() for device, times in observed.backward_s.items()} == {7: [0.3], 2: [2.0]}


def test_stages(tmp_path: Path) -> None:
    observed = read(tmp_path, {**TIMES, "stages": [{"index": 0, "forward_s": 0.1, "backward_s": [0.2]}]})
    assert (observed.unit, observed.forward_s[0].tolist()) == ("stage", [0.1])


def test_our_own_trace_of_a_schedule_holds_its_stage_times(tmp_path: Path) -> None:
    forward, backward = np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.5, 0.4])
    transfer, reduce = np.array([0.01, 0.02]), np.array([1.0, 2.0, 3.0])
    timeline = simulate(forward, backward, transfer, reduce, build_schedule("1f1b", 3, 5))
    write_trace(tmp_path / "trace.json", trace_document(timeline))
    observed = read_observed(tmp_path / "trace.json")
    assert observed.unit == "stage"
    for stage in range(3):
        np.testing.assert_allclose(observed.forward_s[stage], np.full(5, forward[stage]), rtol=1e-9)
        np.testing.assert_allclose(observed.backward_s[stage], np.full(5, backward[stage]), rtol=1e-9)


def event(name: str, microseconds: float, **more: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "ts": 0, "dur": microseconds, **more}


def row(name: str, what: str = "thread_name", **more: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "args": {"name": name}, **more}


@pytest.mark.parametrize("name", ["device 3", "Device: 3", "stage 1, device 3", "rank 3", "[rank3] stage 0"])
def test_a_row_named_after_its_device_in_a_kineto_trace(name: str, tmp_path: Path) -> None:
    events = [
        row(name, pid=10, tid="stream 7"),
        event("forward", 1000.0, pid=10, tid="stream 7", cat="user_annotation"),
        event("Backward of micro-batch 0", 2000.0, pid=10, tid="stream 7"),
        event("forwarding tables", 5.0, pid=10, tid="stream 7"),
        event("aten::mm", 17.0, pid=10, tid="stream 7"),
        event("forward", 9.0, pid=99, tid="stream 7"),
        {"ph": "i", "name": "forward", "pid": 10, "tid": "stream 7", "ts": 1},
    ]
    observed = read(tmp_path, {"schemaVersion": 1, "traceEvents": events})
    assert observed.unit == "device"
    assert {k: v.tolist() for k, v in observed.forward_s.items()} == {3: [0.001]}
    assert {k: v.tolist() for k, v in observed.backward_s.items()} == {3: [0.002]}


def test_a_process_named_after_its_device_counts_for_all_of_its_rows(tmp_path: Path) -> None:
    events = [
        row("device 1", "process_name", pid=4),
        event("forward 0", 10.0, pid=4, tid=1),
        event("backward 0", 20.0, pid=4, tid=2),
    ]
    observed = read(tmp_path, {"traceEvents": events})
    assert observed.forward_s[1] == pytest.approx(np.array([1e-5]))
    assert observed.backward_s[1] == pytest.approx(np.array([2e-5]))


def device(**changes: object) -> dict[str, object]:
    return {"device": 0, "forward_s": 1.0, "backward_s": 1.0, **changes}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "observed", "devices": [device()]}, "schema is missing"),
        ({**TIMES, "schema": 2, "devices": [device()]}, "schema is 2"),
        ({**TIMES, "kind": "pipeline", "devices": [device()]}, "kind is 'pipeline', not observed"),
        (TIMES, "not exactly one of stages and devices"),
        ({**TIMES, "devices": [device()], "stages": []}, "not exactly one of stages and devices"),
        ({**TIMES, "devices": []}, "holds no forward or backward times"),
        ({**TIMES, "devices": [device(), device()]}, "device 0 is listed twice"),
        ({**TIMES, "devices": [device(device=-1)]}, "device is -1, not a whole number ≥ 0"),
        ({**TIMES, "devices": [device(device=10**30)]}, "device is 1000"),
        ({**TIMES, "devices": [device(forward_s=0)]}, "forward_s is 0"),
        ({**TIMES, "devices": [device(forward_s=[])]}, "forward_s is []"),
        ({**TIMES, "devices": [device(backward_s=[1.0, "x"])]}, "backward_s[1] is 'x'"),
        ({**TIMES, "devices": [device(backward_s=1e400)]}, "not valid JSON|backward_s"),
        ({"traceEvents": []}, "holds no forward or backward times"),
        ({"traceEvents": [row("device 0", pid=0, tid=0), event("forward", 1.0, pid=0, tid=0)]}, "no backward times"),
        ({"traceEvents": [row("device 0", pid=0, tid=0), event("forward", -1.0, pid=0, tid=0)]}, "dur is -1"),
        ({"traceEvents": [3]}, "traceEvents[0] is 3, not a mapping"),
        ([1], "document is [1], not a mapping"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(document: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words.replace("[", r"\[").replace("]", r"\]")):
        read(tmp_path, document)
