"""What printed reports share: the console, tables of one style, and the line of progress."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from automap_models.core.units import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar
    from rich.table import Table

    from automap_models.planners.base import Progress

WIDTH_WITHOUT_A_TERMINAL = 100


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
        screen.width = WIDTH_WITHOUT_A_TERMINAL
    return screen


def plain(text: str) -> str:
    """Text that holds no markup, whatever the profile calls its layers."""
    from rich.markup import escape

    return escape(text)


def columns(gap: int = 2) -> Table:
    """An empty table: a rule below the headings and no other lines, `gap` spaces between columns."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False)


def fact_table(facts: Iterable[tuple[str, str]], notes: Iterable[str] = ()) -> Table:
    """A label and a sentence a row, the notes last."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold", min_width=9)
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(label, plain(text))
    for note in notes:
        table.add_row("[yellow]note[/yellow]", plain(note))
    return table


def print_clusters() -> None:
    """The shipped clusters: how many devices they have, how these are linked, and their memory."""
    from automap_models.formats.hardware_yaml import known_clusters, read_cluster

    table = columns()
    table.add_column("cluster")
    for heading in ("nodes × devices", "inside a node", "between nodes", "memory"):
        table.add_column(heading, justify="right")
    for name in known_clusters():
        cluster = read_cluster(name)
        between = f"{size(cluster.inter)}/s" if cluster.nodes > 1 else ""
        shape = f"{cluster.nodes} × {cluster.devices_per_node}"
        table.add_row(name, shape, f"{size(cluster.intra)}/s", between, size(cluster.memory))
    console().print(table)


class Steps:
    """A context in which one line at the bottom of the terminal (stderr) says what goes on; it leaves no trace."""

    def __init__(self) -> None:
        self._progress = _make()
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, what: str) -> None:
        """A step of unknown length begins."""
        self._progress.update(self._task, description=what, total=None)

    def advance(self, done: int, total: int | None, what: str) -> None:
        """That much of a step is done; `what` comes next."""
        self._progress.update(self._task, description=what, completed=done, total=total)

    def watch(self, news: Progress) -> None:
        """What a planner tells while it works (planners.base)."""
        self.advance(news.done or 0, news.total, news.what)


def _make() -> ProgressBar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
