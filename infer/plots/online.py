"""Online training as a picture: lengths over episodes, as Auto-MAP's Figure 17."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..reports.units import counted
from .episodes import draw_episodes, episodes_figure
from .pipeline import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.core.result import Result
    from automap_models.core.staged import StagedPlan, StagedProblem

HIGHEST = 1.5
"""Longest plan drawn, over the best one."""


def write_online_plot(path: Path, result: Result[StagedProblem, StagedPlan]) -> None:
    """Draw the episodes of a training into a .png, .svg or .pdf file.

    Raises:
        BadInput: see `plots.require_plotting`.
    """
    save_figure(path, draw_online(result))


def draw_online(result: Result[StagedProblem, StagedPlan]) -> Figure:
    """The figure; a notebook can show it as it is."""
    problem, rounds, bound = result.problem, result.search_log, result.facts["candidate_bound"]
    stages = counted(problem.stages, "stage")
    title = f"{problem.profile.model} on {problem.cluster.name}, {stages}: online training"
    figure, axes = episodes_figure(title, "length L, s")
    best = np.repeat([entry.best_s for entry in rounds], [len(entry.lengths_s) for entry in rounds])
    draw_episodes(axes, [entry.lengths_s for entry in rounds], [entry.greedy_s for entry in rounds], best)
    what = "shortest plan" if bound.proof == "exact" else "lower bound"
    axes.axhline(bound.value, color="black", linestyle="--", linewidth=1, label=f"{what} on the candidates")
    longest = max((length for entry in rounds for length in entry.lengths_s if length < np.inf), default=np.inf)
    axes.set_ylim(0.98 * bound.value, min(1.02 * longest, HIGHEST * bound.value))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
