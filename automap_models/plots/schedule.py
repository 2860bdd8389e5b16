"""A simulated schedule as a picture: a row a rank, a box a pass, in colours of their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.units import time_unit
from automap_models.formats.chrome_trace import OF_GRADIENTS
from automap_models.simulate.engine import PASS_KINDS, Interval, PassKind, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# Okabe and Ito's palette: told apart with any colour vision, and by lightness in print.
COLOURS: dict[PassKind, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "input-gradient": "#D55E00",
    "weight-gradient": "#999933",
    "send-forward": "#56B4E9",
    "send-backward": "#F0E442",
    "all-reduce": "#CC79A7",
    "tied-sum": "#009E73",
    "update": "#444444",
}
LABELS: dict[PassKind, str] = {
    "forward": "forward",
    "backward": "backward",
    "input-gradient": "gradients of inputs",
    "weight-gradient": "gradients of weights",
    "send-forward": "activations sent",
    "send-backward": "gradients sent",
    "all-reduce": "all-reduce",
    "tied-sum": "sum of tied weights",
    "update": "update of parameters",
}


def draw_timelines(timelines: Sequence[Timeline]) -> Figure:
    """Simulations under one another on one axis of time; of a rank's virtual stages the later ones are lighter."""
    from matplotlib.figure import Figure

    ranks = [1 + max(i.resource for i in timeline.intervals if not i.is_send) for timeline in timelines]
    figure = Figure(figsize=(13.0, 0.9 + sum(0.6 + 0.42 * count for count in ranks)), layout="constrained")
    rows = figure.subplots(
        len(timelines), 1, sharex=True, squeeze=False, height_ratios=[1.0 + count for count in ranks]
    )
    longest_s = max(timeline.length_s for timeline in timelines)
    unit_s, unit = time_unit(longest_s)
    for axes, timeline, count in zip(rows[:, 0], timelines, ranks, strict=True):
        draw_window(axes, timeline, (0.0, longest_s), unit_s, longest_s)
        name_rows(axes, count, "rank", any(i.is_send and i.resource // 2 == count - 1 for i in timeline.intervals))
        idle = f"{100 * timeline.bubble_rate:.1f} % idle time (bubble)"
        axes.set_title(f"{timeline.schedule}: {idle}", fontsize=10, loc="left")
        axes.axvline(timeline.length_s / unit_s, color="black", linewidth=1.2, zorder=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1, 0].set_xlim(0.0, 1.01 * longest_s / unit_s)
    rows[-1, 0].set_xlabel(f"time, {unit}")
    figure.legend(handles=boxes(timelines), loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    return figure


def draw_window(axes: Axes, timeline: Timeline, window: tuple[float, float], unit_s: float, width_s: float) -> None:
    """The passes, messages and all-reduces of a stretch of time.

    Args:
        axes: of the stretch.
        timeline: all of it.
        window: where the stretch begins and ends, seconds.
        unit_s: of the axis, seconds.
        width_s: of the whole picture, which may have other stretches beside this one, seconds.
    """
    chunks = 1 + max(i.chunk for i in timeline.intervals)
    for kind in COLOURS:
        _draw_kind(axes, kind, timeline.intervals, window, unit_s, width_s, chunks)


def boxes(timelines: Sequence[Timeline]) -> list[Patch]:
    """For a legend: a box of each kind that takes time."""
    from matplotlib.patches import Patch

    seen = {i.kind for timeline in timelines for i in timeline.intervals if i.end_s > i.start_s}
    return [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in COLOURS if kind in seen]


def _shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour with so much of three quarters of white in it."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    white = 0.75 * share
    return red + white * (1 - red), green + white * (1 - green), blue + white * (1 - blue)


def _draw_kind(
    axes: Axes,
    kind: PassKind,
    intervals: Sequence[Interval],
    window: tuple[float, float],
    unit_s: float,
    width_s: float,
    chunks: int,
) -> None:
    """The boxes of one kind; edges and micro-batch numbers only where there is room for them."""
    height, below = 0.52, 0.0  # both over the distance of two stages' rows; below the middle of the stage's own
    if kind.startswith("send"):
        height, below = 0.11, 0.5
    elif kind in OF_GRADIENTS:
        height, below = 0.08, 0.32
    rows: dict[int, list[Interval]] = {}
    for i in intervals:
        if i.kind == kind and i.end_s > i.start_s and i.end_s >= window[0] and i.start_s <= window[1]:
            rows.setdefault(i.resource, []).append(i)
    for resource, boxes in rows.items():
        middle = resource + below
        if kind.startswith("send"):  # the way back lies below the way there
            middle = resource // 2 + below + (resource % 2 - 0.5) * height
        shares = np.array([i.end_s - i.start_s for i in boxes]) / width_s
        edged = float(np.median(shares)) > 0.003  # narrower passes would be all edge
        axes.broken_barh(
            [(i.start_s / unit_s, (i.end_s - i.start_s) / unit_s) for i in boxes],
            (middle - height / 2, height),
            facecolors=[_shade(COLOURS[kind], i.chunk / chunks) for i in boxes],
            edgecolors="white" if edged else COLOURS[kind],  # a hair of its own colour keeps the narrowest visible
            linewidths=0.6 if edged else 0.3,
        )
        if kind in PASS_KINDS.values():
            digits = [max(2, len(str(i.micro_batch))) for i in boxes]
            wide = shares > 0.0048 * np.array(digits)
            _number(axes, [i for i, has_room in zip(boxes, wide, strict=True) if has_room], unit_s)


def _number(axes: Axes, boxes: Sequence[Interval], unit_s: float) -> None:
    for i in boxes:
        colour = "white" if i.kind == "forward" and not i.chunk else "black"
        at = (i.start_s + i.end_s) / 2 / unit_s
        axes.text(
            at, i.resource, str(i.micro_batch), ha="center", va="center", fontsize=6.5, color=colour, clip_on=True
        )


def name_rows(axes: Axes, ranks: int, what: str, loops: bool = False) -> None:
    """Name the rows of stages or ranks and, while there are few, of the links between them.

    Args:
        axes: of the picture.
        ranks: how many there are.
        what: what a row is called.
        loops: whether there is a link from the last rank to the first.
    """
    rows = [(float(s), f"{what} {s}") for s in range(ranks)]
    links = ranks if loops else ranks - 1
    if ranks <= 12:
        rows += [(s + 0.5, f"link {s} ↔ {(s + 1) % ranks}") for s in range(links)]
    axes.set_yticks([row for row, _ in rows], [name for _, name in rows], fontsize=9 if ranks <= 12 else 6)
    axes.set_ylim(ranks - (0.35 if loops else 0.6), -0.35)
