"""What printed reports share: the console, tables of one style, and the line of progress."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.streams import say
from automap_models.core.units import size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as ProgressBar

    from automap_models.core.cluster import Cluster, NodeGroup
    from automap_models.planners.base import Watch

TYPED: ContextVar[tuple[str, Path | None]] = ContextVar("TYPED", default=("automap", None))
"""The command that runs, as it was typed, and the file that its plan goes to."""


def console() -> Console:
    """Standard output: as wide as the terminal, else as COLUMNS says, else 100 columns; no line ends in spaces."""
    from rich.console import Console

    class QuietConsole(Console):
        """Leaves a closed pipe to the command, where rich would end the process with a code of its own."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            """Print; tables fill their last column with spaces, which nobody wants in a file."""
            if self.is_terminal:
                super().print(*objects, **options)
                return
            with self.capture() as captured:
                super().print(*objects, **options)
            self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    screen = QuietConsole(highlight=False)
    if not screen.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        screen.width = 100
    return screen


def print_parts(*parts: Iterable[RenderableType | Table]) -> None:
    """Print parts with an empty line between two; what a part holds stands one directly below the other.

    A part that holds nothing is left out.
    """
    screen = console()
    for number, part in enumerate(filter(None, map(list, parts))):
        if number:
            screen.print()
        for printed in part:
            screen.print(printed.drawn(screen.width) if isinstance(printed, Table) else printed)


def plain(text: str) -> str:
    """Text that holds no markup, whatever the profile calls its layers."""
    from rich.markup import escape

    return escape(text)


@dataclass(frozen=True)
class Column:
    """One column of a table that is laid out for a width.

    Attributes:
        heading: of one line or more.
        cells: one a row, of one line or more; or a function that makes them not wider than a number of characters.
        least: characters below which cells that are made for a width are not readable.
        text: whether its lines begin below one another, as names do; numbers end there.
    """

    heading: str
    cells: Sequence[str] | Callable[[int], Sequence[str]]
    least: int = 0
    text: bool = False

    def fitted(self, room: int) -> Sequence[str]:
        """Its cells, made for that many characters where they can be."""
        return self.cells if isinstance(self.cells, Sequence) else self.cells(room)

    def over(self, lower: Column) -> Column:
        """This column and another one in the space of one: each cell has the lines of both."""
        pairs = zip(self.fitted(_WIDEST), lower.fitted(_WIDEST), strict=True)
        return Column(f"{self.heading}\n{lower.heading}", [f"{above}\n{below}" for above, below in pairs])


_WIDEST = 10_000
"""Characters that no terminal has."""


class Table:
    """A table of the first layout that is readable in a width; of the last one with broken lines where none is.

    Readable is what is not cut off and leaves names their room. A rule below the headings is the only line.

    Args:
        layouts: columns, the most generous layout first; at most one column makes its cells for a width.
        styles: one a row, as rich calls them; none where all rows look alike.
        reasons: names and sentences that stand below the last layout, which has no room for them, where not empty.
        title: of these.
    """

    def __init__(
        self,
        *layouts: Sequence[Column],
        styles: Sequence[str] = (),
        reasons: Iterable[tuple[str, str]] = (),
        title: str = "why not the others",
    ) -> None:
        self.layouts, self.styles, self.reasons, self.title = layouts, styles, reasons, title

    def drawn(self, width: int) -> RenderableType:
        """The table in so many characters."""
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable

        tries = [(layout, gap) for gap in (2, 1) for layout in self.layouts]  # spaces between columns
        chosen, gap = next((some for some in tries if _spare(width, *some) >= 0), tries[-1])
        spare = _spare(width, chosen, gap)
        cells = [column.fitted(_least_width(column) + max(0, spare)) for column in chosen]
        used = sum(_lines_width([*rows, column.heading]) for rows, column in zip(cells, chosen, strict=True))
        padded = used + gap * len(chosen) <= width  # the last column, too
        drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=padded)
        for column in chosen:
            justify: Any = "left" if column.text else "right"
            drawn.add_column(plain(column.heading), justify=justify, no_wrap=spare >= 0, overflow="fold")
        for row, style in zip(zip(*cells, strict=True), chain(self.styles, repeat("")), strict=False):
            drawn.add_row(*map(plain, row), style=style or None)
        reasons = [(name, reason) for name, reason in self.reasons if reason] if chosen is self.layouts[-1] else []
        if not reasons:
            return drawn
        return Group(drawn, f"\n[bold]{self.title}[/bold]", fact_table(reasons))


def _spare(width: int, columns: Sequence[Column], gap: int) -> int:
    """What is left of a width after all columns have the least that they need; negative where that is too much."""
    return width - sum(map(_least_width, columns)) - gap * (len(columns) - 1)


def _least_width(column: Column) -> int:
    natural = _lines_width(column.fitted(_WIDEST))
    least = natural if isinstance(column.cells, Sequence) else min(column.least, natural)
    return max(least, _lines_width([column.heading]))


def _lines_width(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)


def fact_table(facts: Iterable[tuple[str, str]], notes: Iterable[str] = ()) -> RenderableType:
    """A label and a sentence a row, the notes last."""
    from rich.table import Table as RichTable

    sentences = RichTable.grid(padding=(0, 2, 0, 0))
    sentences.add_column(justify="right", style="bold", min_width=9)
    sentences.add_column(overflow="fold")
    for label, text in facts:
        sentences.add_row(plain(label), plain(text))
    for note in notes:
        sentences.add_row("[yellow]note[/yellow]", plain(note))
    return sentences


def plan_file(name: str) -> tuple[list[str], str]:
    """The command that writes the plan, where what was typed does not, and the plan's file, as one types it."""
    typed, out = TYPED.get()
    file = shlex.quote(str(out or name))
    return [] if out else [f"{typed} --out {file}"], file


