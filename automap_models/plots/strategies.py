"""A strategy as a picture: the memory of every rank by kind, and steps against memory and against devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from automap_models.core.estimate import DeviceMemory, Estimate
from automap_models.core.units import seconds
from automap_models.plots.figures import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#F0E442", "#BBBBBB")
"""Of the kinds of memory in the order of DeviceMemory (Okabe and Ito's palette)."""
GB = 1e9
BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "fontsize": "small"}
"""Where legends are."""
MARKERS = "osD^vP"


def draw_strategies(
    best: Estimate,
    others: Sequence[tuple[str, Estimate | None]] = (),
    front: Sequence[Estimate] = (),
    sizes: Sequence[tuple[int, Estimate | None]] = (),
) -> Figure:
    """Memory of the ranks of the best strategy, and steps of strategies against memory and devices.

    Args:
        best: the best strategy.
        others: names and prices of strategies that make other choices or are of other kinds.
        front: strategies of which none is both shorter and emptier.
        sizes: devices and price of the best strategy on clusters of other sizes; none is no third picture.
    """
    swept = [(devices, estimate) for devices, estimate in sizes if estimate is not None]
    panels = 3 if len(swept) > 1 else 2
    figure = blank_figure(5.5 * panels, 5.0)
    first, middle, *right = figure.subplots(1, panels)
    _draw_ranks(first, best)
    _draw_memory(middle, best, others, front)
    if right:
        _draw_sizes(right[0], swept)
    return figure


def _draw_ranks(axes: Axes, best: Estimate) -> None:
    from matplotlib.ticker import MaxNLocator

    ranks, bottom = np.arange(len(best.memory)), np.zeros(len(best.memory))
    for kind, colour in zip(DeviceMemory._fields, COLOURS, strict=True):
        sizes = np.array([getattr(memory, kind) for memory in best.memory]) / GB
        if sizes.any():
            axes.bar(ranks, sizes, bottom=bottom, color=colour, label=kind)
            bottom += sizes
    memory = np.array(best.memory_bytes) / GB
    axes.hlines(memory, ranks - 0.5, ranks + 0.5, color="black", label="what the device has")
    axes.set_ylim(0, 1.05 * max(memory.max(), bottom.max()))
    axes.set(xlabel="rank of the pipeline", ylabel="GB of a device", title=f"{best.model} on {best.cluster}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(ncols=3, **BELOW)


def _draw_memory(
    axes: Axes, best: Estimate, others: Sequence[tuple[str, Estimate | None]], front: Sequence[Estimate]
) -> None:
    """Strategies as points, each with all its names; the front as a line, left and below which none was found."""
    if len(front) > 1:
        steps, memory = zip(*((cost.step_s, cost.peak_memory / GB) for cost in front), strict=True)
        axes.step(steps, memory, where="post", color="black", linewidth=1, label="less memory takes longer", zorder=1)
        axes.plot(steps, memory, linestyle="", marker=".", color="black", zorder=1)
    points = [(name, cost) for name, cost in others if cost is not None and cost != best]
    names: dict[Estimate, list[str]] = defaultdict(list)
    for name, cost in points:
        names[cost].append(name)
    for i, (cost, alike) in enumerate(names.items()):
        marker, colour = MARKERS[i // 10 % len(MARKERS)], f"C{i % 10}"
        label = ",\n".join(alike) + f": {seconds(cost.step_s)}"
        axes.plot(cost.step_s, cost.peak_memory / GB, linestyle="", marker=marker, color=colour, label=label, alpha=0.8)
    label = f"best: {seconds(best.step_s)}"
    axes.plot(best.step_s, best.peak_memory / GB, "*", color="black", markersize=14, label=label)
    longest = max([best.step_s, *(cost.step_s for _, cost in points), *(cost.step_s for cost in front)])
    if longest > 4 * best.step_s:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    axes.set(xlabel="step, seconds", ylabel="GB of the fullest device", title="step against memory")
    axes.margins(0.1)
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2, **BELOW)


def _plain_numbers(axis: Axis) -> None:
    """`2`, not `2 × 10⁰`, on a logarithmic axis, and so few numbers that none covers another."""
    from matplotlib.ticker import LogLocator

    axis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")


def _draw_sizes(axes: Axes, sizes: Sequence[tuple[int, Estimate]]) -> None:
    """The step on clusters of several sizes, and what it would be if it fell as devices grow."""
    devices, steps = (np.array(cost) for cost in zip(*((n, cost.step_s) for n, cost in sizes), strict=True))
    axes.loglog(devices, steps, marker="o", label="best strategy")
    axes.loglog(devices, steps[0] * devices[0] / devices, linestyle="--", color="grey", label="half on twice as many")
    for n, cost in sizes:
        label = f"{cost.tokens_per_s_per_device:,.0f} tokens/s a device\nMFU {100 * cost.mfu:.0f} %"
        last = n == devices[-1]
        sides: dict[str, Any] = {"ha": "right", "va": "top"} if last else {"ha": "left", "va": "bottom"}
        offset = (-8, -6) if last else (4, 6)
        axes.annotate(label, (n, cost.step_s), offset, textcoords="offset points", fontsize="small", **sides)
    axes.set_xticks(devices, [str(n) for n in devices], minor=False)
    axes.set_xticks([], minor=True)
    _plain_numbers(axes.yaxis)
    axes.margins(x=0.1, y=0.2)
    axes.set(xlabel="devices", ylabel="step, seconds", title="step against devices")
    axes.legend(**BELOW)
