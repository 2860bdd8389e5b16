"""A sweep as a picture of small multiples: the step over one quantity, a line and a panel for the others.

What varies decides: the quantity with the most values lies along the axis (a number of the cluster's, where the
clusters differ in that alone; else micro-batches or stages), the next one gives the lines, the clusters or what is left
the panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from automap_models.core.units import counted, seconds, time_unit
from automap_models.formats.hardware_yaml import RATES, SIZES
from automap_models.planners.portfolio.sweep import Row
from automap_models.plots.figures import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"
Value = float | str


@dataclass(frozen=True)
class Quantity:
    """Something that varies over a sweep: its name on the axis, its value in a row, and how a value is written."""

    name: str
    value: Callable[[Row], Value]
    text: Callable[[Value], str] = str

    def values(self, rows: Sequence[Row]) -> list[Value]:
        """Its different values, ascending; texts in the order of the rows."""
        different = list(dict.fromkeys(self.value(row) for row in rows))
        return sorted(different, key=float) if all(not isinstance(value, str) for value in different) else different


STAGES = Quantity("stages S", lambda row: row.stages)
MICRO_BATCHES = Quantity("micro-batches M", lambda row: row.micro_batches)
CLUSTER = Quantity("cluster", lambda row: row.cluster.name)


def _of_cluster(key: str) -> Quantity:
    if key in SIZES:
        return Quantity(key.replace("_", " "), lambda row: getattr(row.cluster, key))
    name = {
        "intra": "bandwidth inside a node, GB/s",
        "inter": "bandwidth between nodes, GB/s",
        "memory": "memory of a device, GB",
    }[key]
    return Quantity(name, lambda row: getattr(row.cluster, key) / 1e9, lambda value: f"{float(value):.4g}")


def layout(rows: Sequence[Row]) -> tuple[Quantity, Quantity, Quantity]:
    """What lies along the axis, what gives the lines, what gives the panels."""
    numbers = [quantity for quantity in map(_of_cluster, (*SIZES, *RATES)) if len(quantity.values(rows)) > 1]
    where = numbers[0] if len(numbers) == 1 else CLUSTER
    along = max(
        (quantity for quantity in (where, MICRO_BATCHES, STAGES) if quantity is not CLUSTER),
        key=lambda quantity: len(quantity.values(rows)),
    )
    rest = [quantity for quantity in (STAGES, MICRO_BATCHES, where) if quantity is not along]
    rest.sort(key=lambda quantity: quantity is CLUSTER)  # clusters make panels, not lines
    lines = max(rest[:1] if rest[1] is CLUSTER else rest, key=lambda quantity: len(quantity.values(rows)))
    (panels,) = (quantity for quantity in rest if quantity is not lines)
    return along, lines, panels


def draw_sweep(model: str, rows: Sequence[Row], *, same_batch: bool) -> Figure:
    """The figure; `same_batch` says that all rows are of one global batch: their steps compare as they are."""
    along, lines, panels = layout(rows)
    several = not same_batch and len(MICRO_BATCHES.values(rows)) > 1
    drawing = _Drawing(along, lines, several, rows)
    chosen, omitted = _panels(panels, rows)
    columns = min(4, len(chosen))
    down = math.ceil(len(chosen) / columns)
    figure = blank_figure(max(3.4 * columns + 1.2, 7.0), 2.9 * down + 1.5)
    axes = figure.subplots(down, columns, squeeze=False, sharey=True)
    for axis, value in zip(axes.flat, chosen, strict=False):
        drawing.panel(axis, [row for row in rows if panels.value(row) == value])
        if len(chosen) > 1 or panels is CLUSTER:
            name = "" if panels is CLUSTER else f"{panels.name} = "
            axis.set_title(f"{name}{panels.text(value)}", fontsize=10, parse_math=False)
    for axis in list(axes.flat)[len(chosen) :]:
        axis.set_visible(False)
    what = "step over M: one micro-batch" if several else "step: one global batch"
    figure.supylabel(f"{what}, {drawing.unit_name}", fontsize=10)
    figure.supxlabel(along.name, fontsize=10)
    more = f" (the {len(chosen)} fastest of {len(chosen) + omitted} panels)" if omitted else ""
    hollow = "; hollow: outside what the policy was trained for" if any(row.outcome.outside for row in rows) else ""
    crosses = "; × no plan" if any(not row.outcome.ok for row in rows) else ""
    title = f"{model}: {counted(len(rows), 'combination')}{more}\n○ fastest{crosses}{hollow}"
    figure.suptitle(title, fontsize=11, parse_math=False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, title=lines.name, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _panels(panels: Quantity, rows: Sequence[Row]) -> tuple[list[Value], int]:
    """The panels' values, and how many are left out: 12 fit a page, which are those with the shortest plans."""
    values = panels.values(rows)
    fastest_s = {value: min(row.pace_s for row in rows if panels.value(row) == value) for value in values}
    chosen = set(sorted(values, key=lambda value: fastest_s[value])[:12])
    return [value for value in values if value in chosen], len(values) - len(chosen)


