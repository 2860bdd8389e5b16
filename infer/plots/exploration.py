"""The explorer's plans as a picture: what each step consists of, and beside it what fills the fullest device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from automap_models.cost.breakdown import Breakdown
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration

from ..reports.units import counted, seconds, size, size_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = Callable[[Breakdown], float]

TIMES: Mapping[str, tuple[Part, str]] = {
    "compute": (lambda parts: parts.compute_s, "#0072B2"),
    "all-reduces of activations": (lambda parts: parts.activations_s, "#56B4E9"),
    "transfers": (lambda parts: parts.transfers_s, "#009E73"),
    "bubble": (lambda parts: parts.bubble_s, "#BBBBBB"),
    "gradient all-reduce": (lambda parts: parts.gradients_s, "#D55E00"),
}
"""What a step consists of → its part, its colour (Okabe and Ito's palette)."""
SIZES: Mapping[str, tuple[Part, str]] = {
    "training state": (lambda parts: parts.state_bytes, "#E69F00"),
    "activations": (lambda parts: parts.stash_bytes, "#CC79A7"),
}
FADED = 0.35
"""Opacity of plans that do not fit."""


def draw_candidates(exploration: Exploration) -> Figure:
    """The figure; a notebook can show it as it is."""
    from matplotlib.figure import Figure

    plans = exploration.candidates
    figure = Figure(figsize=(13.0, 2.2 + 0.5 * len(plans)), layout="constrained")
    times, memory = figure.subplots(1, 2, width_ratios=(3.0, 2.0))
    figure.suptitle(title(exploration), fontsize=13, parse_math=False)
    unit_s, unit = time_unit(max(plan.length_s for plan in plans))
    _bars(times, plans, TIMES, unit_s, lambda plan: seconds(plan.length_s))
    times.set_xlabel(f"a step, {unit}")
    times.set_yticks(np.arange(len(plans)), [_label(plan) for plan in plans], parse_math=False)
    unit_bytes, unit = size_unit(max(plan.memory_bytes for plan in plans))
    _bars(memory, plans, SIZES, unit_bytes, lambda plan: size(plan.memory_bytes))
    limit = exploration.space.cluster.memory
    memory.axvline(limit / unit_bytes, color="black", linestyle="--", label=f"a device has {size(limit)}")
    memory.set_xlabel(f"memory of the fullest device, {unit}")
    memory.set_yticks([])
    for axes in (times, memory):
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.55 / len(plans) - 0.09), ncols=3, frameon=False, fontsize=9
        )
    return figure


def title(exploration: Exploration) -> str:
    """Model, cluster and batch in one line."""
    space, cluster = exploration.space, exploration.space.cluster
    samples = "" if space.global_batch is None else f"  ·  {counted(space.global_batch, 'sample')} a step"
    return (
        f"{space.model.profile.model} on {cluster.name} ({cluster.nodes} × {cluster.devices_per_node} devices){samples}"
    )


def _label(plan: Candidate) -> str:
    return plan.name if plan.fits else f"{plan.name}\n(does not fit)"


def _bars(
    axes: Axes,
    plans: tuple[Candidate, ...],
    parts: Mapping[str, tuple[Part, str]],
    unit: float,
    text: Callable[[Candidate], str],
) -> None:
    """Stacked bars, the best plan on top, each with its sum beside it."""
    left, places = np.zeros(len(plans)), np.arange(len(plans))
    for name, (part, colour) in parts.items():
        widths = np.array([part(plan.parts) for plan in plans]) / unit
        bars = axes.barh(places, widths, left=left, color=colour, height=0.7, label=name)
        for bar, plan in zip(bars, plans, strict=True):
            bar.set_alpha(1.0 if plan.fits else FADED)
        left += widths
    for place, plan, end in zip(places, plans, left, strict=True):
        behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        axes.annotate(
            text(plan), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9, bbox=behind
        )
    axes.set_xlim(0.0, 1.15 * float(left.max()))
    axes.invert_yaxis()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
