"""A plan as a picture: the model's arrays with the cuts above, the simulated schedule below; and schedules alone.

A schedule has a row a rank, a box a pass, in colours of their kinds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.result import PlanReport
from automap_models.core.units import counted, rounds, seconds, size, size_unit, span, time_unit
from automap_models.formats.chrome_trace import OF_GRADIENTS
from automap_models.planners.base import maker_in_words
from automap_models.plots.figures import ACTIVATION_COLOUR, BANDS, COMPUTE_COLOUR, WEIGHTS_COLOUR, blank_figure
from automap_models.simulate.engine import PASS_KINDS, Interval, PassKind, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.patches import Patch


def windows(report: PlanReport, timeline: Timeline) -> list[tuple[float, float]]:
    """The stretches of time that are shown, in seconds: all of it, or both ends of a long steady phase."""
    cost = report.cost
    both = 2.0 * cost.transfer_s if cost.pivot % 2 else cost.forward_s + cost.backward_s
    round_s = float(both[cost.pivot // 2])
    warm_up_s = cost.span_s - report.plan.micro_batches * round_s
    shown_s = 12 * round_s + warm_up_s  # at either end, where there are too many rounds to tell them apart
    computed_s = max(i.end_s for i in timeline.intervals if i.kind in PASS_KINDS.values())
    if computed_s < 2.5 * shown_s:
        return [(0.0, timeline.length_s)]
    return [(0.0, shown_s), (computed_s - shown_s, timeline.length_s)]


def draw_schedule(panel: SubFigure, report: PlanReport, timeline: Timeline) -> None:
    """Draw the timeline of a plan, with the lengths that cost model and simulation give it."""
    drawn_windows = windows(report, timeline)
    unit_s, unit = time_unit(timeline.length_s)
    columns = panel.subplots(
        1, len(drawn_windows), sharey=True, squeeze=False, width_ratios=[end - start for start, end in drawn_windows]
    )[0]
    width_s = sum(end - start for start, end in drawn_windows)
    for axes, window in zip(columns, drawn_windows, strict=True):
        draw_window(axes, timeline, window, unit_s, width_s)
        # Below the passes, whose numbers they would strike through.
        axes.axvline(report.cost.length_s / unit_s, color="black", linestyle=":", linewidth=1.4, zorder=0.5)
        axes.axvline(timeline.length_s / unit_s, color="black", linewidth=1.4, zorder=0.5)
        axes.set_xlim(window[0] / unit_s, window[1] / unit_s)
        axes.set_xlabel(f"time, {unit}")
        axes.spines[["top", "right"]].set_visible(False)
    name_rows(columns[0], report.plan.stages, "stage")
    last = max(timeline.length_s, report.cost.length_s)
    columns[-1].set_xlim(right=(last + 0.01 * width_s) / unit_s)
    parts = ""
    if len(drawn_windows) > 1:
        columns[-1].spines["left"].set_visible(False)
        columns[-1].tick_params(axis="y", length=0)
        parts = ": the first and the last rounds, those in between are alike"
    panel.suptitle(f"one global batch, simulated under schedule {timeline.schedule}{parts}", fontsize=10)
    _explain(panel, report, timeline)


def _explain(panel: SubFigure, report: PlanReport, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color="black", linestyle=":", label=f"length L: {seconds(report.cost.length_s)}"),
        Line2D([], [], color="black", linestyle="-", label=f"simulated: {seconds(timeline.length_s)}"),
    ]
    panel.legend(handles=[*boxes([timeline]), *lines], loc="outside lower center", ncols=7, frameon=False, fontsize=9)


def draw(report: PlanReport, timeline: Timeline) -> Figure:
    """The figure; a notebook can show it as it is."""
    schedule_height = 1.9 + 0.85 * min(report.plan.stages, 12)
    figure = blank_figure(13.0, 4.3 + schedule_height, title(report), 13)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(4.0, schedule_height))[:, 0]
    draw_arrays(above, report)
    draw_schedule(below, report, timeline)
    return figure


def title(report: PlanReport) -> str:
    """Model, cluster, shape, planner and step in one line."""
    plan, cluster, step = report.plan, report.problem.cluster, seconds(report.cost.step_s)
    kind = "data parallelism" if plan.stages == 1 else counted(plan.stages, "stage")
    what = "L" if report.problem.schedule is None else "step"
    return (
        f"{report.problem.profile.model} on {cluster.name} ({cluster.shape} devices)  ·  "
        f"{kind}, {rounds(plan.micro_batches)}  ·  by {maker_in_words(plan.planner)}  ·  {what} = {step}"
    )


def draw_arrays(panel: SubFigure, report: PlanReport) -> None:
    """Prefix sums of time and parameters, activations at every cut, and the stages as bands behind them."""
    profile = report.problem.profile
    behind = panel.subplots()
    front = behind.twinx()
    _draw_activations(behind, report)
    _draw_stage_bands(behind, report)
    for array, what, total, colour in (
        (profile.C, "computation C", seconds(float(profile.C.sum())), COMPUTE_COLOUR),
        (profile.W, "parameters W", size(float(profile.W.sum())), WEIGHTS_COLOUR),
    ):
        share = 100.0 * np.cumsum(array) / max(float(array.sum()), sys.float_info.min)
        front.plot(np.arange(len(profile)), share, color=colour, linewidth=2.0, label=f"{what}, prefix sum of {total}")
    front.set_ylim(0.0, 104.0)
    front.set_ylabel("C and W, % of the sum")
    behind.set_xlabel("instruction, in execution order")
    panel.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _draw_activations(axes: Axes, report: PlanReport) -> None:
    activations, positions = report.problem.profile.A, np.arange(len(report.problem.profile))
    unit, name = size_unit(float(activations.max()))
    axes.fill_between(
        positions,
        activations / unit,
        step="mid",
        color=ACTIVATION_COLOUR,
        alpha=0.45,
        linewidth=0,
        label="activations A, if cut here",
    )
    cuts = np.array(report.plan.cuts, dtype=np.int64)
    if cuts.size:
        axes.plot(
            cuts + 0.5,
            activations[cuts] / unit,
            "v",
            color=ACTIVATION_COLOUR,
            markeredgecolor="black",
            markersize=8,
            label="activations A at the cuts",
        )
    axes.set_ylim(0.0, 1.04 * max(float(activations.max()) / unit, sys.float_info.min))
    axes.set_ylabel(f"A, {name}", color=ACTIVATION_COLOUR)
    axes.tick_params(axis="y", colors=ACTIVATION_COLOUR)


def _draw_stage_bands(axes: Axes, report: PlanReport) -> None:
    """Alternating bands, and above them the stages and their devices: in words, or where these lack room in numbers."""
    n = len(report.problem.profile)
    instructions = report.plan.stage_instructions(n)
    devices = report.plan.stage_devices(report.problem.cluster.devices)
    above = axes.get_xaxis_transform()
    for s, (first, last) in enumerate(instructions):
        axes.axvspan(first - 0.5, last + 0.5, color=BANDS[s % 2], zorder=-2, linewidth=0)
        if s:
            axes.axvline(first - 0.5, color="black", linewidth=1.2, linestyle="--")
    labels = [f"device{'s' * (stage_span[0] < stage_span[1])} {span(stage_span)}" for stage_span in devices]
    in_words = all((b - a + 1) / n > _width(label) for (a, b), label in zip(instructions, labels, strict=True))
    if not in_words:
        labels = [span(stage_span) for stage_span in devices]
        axes.text(-0.005, 1.02, "stage\ndevice", ha="right", va="bottom", fontsize=9, transform=axes.transAxes)
    taken = 0.0
    for s, ((first, last), label) in enumerate(zip(instructions, labels, strict=True)):
        middle, width = (first + last + 1) / 2 / n, _width(max(str(s), label, key=len))
        if middle - width / 2 >= taken or in_words:
            text = f"{'stage ' * in_words}{s}\n{label}"
            axes.text((first + last) / 2, 1.02, text, ha="center", va="bottom", fontsize=9, transform=above)
            taken = middle + width / 2
    axes.set_xlim(-0.5, n - 0.5)


def _width(text: str) -> float:
    """The room that a label of a stage and the gap beside it need, as a share of the axes' width."""
    return 0.0065 * (len(text) + 1)


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
    ranks = [1 + max(i.resource for i in timeline.intervals if not i.is_send) for timeline in timelines]
    figure = blank_figure(13.0, 0.9 + sum(0.6 + 0.42 * count for count in ranks))
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
    for kind in COLOURS:
        _draw_kind(axes, kind, timeline, window, unit_s, width_s)


