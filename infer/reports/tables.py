"""What printed reports share: a console, text without markup, tables of one style, labelled facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
        table.add_row("[yellow]note[/yellow]", plain(note))
    return table
