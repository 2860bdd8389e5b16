"""Online training as a picture: lengths over episodes, as Auto-MAP's Figure 17."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..reports.units import counted
from .episodes import draw_episodes, episodes_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.planners.online.planner import Trained

HIGHEST = 1.5
"""Longest plan drawn, over the best one."""


def draw_online(trained: Trained) -> Figure:
    """The figure; a notebook can show it as it is."""
    problem, rounds, bound_s = trained.candidates.problem, trained.rounds, trained.optimum.value
    stages = counted(problem.stages, "stage")
    title = f"{problem.profile.model} on {problem.cluster.name}, {stages}: online training"
    figure, axes = episodes_figure(title, "length L, s")
    best = np.repeat([each.best_s for each in rounds], [len(each.lengths_s) for each in rounds])
    draw_episodes(axes, [each.lengths_s for each in rounds], [each.greedy_s for each in rounds], best)
    what = "shortest plan" if trained.optimum.proof == "exact" else "lower bound"
    axes.axhline(bound_s, color="black", linestyle="--", linewidth=1, label=f"{what} on the candidates")
    longest = max((length for each in rounds for length in each.lengths_s if length < np.inf), default=np.inf)
    axes.set_ylim(0.98 * bound_s, min(1.02 * longest, HIGHEST * bound_s))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
