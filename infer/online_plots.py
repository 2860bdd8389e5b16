"""Online training as a picture: lengths over episodes, as Auto-MAP's Figure 17."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .plots import ACTIVATION_COLOUR, COMPUTE_COLOUR, save_figure
from .search_plots import EXPLORING_COLOUR
from .units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.planners.online.planner import Trained

HIGHEST = 1.5
"""Longest plan drawn, over the best one."""


def write_online_plot(path: Path, trained: Trained) -> None:
    """Draw the episodes of a training into a .png, .svg or .pdf file.

    Raises:
        BadInput: see `plots.require_plotting`.
    """
    save_figure(path, draw_online(trained))


def draw_online(trained: Trained) -> Figure:
    """The figure; a notebook can show it as it is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    problem, bound_s = trained.candidates.problem, trained.optimum.bound_s
    figure.suptitle(
        f"{problem.profile.model} on {problem.cluster.name}, {counted(problem.stages, 'stage')}: online training",
        fontsize=12,
        parse_math=False,
    )
    rounds = trained.rounds
    lengths = np.concatenate([each.lengths_s for each in rounds]) if rounds else np.zeros(0)
    ends = np.array([each.episodes for each in rounds])
    first = np.cumsum([1, *(len(each.lengths_s) for each in rounds)])[:-1]
    axes.plot(np.arange(1, lengths.size + 1), lengths, ".", color=EXPLORING_COLOUR, markersize=3, label="episodes")
    greedy = [(at, each.greedy_s) for at, each in zip(first, rounds, strict=True) if each.greedy_s is not None]
    if greedy:
        axes.plot(*zip(*greedy, strict=True), color=COMPUTE_COLOUR, linewidth=1, label="greedy policy")
    best = [each.best_s for each in rounds]
    axes.step(ends, best, where="post", color=ACTIVATION_COLOUR, linewidth=2, label="best plan so far")
    what = "shortest plan" if trained.optimum.proof == "exact" else "lower bound"
    axes.axhline(bound_s, color="black", linestyle="--", linewidth=1, label=f"{what} on the candidates")
    axes.set_ylim(0.98 * bound_s, HIGHEST * bound_s)
    axes.set_xlim(left=0)
    axes.set_xlabel("episode")
    axes.set_ylabel("length L, s")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
