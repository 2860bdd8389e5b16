"""A plan as a picture: the model's arrays with the cuts above, the simulated schedule below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.result import PlanReport
from automap_models.core.units import counted, rounds, seconds, size, size_unit, span, time_unit
from automap_models.formats.chrome_trace import OF_GRADIENTS
from automap_models.planners.base import maker_in_words
from automap_models.plots.figures import ACTIVATION_COLOUR, BANDS, COMPUTE_COLOUR, TINY, WEIGHTS_COLOUR
from automap_models.simulate.engine import Interval, PassKind, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Okabe and Ito's palette: told apart with any colour vision, and by lightness in print.
COLOURS: dict[PassKind, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "send-forward": "#56B4E9",
    "send-backward": "#F0E442",
    "all-reduce": "#CC79A7",
    "tied-sum": "#009E73",
}
LABELS: dict[PassKind, str] = {
    "forward": "forward",
    "backward": "backward",
    "send-forward": "activations sent",
    "send-backward": "gradients sent",
    "all-reduce": "all-reduce",
    "tied-sum": "sum of tied weights",
}
STAGE_HEIGHT, GRADIENTS_HEIGHT, LINK_HEIGHT = 0.52, 0.08, 0.22  # of the distance between two stages
GRADIENTS_BELOW, LINK_BELOW = 0.32, 0.5  # how far below the middle of a stage's row theirs is, in the same measure
ROUNDS_SHOWN = 12  # at either end, where there are too many to tell them apart
DIGIT_SHARE = 0.0048  # of the width: passes get their micro-batch number where all its digits have room
EDGED_SHARE = 0.003  # of the width: narrower passes would be all edge


def windows(report: PlanReport, timeline: Timeline) -> list[tuple[float, float]]:
    """The stretches of time that are shown, in seconds: all of it, or both ends of a long steady phase."""
    cost = report.cost
    both = 2.0 * cost.transfer_s if cost.pivot % 2 else cost.forward_s + cost.backward_s
    round_s = float(both[cost.pivot // 2])
    warm_up_s = cost.span_s - report.plan.micro_batches * round_s
    shown_s = ROUNDS_SHOWN * round_s + warm_up_s
    computed_s = max(i.end_s for i in timeline.intervals if i.kind == "backward")
    if computed_s < 2.5 * shown_s:
        return [(0.0, timeline.length_s)]
    return [(0.0, shown_s), (computed_s - shown_s, timeline.length_s)]


def draw_schedule(panel: SubFigure, report: PlanReport, timeline: Timeline) -> None:
    """Draw the timeline of a plan, with the lengths that cost model and simulation give it."""
    shown = windows(report, timeline)
    unit_s, unit = time_unit(timeline.length_s)
    columns = panel.subplots(
        1, len(shown), sharey=True, squeeze=False, width_ratios=[end - start for start, end in shown]
    )[0]
    for axes, window in zip(columns, shown, strict=True):
        for kind in COLOURS:
            _draw_kind(axes, kind, timeline.intervals, window, unit_s)
        # Below the passes, whose numbers they would strike through.
        axes.axvline(report.cost.length_s / unit_s, color="black", linestyle=":", linewidth=1.4, zorder=0.5)
        axes.axvline(timeline.length_s / unit_s, color="black", linewidth=1.4, zorder=0.5)
        axes.set_xlim(window[0] / unit_s, window[1] / unit_s)
        axes.set_xlabel(f"time, {unit}")
        axes.spines[["top", "right"]].set_visible(False)
    _name_rows(columns[0], report.plan.stages)
    last = max(timeline.length_s, report.cost.length_s)
    width_s = sum(end - start for start, end in shown)
    columns[-1].set_xlim(right=(last + 0.01 * width_s) / unit_s)
    parts = ""
    if len(shown) > 1:
        columns[-1].spines["left"].set_visible(False)
        columns[-1].tick_params(axis="y", length=0)
        parts = ": the first and the last rounds, those in between are alike"
    panel.suptitle(f"one global batch, simulated under schedule {timeline.schedule}{parts}", fontsize=10)
    _explain(panel, report, timeline)


def _draw_kind(
    axes: Axes, kind: PassKind, intervals: Sequence[Interval], window: tuple[float, float], unit_s: float
) -> None:
    """The boxes of one kind; edges and micro-batch numbers only where there is room for them."""
    height, below = STAGE_HEIGHT, 0.0
    if kind.startswith("send"):
        height, below = LINK_HEIGHT, LINK_BELOW
    elif kind in OF_GRADIENTS:
        height, below = GRADIENTS_HEIGHT, GRADIENTS_BELOW
    rows: dict[int, list[Interval]] = {}
    for i in intervals:
        if i.kind == kind and i.end_s > i.start_s and i.end_s >= window[0] and i.start_s <= window[1]:
            rows.setdefault(i.resource, []).append(i)
    for resource, boxes in rows.items():
        middle = resource + below
        shares = np.array([i.end_s - i.start_s for i in boxes]) / (window[1] - window[0])
        edged = float(np.median(shares)) > EDGED_SHARE
        axes.broken_barh(
            [(i.start_s / unit_s, (i.end_s - i.start_s) / unit_s) for i in boxes],
            (middle - height / 2, height),
            facecolors=COLOURS[kind],
            edgecolors="white" if edged else COLOURS[kind],  # a hair of its own colour keeps the narrowest visible
            linewidths=0.6 if edged else 0.3,
        )
        if kind in ("forward", "backward"):
            _number(
                axes, [i for i, share in zip(boxes, shares, strict=True) if share > _room_for(i.micro_batch)], unit_s
            )


def _room_for(micro_batch: int) -> float:
    return DIGIT_SHARE * max(2, len(str(micro_batch)))


def _number(axes: Axes, boxes: Sequence[Interval], unit_s: float) -> None:
    for i in boxes:
        colour = "white" if i.kind == "forward" else "black"
        at = (i.start_s + i.end_s) / 2 / unit_s
        axes.text(
            at, i.resource, str(i.micro_batch), ha="center", va="center", fontsize=6.5, color=colour, clip_on=True
        )


def _name_rows(axes: Axes, stages: int) -> None:
    rows = [(float(s), f"stage {s}") for s in range(stages)]
    if stages <= 12:
        rows += [(s + 0.5, f"link {s} ↔ {s + 1}") for s in range(stages - 1)]
    axes.set_yticks([row for row, _ in rows], [name for _, name in rows], fontsize=9 if stages <= 12 else 6)
    axes.set_ylim(stages - 0.6, -0.35)


def _explain(panel: SubFigure, report: PlanReport, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {i.kind for i in timeline.intervals if i.end_s > i.start_s}
    boxes = [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in COLOURS if kind in seen]
    lines = [
        Line2D([], [], color="black", linestyle=":", label=f"lower bound L: {seconds(report.cost.length_s)}"),
        Line2D([], [], color="black", linestyle="-", label=f"simulated: {seconds(timeline.length_s)}"),
    ]
    panel.legend(handles=[*boxes, *lines], loc="outside lower center", ncols=7, frameon=False, fontsize=9)


def draw(report: PlanReport, timeline: Timeline) -> Figure:
    """The figure; a notebook can show it as it is."""
    from matplotlib.figure import Figure

    schedule_height = 1.9 + 0.85 * min(report.plan.stages, 12)
    figure = Figure(figsize=(13.0, 4.3 + schedule_height), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(4.0, schedule_height))[:, 0]
    figure.suptitle(title(report), fontsize=13, parse_math=False)
    draw_arrays(above, report)
    draw_schedule(below, report, timeline)
    return figure


def title(report: PlanReport) -> str:
    """Model, cluster, shape, planner and step in one line."""
    plan, cluster, step = report.plan, report.problem.cluster, seconds(report.cost.step_s)
    kind = "data parallelism" if plan.stages == 1 else counted(plan.stages, "stage")
    what = "L" if report.problem.schedule is None else "step"
    return (
        f"{report.problem.profile.model} on {cluster.name} ({cluster.nodes} × {cluster.devices_per_node} devices)  ·  "
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
        share = 100.0 * np.cumsum(array) / max(float(array.sum()), TINY)
        front.plot(np.arange(len(profile)), share, color=colour, linewidth=2.0, label=f"{what}, prefix sum of {total}")
    front.set_ylim(0.0, 104.0)
    front.set_ylabel("C and W, % of the sum")
    behind.set_xlabel("instruction, in execution order")
    panel.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _draw_activations(axes: Axes, report: PlanReport) -> None:
    activations, at = report.problem.profile.A, np.arange(len(report.problem.profile))
    unit, name = size_unit(float(activations.max()))
    axes.fill_between(
        at,
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
    axes.set_ylim(0.0, 1.04 * max(float(activations.max()) / unit, TINY))
    axes.set_ylabel(f"A, {name}", color=ACTIVATION_COLOUR)
    axes.tick_params(axis="y", colors=ACTIVATION_COLOUR)


def _draw_stage_bands(axes: Axes, report: PlanReport) -> None:
    """Alternating bands with the stage and its devices above them, as far as there is room."""
    n = len(report.problem.profile)
    instructions = report.plan.stage_instructions(n)
    devices = report.plan.stage_devices(report.problem.cluster.devices)
    above = axes.get_xaxis_transform()
    for s, ((first, last), held) in enumerate(zip(instructions, devices, strict=True)):
        axes.axvspan(first - 0.5, last + 0.5, color=BANDS[s % 2], zorder=-2, linewidth=0)
        if s:
            axes.axvline(first - 0.5, color="black", linewidth=1.2, linestyle="--")
        wide = (last - first + 1) / n
        who = "device" if held[0] == held[1] else "devices"
        text = f"stage {s}\n{who} {span(held)}" if wide > 0.07 else f"{s}\n{span(held)}" if wide > 0.035 else ""
        axes.text((first + last) / 2, 1.02, text, ha="center", va="bottom", fontsize=9, transform=above)
    axes.set_xlim(-0.5, n - 0.5)
