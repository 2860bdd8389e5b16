"""A profile as a picture: C, A and W as they are, summed up, on the grid, and normalised (Auto-MAP's Figures 12–15)."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid, coarse_arrays
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.units import seconds, size, size_unit, time_unit
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.plots.figures import ACTIVATION_COLOUR, BANDS, COMPUTE_COLOUR, WEIGHTS_COLOUR, blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

CLUSTER = "C"  # the paper's largest: its inter-node bandwidth makes seconds of bytes
HEADROOM = 0.09  # above 1, for the names of the parts
ROWS = (
    ("C", "computation", COMPUTE_COLOUR),
    ("A", "activations", ACTIVATION_COLOUR),
    ("W", "parameters", WEIGHTS_COLOUR),
)


def draw_profile(profile: Profile) -> Figure:
    """The figure; a notebook can show it as it is."""
    title = (
        f"{profile.model}  ·  {len(profile):,} instructions  ·  {seconds(float(profile.C.sum()))} a micro-batch  ·  "
        f"{size(float(profile.W.sum()))} of parameters"
    )
    figure = blank_figure(13.0, 10.4, title, 13)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(7.0, 3.4))[:, 0]
    _draw_steps(above, profile)
    _draw_normalised(below, profile)
    return figure


def _draw_steps(panel: SubFigure, profile: Profile) -> None:
    """A row for each array, a column for each step: as profiled, prefix sum, at the grid's points.

    A is summed nowhere, since it belongs to each cut, so its first step is as wide as two.
    """
    points = Grid(len(profile)).instruction_of_point
    grid = panel.add_gridspec(3, 3)
    for row, (key, what, colour) in enumerate(ROWS):
        raw: FloatArray = getattr(profile, key)
        summed = raw if key == "A" else np.cumsum(raw)
        first, last = panel.add_subplot(grid[row, :2] if key == "A" else grid[row, 0]), panel.add_subplot(grid[row, 2])
        if key == "A":
            _draw_filled(first, raw, colour)
        else:
            width = max(0.5, min(2.0, 260.0 / raw.size))
            first.vlines(np.arange(raw.size), 0.0, raw, colors=colour, linewidth=width, rasterized=True)
            second = panel.add_subplot(grid[row, 1])
            _draw_filled(second, summed, colour)
            _scale(second, summed, key)
            _caption(second, row, "prefix sum", "instruction, in execution order")
        last.plot(summed[points], color=colour, linewidth=0.7, alpha=0.6)
        last.plot(summed[points], ".", color=colour, markersize=3.2)
        _scale(first, raw, key)
        _scale(last, summed[points], key)
        _caption(first, row, "as profiled", "instruction, in execution order")
        _caption(last, row, f"at {DEFAULT_GRANULARITY} points", "point")
        first.set_ylabel(f"{what} {key}, {first.get_ylabel()}", color=colour)


def _caption(axes: Axes, row: int, title: str, below: str) -> None:
    """The step's name above the first row and the meaning of its axis below the last."""
    if not row:
        axes.set_title(title, fontsize=11)
    if row == len(ROWS) - 1:
        axes.set_xlabel(below)


def _draw_filled(axes: Axes, values: FloatArray, colour: str) -> None:
    x = np.arange(values.size)
    axes.fill_between(x, values, step="mid", color=colour, alpha=0.22, linewidth=0)
    axes.step(x, values, where="mid", color=colour, linewidth=1.2 if values.size <= 2000 else 0.4)


def _scale(axes: Axes, values: FloatArray, key: str) -> None:
    """Ticks in a unit that reads well; the panels of a row differ by orders of magnitude."""
    largest = float(values.max())
    unit, name = time_unit(largest) if key == "C" else size_unit(largest)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
    axes.set_ylabel(name)
    axes.set_ylim(0.0, 1.06 * max(largest, sys.float_info.min))
    axes.set_xlim(-0.5, values.size - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_normalised(panel: SubFigure, profile: Profile) -> None:
    """The three arrays as a policy reads them: on the grid, in one unit, divided by one maximum."""
    cluster = read_cluster(CLUSTER)
    coarse = coarse_arrays(profile, cluster)
    axes = panel.subplots()
    x = np.arange(DEFAULT_GRANULARITY)
    for key, what, colour in ROWS:
        sums = "" if key == "A" else ", prefix sum"
        axes.plot(x, getattr(coarse, key), color=colour, linewidth=2.0, label=f"{what} {key}{sums}")
    axes.set_title(
        f"normalised together: bytes over {size(cluster.inter)}/s, all over {seconds(coarse.scale_s)}", fontsize=11
    )
    axes.set_ylabel("share of the largest")
    axes.set_xlim(-0.5, DEFAULT_GRANULARITY - 0.5)
    axes.set_ylim(0.0, 1.0 + HEADROOM)
    axes.set_xlabel("point")
    axes.spines[["top", "right"]].set_visible(False)
    _draw_parts(axes, profile)
    panel.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)


def _draw_parts(axes: Axes, profile: Profile) -> None:
    """Bands with the names of the model's top-level parts behind the points, as far as there is room.

    Parts whose names differ in numbers only are one, such as all blocks.
    """
    tops: list[str] = []
    for i in Grid(len(profile)).instruction_of_point.tolist():
        top = re.sub(r"\d+", "*", profile.layer(i).replace(".", "/").split("/")[0])
        tops.append(top or (tops[-1] if tops else ""))
    starts = [j for j, top in enumerate(tops) if not j or top != tops[j - 1]]
    if len(starts) < 2 or any("(" in top for top in tops):  # descriptions of layers, not paths
        return
    for k, (start, end) in enumerate(zip(starts, [*starts[1:], len(tops)], strict=True)):
        axes.axvspan(start - 0.5, end - 0.5, color=BANDS[k % 2], zorder=-2, linewidth=0)
        if end - start > 0.95 * len(tops[start]):  # points that a letter takes
            x = (start + end - 1) / 2, 1.0 + 0.9 * HEADROOM
            axes.text(*x, tops[start], ha="center", va="top", fontsize=8.5, color="#555555", clip_on=True)
