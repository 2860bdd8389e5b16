"""What a run measured, as people's other tools read it: times.json and the trace, by `--observed`'s own reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.plan import Plan, Stage
from automap_models.core.run_record import Pass, RunRecord, StepRecord
from automap_models.errors import BadInput
from automap_models.formats.chrome_trace import run_trace_document, write_trace
from automap_models.formats.observed_json import idle_shares, read_observed, run_document
from automap_models.run.base import predicted_timeline, run_schedule
from automap_models.run.layout import layout_of


def plan(devices: list[int], micro_batches: int = 2) -> Plan:
    """Stages of 1 s forward and 2 s backward, without transfers."""
    first = np.cumsum([0, *devices]).tolist()
    stages = tuple(
        Stage(s, s, f"cut {s}", (first[s], first[s] + d - 1), d, 1, None, 1.0, 2.0, 0.0, 0.0)
        for s, d in enumerate(devices)
    )
    cluster = Cluster(1, sum(devices), 1e9, 1e9, 1e12)
    return Plan("plan.json", "toy", stages, micro_batches, 4, "1f1b", 9.0, None, {}, cluster)


def record(of: Plan, slow: dict[tuple[int, int], float]) -> RunRecord:
    """Two steps in which replica r of stage s takes 0.1 s forward and 0.2 s backward, times its slowness."""
    schedule = run_schedule(of, None, None)
    passes = [
        Pass(kind, s, r, m, start, start + length, length)
        for s, stage in enumerate(of.stages)
        for r in range(stage.replicas)
        for m in range(of.micro_batches)
        for kind, offset, plain in (("F", 0.0, 0.1), ("B", 0.5, 0.2))
        for start, length in [(m + offset, plain * slow.get((s, r), 1.0))]
    ]
    steps = (StepRecord(2.0, 2.0, tuple(passes)), StepRecord(1.5, 2.0, tuple(passes)))
    return RunRecord(of, schedule, "torch", "automap", "CPU", "processor time", 3, steps, warmup=1)


def test_times_of_stages_are_what_observed_reads(tmp_path: Path) -> None:
    run = record(plan([1, 1]), {(1, 0): 3.0})
    path = tmp_path / "times.json"
    path.write_text(json.dumps(run_document(run, predicted_timeline(run.plan, run.schedule))))
    observed = read_observed(path)
    assert observed.unit == "stage"
    np.testing.assert_allclose(observed.forward_s[0], [0.1, 0.1])  # the step that counts has two micro-batches
    np.testing.assert_allclose(observed.backward_s[1], [0.6, 0.6])


def test_times_of_devices_where_a_stage_has_replicas(tmp_path: Path) -> None:
    run = record(plan([1, 2]), {(1, 1): 2.0})
    path = tmp_path / "times.json"
    path.write_text(json.dumps(run_document(run, predicted_timeline(run.plan, run.schedule))))
    observed = read_observed(path)
    assert observed.unit == "device"
    np.testing.assert_allclose([observed.forward_s[device][0] for device in range(3)], [0.1, 0.1, 0.2])


def test_a_document_holds_predicted_and_measured_side_by_side() -> None:
    run = record(plan([1, 2]), {(1, 1): 2.0})
    predicted = predicted_timeline(run.plan, run.schedule)
    stages = run_document(run, predicted)["run"]["stages"]
    assert predicted.length_s == pytest.approx(9.0)  # 1F1B by hand: F0 F1/F0 B0 B0/F1 B1 B1, 1 + 3 + 3 + 2 seconds
    assert stages[1]["forward_s"] == {"predicted": pytest.approx(2.0), "measured": pytest.approx(0.4)}
    assert stages[0]["share"] == {"predicted": pytest.approx(0.5), "measured": pytest.approx(1 / 3)}
    assert stages[0]["idle_share"]["predicted"] == pytest.approx(1 / 3)
    assert idle_shares(run)[0] == pytest.approx(1 - 0.6 / 2.0)


def test_what_runs_beside_a_pass_leaves_no_less_idle() -> None:
    """A reduction of which 0.2 s come after the last backward pass: 0.8 of 2 s where a rank worked for 0.6."""
    run = record(plan([1, 1]), {})
    beside = Pass("G", 0, 0, 0, 1.6, 1.9, 0.3)
    steps = tuple(replace(step, passes=(*step.passes, beside)) for step in run.steps)
    np.testing.assert_allclose(idle_shares(replace(run, steps=steps)), [1 - 0.8 / 2.0, 1 - 0.6 / 2.0])


def test_observed_reads_the_measured_rows_of_a_trace_only(tmp_path: Path) -> None:
    run = record(plan([1, 1]), {(1, 0): 3.0})
    write_trace(tmp_path / "trace.json", run_trace_document(run, predicted_timeline(run.plan, run.schedule)))
    observed = read_observed(tmp_path / "trace.json")
    np.testing.assert_allclose(sorted(observed.forward_s), [0, 1])
    np.testing.assert_allclose(observed.forward_s[1], [0.3, 0.3])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names[:4] == ["predicted 0", "predicted 1", "stage 0", "stage 1"]


def test_virtual_stages_share_the_devices_of_a_rank() -> None:
    four = plan([1, 1, 1, 1], 4)
    assert layout_of(four, run_schedule(four, "interleaved", None)).processes == ((0,), (1,), (0,), (1,))
    assert layout_of(four, run_schedule(four, "zb-v", None)).processes == ((0,), (1,), (1,), (0,))
    assert layout_of(plan([1, 2]), run_schedule(plan([1, 2]), "gpipe", None)).processes == ((0,), (1, 2))


@pytest.mark.parametrize(
    ("devices", "schedule", "virtual", "sentence"),
    [
        ([1, 2, 1, 1], "interleaved", None, "on one rank; plan with `equal_replicas`"),
        ([1, 1, 1], "interleaved", 2, "3 stages do not make ranks of 2 virtual stages"),
        ([1, 1], "none", None, "unknown schedule 'none'"),
    ],
)
def test_schedules_that_the_stages_do_not_make_are_refused(
    devices: list[int], schedule: str, virtual: int | None, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        run_schedule(plan(devices), schedule, virtual)


def test_a_backward_pass_in_two_parts_counts_as_one() -> None:
    run = record(plan([1, 1]), {})
    halves = tuple(
        replace(one, kind=kind, busy_s=one.busy_s / 2)
        for one in run.steps[0].passes
        for kind in (["I", "W"] if one.kind == "B" else ["F"])
    )
    split = replace(run, steps=(StepRecord(1.0, 2.0, halves),), warmup=0)
    np.testing.assert_allclose(split.samples(0, 0, "BIW"), [0.2, 0.2])