def boxes(timelines: Sequence[Timeline]) -> list[Patch]:
    """For a legend: a box of each kind that takes time."""
    from matplotlib.patches import Patch

    kinds = {i.kind for timeline in timelines for i in timeline.intervals if i.end_s > i.start_s}
    return [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in COLOURS if kind in kinds]


def _shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour with so much of three quarters of white in it."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    white = 0.75 * share
    return red + white * (1 - red), green + white * (1 - green), blue + white * (1 - blue)


def _draw_kind(
    axes: Axes, kind: PassKind, timeline: Timeline, window: tuple[float, float], unit_s: float, width_s: float
) -> None:
    """The boxes of one kind; edges and micro-batch numbers only where there is room for them."""
    chunks = 1 + max(i.chunk for i in timeline.intervals)
    height, below = 0.52, 0.0  # both over the distance of two stages' rows; below the middle of the stage's own
    if kind.startswith("send"):
        height, below = 0.11, 0.5
    elif kind in OF_GRADIENTS:
        height, below = 0.08, 0.32
    rows: dict[int, list[Interval]] = {}
    for i in timeline.intervals:
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
        middle = (i.start_s + i.end_s) / 2 / unit_s
        axes.text(
            middle, i.resource, str(i.micro_batch), ha="center", va="center", fontsize=6.5, color=colour, clip_on=True
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
