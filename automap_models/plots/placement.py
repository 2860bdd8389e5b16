"""A placement as a picture: each device's load as a bar of compute and transfers, and its memory beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.placement import PlacementResult, describe_objective, device_name, model_name, unit_of_work
from automap_models.core.units import seconds, shortened, size, size_unit, time_unit
from automap_models.plots.figures import ACTIVATION_COLOUR, COMPUTE_COLOUR, WEIGHTS_COLOUR, blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELLED = 24  # devices whose bars have room for a number


def draw_placement(report: PlacementResult) -> Figure:
    """The figure; a notebook can show it as it is."""
    if report.problem.objective == "step":
        return _draw_step(report)
    width = float(np.clip(5.0 + 0.55 * report.problem.devices, 8.0, 20.0))
    figure = blank_figure(width, 6.5, placement_title(report))
    loads, memory = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    _draw_loads(loads, report)
    _draw_memory(memory, report)
    return figure


def _draw_step(report: PlacementResult) -> Figure:
    """What every device and every receiving side does when, and which device has which part of the graph."""
    problem, line, assignment = report.problem, report.cost.timeline, report.required_plan().assignment
    rows = problem.devices
    figure = blank_figure(13.0, float(np.clip(3.5 + 0.5 * rows, 5.0, 14.0)), placement_title(report))
    gantt, order = figure.subplots(2, 1, height_ratios=(3, 1))
    unit, name = time_unit(float(line.makespan_s))
    backward = problem.graph.backward
    for device in range(rows):
        on_device = assignment == device
        for chosen, colour in ((on_device & ~backward, COMPUTE_COLOUR), (on_device & backward, ACTIVATION_COLOUR)):
            spans = np.stack([line.start_s, line.finish_s - line.start_s], axis=1)[chosen] / unit
            gantt.broken_barh(spans.tolist(), (device - 0.1, 0.45), facecolors=colour, linewidth=0)
        to = line.target == device
        spans = np.stack([line.sent_s, line.received_s - line.sent_s], axis=1)[to] / unit
        gantt.broken_barh(spans.tolist(), (device - 0.4, 0.25), facecolors=WEIGHTS_COLOUR, linewidth=0)
    if report.bound is not None:
        gantt.axvline(report.bound.value / unit, color="black", linestyle="--", linewidth=1.0)
    handles = [("forward", COMPUTE_COLOUR), ("backward and update", ACTIVATION_COLOUR), ("received", WEIGHTS_COLOUR)]
    for label, colour in handles:
        gantt.bar(0, 0, color=colour, label=label)
    gantt.plot([], [], color="black", linestyle="--", label="proven lower bound")
    gantt.set_yticks(range(rows), [device_name(problem, device) for device in range(rows)])
    gantt.invert_yaxis()
    gantt.set_ylabel("device")
    gantt.set_xlabel(f"time, {name}")
    gantt.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    _draw_order(order, report)
    return figure


def _draw_order(axes: Axes, report: PlacementResult) -> None:
    """A dot an operation: its device over its place in topological order."""
    from automap_models.core.dag import topological_order

    problem = report.problem
    placed = report.required_plan().assignment[topological_order(problem.graph.successors())]
    colours = 10 if problem.devices <= 10 else 20
    axes.scatter(
        np.arange(placed.size), placed, c=placed, cmap=f"tab{colours}", vmin=0, vmax=colours - 1, s=4, linewidths=0
    )
    axes.set_yticks(range(problem.devices), [device_name(problem, d) for d in range(problem.devices)], fontsize=7)
    axes.invert_yaxis()
    axes.set_ylabel("device")
    axes.set_xlabel("operation in topological order")


def placement_title(report: PlacementResult) -> str:
    """The model, and below it objective, planner and value."""
    unit = unit_of_work(report.problem.graph)
    what = {"latency": "latency", "step": "step"}.get(report.problem.objective, f"time a {unit}")
    return (
        f"{shortened(model_name(report.problem.graph), 80)}\n{describe_objective(report.problem)}  ·  "
        f"planner: {report.required_plan().planner}  ·  {what} = {seconds(report.cost.value_s)}"
    )


def _draw_loads(axes: Axes, report: PlacementResult) -> None:
    """Transfers on top of the compute, or beside it where they overlap; the value and its bound as lines."""
    cost, problem = report.cost, report.problem
    bound_s = None if report.bound is None else report.bound.value
    unit, name = time_unit(max(float(cost.loads_s.max()), bound_s or 0.0))
    positions = np.arange(problem.devices)
    compute, transfer = cost.compute_s / unit, cost.transfer_s / unit
    if problem.communication == "max":
        axes.bar(positions - 0.2, compute, 0.4, color=COMPUTE_COLOUR, label="compute")
        axes.bar(positions + 0.2, transfer, 0.4, color=WEIGHTS_COLOUR, label="transfers")
    else:
        axes.bar(positions, compute, 0.7, color=COMPUTE_COLOUR, label="compute")
        axes.bar(positions, transfer, 0.7, bottom=compute, color=WEIGHTS_COLOUR, label="transfers")
    if problem.devices <= LABELLED:
        for device, load_s in enumerate(cost.loads_s.tolist()):
            axes.annotate(
                f"{load_s / unit:.3g}",
                (device, load_s / unit),
                (0, 5),
                textcoords="offset points",
                ha="center",
                bbox={"boxstyle": "square,pad=0", "facecolor": "white", "edgecolor": "none"},  # over the bound's line
            )
    if problem.objective == "throughput" and bound_s is not None:
        label = f"proven lower bound, {seconds(bound_s)}"
        axes.axhline(bound_s / unit, color="black", linestyle="--", linewidth=1.0, label=label)
    axes.set_ylabel(f"busy with one {unit_of_work(problem.graph)}, {name}")
    axes.margins(y=0.12)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _draw_memory(axes: Axes, report: PlacementResult) -> None:
    problem, used = report.problem, report.cost.memory_bytes
    largest = max(float(used.max()), problem.memory_bytes if problem.accelerators else 0.0)
    unit, name = size_unit(largest)
    positions = np.arange(problem.devices)
    axes.bar(positions, used / unit, 0.7, color=ACTIVATION_COLOUR)
    if problem.accelerators:
        label = f"an accelerator has {size(problem.memory_bytes)}"
        ends = (-0.5, problem.accelerators - 0.5)
        axes.hlines(problem.memory_bytes / unit, *ends, color="black", linestyle="--", linewidth=1.0, label=label)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    axes.set_ylabel(f"memory, {name}")
    axes.margins(y=0.12)
    if problem.devices <= LABELLED:
        axes.set_xticks(positions, [device_name(problem, device) for device in range(problem.devices)])
    axes.set_xlabel("device")