class _Drawing:
    """What all panels share: values along the axis at even distances, colours, and the unit of time.

    Args:
        along, by: what lies along the axis, and what gives the lines.
        single: whether a step is that of one micro-batch rather than of the global batch.
        rows: all rows of the sweep.
    """

    def __init__(self, along: Quantity, by: Quantity, single: bool, rows: Sequence[Row]) -> None:
        self.along, self.by, self.single = along, by, single
        self.ticks, self.lines = along.values(rows), by.values(rows)
        steps_s = [self._step_s(row) for row in rows if row.outcome.ok]
        self.unit, self.unit_name = time_unit(max(steps_s, default=1.0))
        self.logarithmic = bool(steps_s) and max(steps_s) > 5 * min(steps_s)

    def _step_s(self, row: Row) -> float:
        return (row.step_s or 0.0) / (row.micro_batches if self.single else 1)

    def _point(self, row: Row) -> tuple[int, float]:
        return self.ticks.index(self.along.value(row)), self._step_s(row) / self.unit

    def panel(self, axis: Axes, rows: Sequence[Row]) -> None:
        """A line for each value, a ring round the fastest plan, a cross at the top where there is none."""
        for j, value in enumerate(self.lines):
            row_line = sorted((row for row in rows if self.by.value(row) == value), key=lambda row: self._point(row)[0])
            self._line(axis, row_line, j, self.by.text(value))
        planned = [row for row in rows if row.outcome.ok]
        if planned:
            best = min(planned, key=lambda row: row.pace_s)
            x = self._point(best)
            axis.plot(*x, "o", markersize=12, markerfacecolor="none", markeredgecolor="black")
            text = seconds(self._step_s(best))
            axis.annotate(text, x, (0, -16), textcoords="offset points", ha="center", fontsize=8.5)
        else:
            axis.text(0.5, 0.5, "no plan", ha="center", va="center", transform=axis.transAxes)
        self._scale(axis)

    def _line(self, axis: Axes, rows: Sequence[Row], j: int, label: str) -> None:
        colour, marker = LINE_COLOURS[j % len(LINE_COLOURS)], MARKERS[(j + j // len(LINE_COLOURS)) % len(MARKERS)]
        points = [self._point(row) for row in rows if row.outcome.ok]
        x, y = zip(*points, strict=True) if points else ((), ())
        axis.plot(x, y, color=colour, marker=marker, markersize=5, linewidth=1.5, label=label)
        outside = [self._point(row) for row in rows if row.outcome.ok and row.outcome.outside]
        if outside:
            x, y = zip(*outside, strict=True)
            axis.plot(x, y, marker, color=colour, markersize=5, markerfacecolor="white")
        missing = [self._point(row)[0] for row in rows if not row.outcome.ok]
        if missing:
            height = [0.97 - 0.04 * j] * len(missing)
            axis.plot(missing, height, "x", color=colour, markersize=5, transform=axis.get_xaxis_transform())

    def _scale(self, axis: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        step = math.ceil(len(self.ticks) / 8)
        axis.set_xticks(range(0, len(self.ticks), step), [self.along.text(value) for value in self.ticks[::step]])
        axis.set_xlim(-0.4, len(self.ticks) - 0.6)
        if self.logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.margins(y=0.15)
        axis.grid(visible=True, color="#E5E5E5", linewidth=0.7)
        axis.set_axisbelow(True)
