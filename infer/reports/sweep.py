"""A sweep as people and programs read it: a table with each cluster's best row marked, a JSON document, CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from automap_models.core.microbatch import has_clock, profiled_size
from automap_models.core.units import counted, percent, seconds
from automap_models.errors import Infeasible
from automap_models.formats.atomic import write_json, write_text
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.staged_plan import SCHEMA
from automap_models.planners.base import maker_in_words
from automap_models.planners.portfolio.sweep import Row, Sweep, best_rows
from automap_models.plots.sweep import draw_sweep
from automap_models.requests import SweepRequest
from automap_models.version import __version__

from ..commands.parsing import in_options
from ..runner import Report
from .text import Column, Table, fact_table, plain, print_parts


def report(request: SweepRequest, answer: Sweep) -> Report:
    """A table, a picture, and the rows as JSON or CSV."""
    return Report(
        partial(print_sweep, answer),
        partial(sweep_document, answer),
        {"plan": lambda path: write_rows(path, sweep_document(answer))},
        lambda: draw_sweep(answer.profile.model, answer.rows, same_batch=answer.global_batch is not None),
        names={"plan": "rows"},
    )


def print_sweep(sweep: Sweep) -> None:
    """Print a sweep for people."""
    profile, rows = sweep.profile, sweep.rows
    best = best_rows(rows)
    clusters = counted(len({row.cluster.name for row in rows}), "cluster")
    listed = rows if len(rows) <= 60 else list(best.values())  # of a longer table each cluster's best row
    print_parts(
        [f"[bold]{plain(profile.model)}[/bold]: {counted(len(rows), 'combination')} on {clusters}"],
        [sweep_table(listed, best)],
        [fact_table(_facts(rows, listed, best), _notes(sweep))],
    )


def sweep_table(rows: list[Row], best: Mapping[str, Row]) -> Table:
    """A row for each combination; the best of each cluster in bold, with an arrow."""
    marked = [best.get(row.cluster.name) is row for row in rows]
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.cluster.name)]

    def named(width: int, devices: bool) -> list[str]:
        return [cell for group in groups for cell in _cluster_cells(group, width, devices)]

    others = (
        Column("stages", [str(row.stages) for row in rows]),
        Column("micro-\nbatches", [str(row.micro_batches) for row in rows]),
        Column("samples\neach", ["" if row.microbatch_size is None else str(row.microbatch_size) for row in rows]),
        Column("step", ["" if row.step_s is None else seconds(row.step_s) for row in rows]),
        Column("of ideal\nspeed", ["" if row.efficiency is None else percent(row.efficiency) for row in rows]),
        Column("planner", [_maker(row, is_best) for row, is_best in zip(rows, marked, strict=True)], text=True),
    )
    cluster = Column("cluster", partial(named, devices=False), 18, text=True)
    with_devices = Column("cluster", partial(named, devices=True), 18, text=True)
    wide = (cluster, Column("devices", [row.cluster.shape for row in rows]), *others)
    narrow = (with_devices, *others)
    return Table(wide, narrow, styles=["bold" if is_best else "" for is_best in marked])


def _cluster_cells(group: Sequence[Row], width: int, devices: bool) -> Iterator[str]:
    """Cells of a cluster's rows: a line each of its name and perhaps of its devices, the last one all that is left."""
    lines = textwrap.wrap(group[0].cluster.name, width, break_on_hyphens=False) or [""]
    lines += [f"{group[0].cluster.shape} devices"] if devices else []
    for _ in group[:-1]:
        yield lines.pop(0) if lines else ""
    yield "\n".join(lines)


def _maker(row: Row, is_best: bool) -> str:
    if row.outcome.plan is None:
        return "no plan"
    return maker_in_words(row.outcome.plan.planner) + ("*" if row.outcome.outside else "") + (" ←" if is_best else "")


def why_not(row: Row) -> str:
    """Why a row has no plan."""
    error = row.outcome.error
    if isinstance(error, Infeasible):
        return "no plan fits the memory"
    return "" if error is None else in_options(error.what)


