"""Among how many stages and micro-batches a plan was chosen: in words, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from automap_models.core.staged import SearchLogEntry
from automap_models.formats.plan_json import PlanReport

from .tables import columns, plain
from .units import counted, seconds

if TYPE_CHECKING:
    from rich.table import Table

_OUTCOMES = {
    "planned": "not proven in time",
    "does not fit": "does not fit the memory",
    "discarded": "longer, proven by a bound",
    "proven": "longer, proven by the search",
}


def field_in_words(report: PlanReport) -> str:
    """The plans that a proof is about: `4 stages`, `1 or 4 stages`, `any of the 17 combinations tried`."""
    if len({each.micro_batches for each in report.tried}) > 1:
        return f"any of the {len(report.tried)} combinations tried"
    stages = sorted({each.stages for each in report.tried}) or [report.plan.stages]
    last = counted(stages[-1], "stage")
    return last if len(stages) == 1 else f"{stages[0]} {'or' if len(stages) == 2 else 'to'} {last}"


def tried_table(tried: Sequence[SearchLogEntry]) -> Table:
    """A row for each number of stages and micro-batches: its best plan's length on the grid, and what came of it."""
    table = columns()
    table.add_column("stages", justify="right", no_wrap=True)
    table.add_column("micro-\nbatches", justify="right", no_wrap=True)
    table.add_column("samples\neach", justify="right", no_wrap=True)
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("no plan on the\ngrid is below", justify="right", no_wrap=True)
    table.add_column("planner", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in tried:
        cells = (
            str(each.stages),
            str(each.micro_batches),
            "" if each.microbatch_size is None else str(each.microbatch_size),
            "" if each.length_s is None else seconds(each.length_s),
            "" if each.bound_s is None else seconds(each.bound_s),
            plain(each.planner or ""),
            "[bold]chosen[/bold]" if each.chosen else _outcome(each),
        )
        table.add_row(*cells)
    return table


def _outcome(each: SearchLogEntry) -> str:
    return "longer" if each.stages == 1 and each.length_s is not None else _OUTCOMES[each.outcome]
