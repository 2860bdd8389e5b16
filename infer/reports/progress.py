"""Long work as people watch it: what is being done, how far it is, how long it has taken; silent off a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

    from automap_models.planners.base import Progress


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
