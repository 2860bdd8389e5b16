"""torch.profiler's traces "hold no forward or backward times": no row is called `rank 0`, the rank stands elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.npz import write_npz
from automap_models.formats.observed_json import read_observed
from automap_models.infer import app


def annotation(name: str, dur: float, cat: str = "user_annotation", tid: int = 4711) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 4711, "tid": tid, "ts": 1.0, "dur": dur}


def trace(rank: int | None, *events: dict[str, Any]) -> dict[str, Any]:
    """As Kineto writes it: rows are named after threads, operators and functions of Python lie between."""
    rows = [
        {"name": "process_name", "ph": "M", "pid": 4711, "tid": 0, "args": {"name": "python3"}},
        {"name": "thread_name", "ph": "M", "pid": 4711, "tid": 4711, "args": {"name": "thread 4711 (python3)"}},
        {"ph": "X", "cat": "python_function", "name": "forward", "pid": 4711, "tid": 4711, "ts": 1.0, "dur": 9e6},
        {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 4711, "tid": 4711, "ts": 1.0, "dur": 5.0},
    ]
    info = {} if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    return {"schemaVersion": 1, **info, "displayTimeUnit": "ms", "traceEvents": [*rows, *events]}


def written(folder: Path, name: str, document: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(document))
    return path


GPIPE = [("Forward 0", 1250), ("Forward 1", 1240), ("Backward 0", 2500), ("Backward 1", 2510)]
INTERLEAVED = [("PP:2F0", 1250), ("PP:2F1", 1240), ("PP:2B0", 2500), ("PP:2B1", 2510), ("PP:2SEND_F0", 7)]


@pytest.mark.parametrize("events", [GPIPE, INTERLEAVED])
def test_the_passes_of_the_rank_in_distributed_info_are_read(events: list[tuple[str, float]], tmp_path: Path) -> None:
    path = written(tmp_path, "t.json", trace(3, *(annotation(name, dur) for name, dur in events)))
    observed = read_observed(path)
    assert observed.unit == "device" and set(observed.forward_s) == {3}
    np.testing.assert_allclose(observed.forward_s[3], [1.25e-3, 1.24e-3])
    np.testing.assert_allclose(observed.backward_s[3], [2.5e-3, 2.51e-3])


def test_what_the_gpu_did_counts_and_not_how_long_launching_it_took(tmp_path: Path) -> None:
    launched = [annotation("Forward 0", 10), annotation("Backward 0", 20)]
    done = [annotation(name, dur, "gpu_user_annotation", 7) for name, dur in (("Forward 0", 100), ("Backward 0", 200))]
    observed = read_observed(written(tmp_path, "t.json", trace(0, *launched, *done)))
    np.testing.assert_allclose([*observed.forward_s[0], *observed.backward_s[0]], [1e-4, 2e-4])


def test_a_trace_that_does_not_say_its_rank_says_what_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "t.json", trace(None, *(annotation(name, dur) for name, dur in GPIPE)))
    with pytest.raises(BadInput, match=r"neither rows named after .* nor a rank in distributedInfo; profile after"):
        read_observed(path)


def test_a_folder_with_one_trace_a_rank_is_planned_from_and_one_file_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = Profile.create(C=np.full(8, 3e-3), A=np.ones(8), W=np.ones(8), meta={"microbatch_size": 4})
    write_npz(tmp_path / "k.npz", profile)
    (tmp_path / "two.yaml").write_text("{nodes: 1, devices_per_node: 2, intra: 1 GB/s, memory: 8 GB}")
    given = [str(tmp_path / "k.npz"), "--topo", str(tmp_path / "two.yaml")]
    plan = ["--stages", "2", "--micro-batches", "2", "--out", str(tmp_path / "k.json"), "--min-gain", "0"]
    assert app.infer([*given, *plan]) == 0
    traces = tmp_path / "traces"
    for rank, slower in ((0, 1), (1, 2)):
        passes = (annotation(name, slower * dur) for name, dur in GPIPE)
        one = written(traces, f"worker{rank}.pt.trace.json", trace(rank, *passes))
    observed = [*given, "--plan", str(tmp_path / "k.json"), "--observed"]
    assert app.infer([*observed, str(traces), "--json"]) == 0
    capsys.readouterr()
    assert app.infer([*observed, str(one)]) == 2
    assert "nothing is measured of stage 0" in capsys.readouterr().err
    written(traces, "again.json", json.loads(one.read_text()))
    assert app.infer([*observed, str(traces)]) == 2
    assert "has times of a device again" in capsys.readouterr().err
