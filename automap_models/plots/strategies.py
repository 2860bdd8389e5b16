"""A strategy as a picture: the memory of every rank by kind, and steps against memory with and without its choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.estimate import DeviceMemory, Estimate
from automap_models.core.units import seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#F0E442", "#BBBBBB")
"""Of the kinds of memory in the order of DeviceMemory (Okabe and Ito's palette)."""
GB = 1e9


def draw_strategies(best: Estimate, choices: Sequence[tuple[str, Estimate | None]]) -> Figure:
    """Memory of the ranks of the best strategy, and what it and those without its choices take and hold."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks, bottom = np.arange(len(best.memory)), np.zeros(len(best.memory))
    for kind, colour in zip(DeviceMemory._fields, COLOURS, strict=True):
        held = np.array([getattr(memory, kind) for memory in best.memory]) / GB
        if held.any():
            left.bar(ranks, held, bottom=bottom, color=colour, label=kind)
            bottom += held
    memory = np.array(best.memory_bytes) / GB
    left.hlines(memory, ranks - 0.5, ranks + 0.5, color="black", label="what the device has")
    left.set_ylim(0, 1.05 * max(memory.max(), bottom.max()))
    left.set(xlabel="rank of the pipeline", ylabel="GB of a device", title=f"{best.model} on {best.cluster}")
    left.set_xticks(ranks)
    left.legend(fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    points = [("best", best), *((name, of) for name, of in choices if of is not None)]
    for name, of in points:
        star = {"marker": "*", "markersize": 14} if of is best else {"marker": "o", "markersize": 8}
        right.plot(of.step_s, of.peak_memory / GB, linestyle="", label=f"{name}: {seconds(of.step_s)}", **star)
    right.set(xlabel="step, seconds", ylabel="GB of the fullest device", title="what each choice buys")
    right.margins(0.1)
    right.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure
