"""What printed reports share: units as people read them, the console, tables of one style, and the line of progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..commands.arguments import in_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar
    from rich.table import Table

    from automap_models.planners.base import Progress

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_unit(largest_s: float) -> tuple[float, str]:
    """The unit in which a time, or the largest of several, reads best: how many seconds it has, and its name."""
    return next(((size, name) for size, name in _TIMES if largest_s >= size), _TIMES[-1]) if largest_s else (1.0, "s")


def seconds(value_s: float) -> str:
    """`0.01234` → `12.3 ms`."""
    size, name = time_unit(value_s)
    return f"{_three_digits(value_s / size)} {name}"


def size_unit(largest_bytes: float) -> tuple[float, str]:
    """The unit in which a size, or the largest of several, reads best: how many bytes it has, and its name."""
    return next(((unit, name) for unit, name in _SIZES if largest_bytes >= unit), (1.0, "B"))


def size(value_bytes: float) -> str:
    """`32e9` → `32.0 GB` (decimal, as vendors and link speeds count)."""
    unit, name = size_unit(value_bytes)
    return f"{_three_digits(value_bytes / unit)} {name}"


def percent(fraction: float) -> str:
    """`0.0123` → `1.2 %`, with a second digit where there would only be zeros."""
    return f"{100 * fraction:.1f} %" if abs(fraction) >= 0.001 or not fraction else f"{100 * fraction:.2g} %"


def span(first_last: Sequence[int]) -> str:
    """`(0, 7)` → `0–7`, `(5, 5)` → `5`."""
    first, last = first_last
    return str(first) if first == last else f"{first}–{last}"


def counted(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounds(micro_batches: int) -> str:
    """`1 micro-batch`, `16 micro-batches`."""
    return f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"


def _three_digits(value: float) -> str:
    if not value:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


WIDTH_WITHOUT_A_TERMINAL = 100


def console() -> Console:
    """Standard output; 100 columns wide where it is no terminal."""
    from rich.console import Console

    class QuietConsole(Console):
        """Leaves a closed pipe to the command, where rich would end the process with a code of its own."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    screen = QuietConsole(highlight=False)
    if not screen.is_terminal:
        screen.width = WIDTH_WITHOUT_A_TERMINAL
    return screen


def plain(text: str) -> str:
    """Text that holds no markup, whatever the profile calls its layers."""
    from rich.markup import escape

    return escape(text)


def shortened(text: str, width: int) -> str:
    """The end of a long path says more than its beginning."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


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
        table.add_row("[yellow]note[/yellow]", plain(in_options(note)))
    return table


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
