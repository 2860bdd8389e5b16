"""What was written for another framework, as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from automap_models.core.units import counted, rounds
from automap_models.export.exporter import Exported, write_files
from automap_models.requests import ExportRequest

from ..runner import Report
from .text import fact_table, plain, print_parts


def report(request: ExportRequest, answer: Exported) -> Report:
    """The plan's text for the target itself, for a pipe or a redirection, or with a file what is in it."""
    written = answer.written
    return Report(
        partial(print, written.text, end="") if request.out is None else partial(print_export, answer),
        partial(export_document, answer),
        {"file": lambda path: write_files(path, written)},
        remarks=tuple(f"note: {note}" for note in written.notes),
    )


def print_export(exported: Exported) -> None:
    """Print what is in the file."""
    title = f"[bold]{plain(exported.source.name)}[/bold] for {plain(exported.target)}"
    print_parts([title], [fact_table(facts(exported))])


def facts(exported: Exported) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything."""
    plan = exported.source.plan
    if plan.sharding is not None:
        mesh = " and ".join(f"{axis.size} along {axis.name}" for axis in plan.sharding.mesh)
        yield "plan", f"{counted(len(plan.sharding.variables), 'variable')} on a mesh of {mesh}"
    else:
        schedule = plan.build_schedule()
        ranks = counted(schedule.ranks, "rank") if schedule.virtual > 1 else ""
        stages = counted(schedule.stages, "stage") + (f" on {ranks}" if ranks else "")
        yield "plan", f"{stages}, {rounds(schedule.micro_batches)}, {schedule.name}"
    if exported.snapped is not None:
        for change in exported.snapped.changes:
            yield "changed", change
        yield "loses", exported.snapped.loss
    if exported.checked_by is not None:
        yield "checked", f"{exported.checked_by} reads the plan back as it is"


def export_document(exported: Exported) -> dict[str, Any]:
    """The same as plain JSON types; texts of the files by ending, that of the file itself under an empty one."""
    moved, written = exported.snapped, exported.written
    return {
        "schema": 1,
        "kind": "export",
        "target": exported.target,
        "model": exported.source.name,
        "files": {"": written.text, **written.beside},
        "notes": list(written.notes),
        "changes": [] if moved is None else list(moved.changes),
        "step_s": None if moved is None else {"before": moved.before_s, "after": moved.after_s},
        "checked_by": exported.checked_by,
    }
