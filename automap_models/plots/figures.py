"""What all pictures share: colours, the kinds of files, and writing one whole or not at all."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
COMPUTE_COLOUR, WEIGHTS_COLOUR, ACTIVATION_COLOUR = "#0072B2", "#D55E00", "#009E73"
BANDS = ("#F3F3F3", "#DFE6EC")


def blank_figure(width: float, height: float, title: str = "", fontsize: int = 12) -> Figure:
    """A figure of so many inches, empty but for its title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=fontsize, parse_math=False)
    return figure


def require_plotting(path: Path) -> None:
    """Fail before planning when the plot could not be drawn.

    Raises:
        BadInput: an unknown kind of file, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"no kind of picture ends in {path.suffix!r}", where=str(path), do=f"use {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput("matplotlib is not installed", where=str(path), do="pip install 'automap-models[plot]'")


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure, whole or not at all; equal figures give equal bytes.

    Raises:
        BadInput: see `require_plotting`, or the file cannot be written.
    """
    require_plotting(path)
    import matplotlib as mpl

    kind = path.suffix.lower()[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with warnings.catch_warnings(), mpl.rc_context({"svg.hashsalt": "automap"}):
        warnings.simplefilter("ignore")  # a glyph that the font lacks is no reason to talk
        write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=undated))


def drawn(path: str | os.PathLike[str] | None, draw: Callable[[], Figure]) -> Figure:
    """A picture, written where there is a path; whether it can be is known before it is drawn.

    Raises:
        BadInput: see `save_figure`.
    """
    require_plotting(Path("figure.png" if path is None else path))
    figure = draw()
    if path is not None:
        save_figure(Path(path), figure)
    return figure
