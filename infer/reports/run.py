"""A run for people: predicted beside measured for every stage, and what the check says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from automap_models.core.run_record import RunRecord
from automap_models.core.units import counted, percent, rounds, seconds
from automap_models.formats.chrome_trace import run_trace_document, write_trace
from automap_models.formats.observed_json import run_document
from automap_models.requests import RunRequest
from automap_models.run.base import predicted_timeline
from automap_models.simulate.engine import Timeline

from ..runner import Report
from .text import Column, Table, fact_table, print_parts


def report(request: RunRequest, answer: RunRecord | None) -> Report:
    """A table of stages, and what the check says.

    Raises:
        SystemExit: this process is one of several, another one of which reports.
    """
    if answer is None:
        raise SystemExit(0)
    predicted = predicted_timeline(answer.plan, answer.schedule)
    document = partial(run_document, answer, predicted)
    return Report(
        lambda: print_parts(
            [Table(_columns(answer, document()["run"]["stages"]))],
            [fact_table(_facts(answer, predicted), _notes(answer))],
        ),
        document,
        {"trace": lambda path: write_trace(path, run_trace_document(answer, predicted))},
        exit_code=0 if answer.comparison is None or answer.comparison.agrees else 1,
    )


def _columns(record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Seconds of a step: what was predicted above what was measured, as the document of the run has them."""

    def pairs(key: str, in_words: Callable[[float], str]) -> list[str]:
        texts = [["–" if number is None else in_words(number) for number in row[key].values()] for row in rows]
        return ["\n".join(pair) for pair in texts]

    stages = record.plan.stages
    return [
        Column("stage", [f"{s}\n" for s in range(len(stages))]),
        Column("devices", [f"{stage.device_count}\n" for stage in stages]),
        Column("", ["predicted\nmeasured" for _ in stages], text=True),
        Column("forward", pairs("forward_s", seconds)),
        Column("backward", pairs("backward_s", seconds)),
        Column("update", pairs("update_s", seconds)),
        Column("share", pairs("share", percent)),
        Column("idle", pairs("idle_share", lambda share: f"{100 * share:.0f} %")),
    ]


def _facts(record: RunRecord, predicted: Timeline) -> Iterator[tuple[str, str]]:
    plan, losses = record.plan, [step.loss for step in record.steps]
    shape = f"{counted(len(plan.stages), 'stage')}, {rounds(plan.micro_batches)}"
    yield "run", f"{plan.model}: {shape}, schedule {record.schedule.name}, by {record.backend} ({record.executor})"
    yield "device", f"{record.device}, {record.processes} process{'es' if record.processes > 1 else ''}"
    yield "step", f"{seconds(predicted.length_s)} predicted, {seconds(record.step_s)} measured on the wall"
    yield "loss", " → ".join(f"{loss:.6g}" for loss in ([losses[0], losses[-1]] if len(losses) > 1 else losses))
    if record.comparison is not None:
        yield "check", _check(record)


def _check(record: RunRecord) -> str:
    comparison = record.comparison
    assert comparison is not None  # asked by the caller
    if comparison.difference is not None:
        return f"differs from one process: {comparison.difference}"
    return (
        f"as on one process: losses within {comparison.loss_error:.1e}, "
        f"{counted(comparison.tensors, 'gradient')} within {comparison.gradient_error:.1e}"
    )


def _notes(record: RunRecord) -> Iterator[str]:
    yield f"forward, backward and update are the {record.clock} of a stage's slowest replica in a step, medians"
    if not record.plan.step_s:
        yield "nothing is predicted: the plan was made by counting, and has no price"
    yield from record.notes