def next_facts(commands: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What to type next, to be copied."""
    width = console().width - 13
    yield from zip(chain(["next"], repeat("")), (in_lines(command, width) for command in commands), strict=False)


def in_lines(command: str, width: int) -> str:
    """A command in lines that a shell joins, as wide as that where they can be; an option is on a line with its value.

    A comment stands before it where both have no room on one line.
    """
    arguments, _, comment = command.partition("   # ")
    if comment and len(command) > width:
        above = textwrap.wrap(comment, width, initial_indent="# ", subsequent_indent="# ")
        return "\n".join([*above, in_lines(arguments, width)])
    words = command.replace(" ", "\xa0").replace("\xa0--", " --")
    lines = textwrap.wrap(words, width - 6, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines).replace("\xa0", " ")


def print_clusters() -> None:
    """The shipped clusters: how many devices they have, how these are linked, their memory, and their kind."""
    from automap_models.formats.hardware_yaml import known_clusters, read_cluster

    clusters = [read_cluster(name) for name in known_clusters()]
    layout = (
        Column("cluster", list(known_clusters()), text=True),
        Column("nodes × devices", ["\n".join(cluster.shape.split(" + ")) for cluster in clusters]),
        Column("inside a node", [_of_groups(cluster, lambda group: f"{size(group.intra)}/s") for cluster in clusters]),
        Column(
            "between nodes",
            [_of_groups(one, lambda group: f"{size(group.inter)}/s") if one.nodes > 1 else "" for one in clusters],
        ),
        Column("memory", [_of_groups(cluster, lambda group: size(group.memory)) for cluster in clusters]),
        Column("device", [_of_groups(cluster, lambda group: group.device) for cluster in clusters], text=True),
    )
    print_parts([Table(layout)])


def _of_groups(cluster: Cluster, text: Callable[[NodeGroup], str]) -> str:
    """What is said of each group of nodes, one a line."""
    return "\n".join(map(text, cluster.node_groups))


@contextmanager
def watching(*, verbose: bool = False) -> Iterator[Watch]:
    """One line at the bottom of the terminal (stderr), if there is one, says what goes on, and leaves no trace.

    What the user's own code prints goes to stderr meanwhile.

    Args:
        verbose: say it in a line each that stays, wherever stderr goes.
    """
    from automap_models.planners.base import SILENT, Progress

    with redirect_stdout(sys.stderr):
        if verbose:
            begun_s, before = time.perf_counter(), [""]

            def print_line(news: Progress) -> None:
                if news.what != before[0]:
                    before[0] = news.what
                    say(f"{time.perf_counter() - begun_s:6.1f} s  {news.what}")

            yield print_line
            return
        if sys.stderr is None or not sys.stderr.isatty():
            yield SILENT
            return
        from automap_models.core.compiled import when_compiling

        with _progress() as bar:

            def watch(news: Progress) -> None:
                bar.update(bar.task_ids[0], description=news.what, completed=news.done or 0, total=news.total)

            when_compiling(lambda: watch(Progress("compiling searches, once: about 15 s")))
            yield watch


def _progress() -> ProgressBar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=30))
    progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    progress.add_task("starting", total=None)
    return progress
