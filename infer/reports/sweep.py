"""A sweep as people read it: a table, each cluster's best row marked, and what stands in the way of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.core.microbatch import profiled_size
from automap_models.core.profile import Profile
from automap_models.errors import Infeasible

from ..sweeps import Row, best_rows
from .tables import columns, console, fact_table, plain, shortened
from .units import counted, percent, seconds

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 60
"""Longer tables show each cluster's best row only."""
CLUSTER_WIDTH = 30
WHY_WIDTH = 34


def print_sweep(profile: Profile, rows: list[Row], files: Mapping[str, Path], global_batch: int | None) -> None:
    """Print a sweep for people.

    Args:
        files: what was written → where.
        global_batch: samples between two updates, if they are the same for all rows.
    """
    screen = console()
    best = best_rows(rows)
    clusters = counted(len({row.cluster.name for row in rows}), "cluster")
    screen.print(f"[bold]{plain(profile.model)}[/bold]: {counted(len(rows), 'combination')} on {clusters}\n")
    shown = rows if len(rows) <= MOST_ROWS else list(best.values())
    screen.print(sweep_table(shown, best))
    screen.print()
    screen.print(fact_table(_facts(rows, shown, best), _notes(rows, global_batch, profiled_size(profile))))
    for what, path in files.items():
        screen.print(f"[bold]{'wrote':>9}[/bold]  {plain(f'{what}: {path}')}", soft_wrap=True)


def sweep_table(rows: list[Row], best: Mapping[str, Row]) -> Table:
    """A row for each combination; the best of each cluster in bold, with an arrow."""
    table = columns()
    table.add_column("cluster", no_wrap=True)
    for heading in ("devices", "stages", "micro-\nbatches", "samples\neach", "length", "of ideal\nspeed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("planner", no_wrap=True)
    before = None
    for row in rows:
        name = row.cluster.name if row.cluster.name != before else ""
        before = row.cluster.name
        is_best = best.get(row.cluster.name) is row
        table.add_row(plain(shortened(name, CLUSTER_WIDTH)), *_cells(row, is_best), style="bold" if is_best else "")
    return table


def _cells(row: Row, is_best: bool) -> Iterator[str]:
    yield f"{row.cluster.nodes} × {row.cluster.devices_per_node}"
    yield str(row.stages)
    yield str(row.micro_batches)
    yield "" if row.microbatch_size is None else str(row.microbatch_size)
    yield "" if row.length_s is None else seconds(row.length_s)
    yield "" if row.efficiency is None else percent(row.efficiency)
    if row.outcome.plan is None:
        yield plain(why_not(row))
    else:
        yield plain(row.outcome.plan.planner) + ("*" if row.outcome.outside else "") + (" ←" if is_best else "")


def why_not(row: Row) -> str:
    """Why a row has no plan, in few words."""
    error = row.outcome.error
    if isinstance(error, Infeasible):
        return "no plan fits the memory"
    text = "" if error is None else error.what
    return text if len(text) <= WHY_WIDTH else f"{text[: WHY_WIDTH - 1]}…"


def _facts(rows: list[Row], shown: list[Row], best: Mapping[str, Row]) -> Iterator[tuple[str, str]]:
    planned = [row for row in rows if row.length_s is not None]
    if best:
        shortest = min(best.values(), key=lambda row: row.pace_s)
        yield (
            "fastest",
            f"{seconds(shortest.length_s or 0.0)} on {shortest.cluster.name} with {counted(shortest.stages, 'stage')} "
            f"and M = {shortest.micro_batches}; ← marks the best of each cluster",
        )
    if len(planned) < len(rows):
        yield "no plan", f"{len(rows) - len(planned)} of {counted(len(rows), 'combination')}"
    if len(shown) < len(rows):
        yield "shown", "the best of each cluster; --out writes all rows, --json prints them"


def _notes(rows: list[Row], global_batch: int | None, profiled: int | None) -> Iterator[str]:
    outside = {row.outcome.outside for row in rows if row.outcome.plan is not None} - {None}
    if outside:
        why = min(map(str, outside))
        yield f"* planned outside what the policy was trained for, perhaps longer than need be: {why}"
    if global_batch is None and len({row.micro_batches for row in rows}) > 1:
        yield "more micro-batches make a larger global batch: the best of a cluster is the one with the best speed"
    if any(row.microbatch_size not in (None, profiled) for row in rows):
        yield (
            f"times of other micro-batches than the {profiled} samples profiled are taken in proportion, "
            "though small ones run less efficiently"
        )