def _facts(rows: list[Row], listed: list[Row], best: Mapping[str, Row]) -> Iterator[tuple[str, str]]:
    if best:
        shortest = min(best.values(), key=lambda row: row.pace_s)
        what = f"{counted(shortest.stages, 'stage')} and M = {shortest.micro_batches}"
        where = f"{seconds(shortest.step_s or 0.0)} on {shortest.cluster.name} with {what}"
        yield "fastest", f"{where}; ← marks the best of each cluster"
    for reason, count in Counter(why_not(row) for row in rows if row.outcome.plan is None).items():
        yield "no plan", f"{count} of {counted(len(rows), 'combination')}: {reason}"
    if len(listed) < len(rows):
        yield "shown", "the best of each cluster; --out writes all rows, --json prints them"


def _notes(sweep: Sweep) -> Iterator[str]:
    rows, profiled = sweep.rows, profiled_size(sweep.profile)
    outside = {row.outcome.outside for row in rows if row.outcome.plan is not None} - {None}
    if outside:
        reason = min(map(str, outside))
        yield f"* planned outside what the policy was trained for, perhaps longer than need be: {reason}"
    if sweep.global_batch is None and len({row.micro_batches for row in rows}) > 1:
        yield "more micro-batches make a larger global batch: the best of a cluster is the one with the best speed"
    if any(row.microbatch_size not in (None, profiled) for row in rows):
        proportional = "taken in proportion, though small ones run less efficiently"
        how = "those of the clock" if has_clock(sweep.profile) else proportional
        yield f"times of other micro-batches than the {profiled} samples profiled are {how}"


def sweep_document(sweep: Sweep) -> dict[str, Any]:
    """The sweep as plain Python numbers, lists and dictionaries; steps and lengths in seconds."""
    profile, best = sweep.profile, best_rows(sweep.rows)
    return {
        "schema": SCHEMA,
        "kind": "sweep",
        "model": profile.model,
        "rows": [_row(row, best.get(row.cluster.name) is row) for row in sweep.rows],
        "provenance": {
            "automap_version": __version__,
            "profile_fingerprint": profile.fingerprint,
            "profile_microbatch_size": profiled_size(profile),
        },
    }


def _row(row: Row, best: bool) -> dict[str, Any]:
    outcome, plan = row.outcome, row.outcome.plan
    bound = outcome.result.bound if outcome.result else None
    return {
        "cluster": ClusterDocument.from_cluster(row.cluster).builtins(),
        "stages": row.stages,
        "micro_batches": row.micro_batches,
        "microbatch_size": row.microbatch_size,
        "schedule": outcome.problem.schedule if outcome.problem else None,
        "step_s": row.step_s if outcome.problem and outcome.problem.schedule is not None else None,
        "length_s": float(outcome.result.cost.length_s) if outcome.result and plan else None,
        "efficiency": row.efficiency,
        "best_of_cluster": best,
        "planner": plan.planner if plan else None,
        "cuts": list(plan.cuts) if plan else None,
        "device_cuts": list(plan.device_cuts) if plan else None,
        "optimality": {"bound_s": bound.value, "proof": bound.proof} if bound else None,
        "error": in_options(str(outcome.error)) if outcome.error else None,
        "outside": outcome.outside,
    }


def write_rows(path: Path, document: Mapping[str, Any]) -> None:
    """Write a sweep's document as .json, or its rows as .csv.

    Raises:
        BadInput: the file cannot be written.
    """
    if path.suffix.lower() == ".json":
        write_json(path, document)
        return
    flat, text = [_flat(row) for row in document["rows"]], io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_text(path, text.getvalue())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without nesting: the cluster's and the proof's fields as columns, cuts with spaces between."""
    cluster, proof = row["cluster"], row["optimality"] or {}
    flat = {"cluster": cluster["name"], **{key: cluster[key] for key in cluster if key != "name"}}
    flat |= {key: value for key, value in row.items() if key not in ("cluster", "optimality")}
    flat |= {key: "" if row[key] is None else " ".join(map(str, row[key])) for key in ("cuts", "device_cuts")}
    return flat | {"bound_s": proof.get("bound_s"), "proof": proof.get("proof")}
