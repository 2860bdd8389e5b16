"""A search as a picture: scores over episodes, as Auto-MAP's Figures 16 and 17."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.sharding import CANDIDATES
from automap_models.planners.rounds import Round

from .plots import ACTIVATION_COLOUR, COMPUTE_COLOUR, WEIGHTS_COLOUR, save_figure
from .searching import Found
from .tables import shortened
from .units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPLORING_COLOUR = "#9A9A9A"


def write_search_plot(path: Path, found: Found) -> None:
    """Draw the episodes of a search into a .png, .svg or .pdf file.

    Raises:
        BadInput: see `plots.require_plotting`.
    """
    save_figure(path, draw_search(found))


def draw_search(found: Found) -> Figure:
    """The figure; a notebook can show it as it is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(search_title(found), fontsize=12, parse_math=False)
    proven = found.report.plan.optimality
    if proven is not None:
        axes.axhline(proven.bound, color="black", linestyle="--", linewidth=1, label=f"proven bound, {proven.bound:g}")
    _draw_rounds(axes, found.rounds)
    axes.set_xlabel("episode")
    axes.set_ylabel(f"partitioned {CANDIDATES[found.report.plan.kind]}s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure


def search_title(found: Found) -> str:
    """The model, and below it kind, rules, planner and seed."""
    report, plan = found.report, found.report.plan
    cut_off = ", interrupted" if plan.interrupted else ""
    return (
        f"{shortened(report.problem.model, 80)}, {plan.kind} plan for {plan.axis_size} devices\n"
        f"rules {report.problem.rules}  ·  planner {plan.planner}, seed {report.seed}  ·  "
        f"{counted(plan.episodes, 'episode')}{cut_off}"
    )


def _draw_rounds(axes: Axes, rounds: Sequence[Round]) -> None:
    """All episodes as dots, the greedy ones and the best so far as lines, the second stage set off."""
    scores = np.concatenate([each.scores for each in rounds])
    first = np.cumsum([1, *(len(each.scores) for each in rounds)])[:-1].tolist()
    episode = np.arange(1, scores.size + 1)
    axes.plot(episode, scores, ".", color=EXPLORING_COLOUR, markersize=3, label="episodes")
    greedy = [(start, each.greedy) for start, each in zip(first, rounds, strict=True) if each.greedy is not None]
    if greedy:
        axes.plot(*zip(*greedy, strict=True), color=COMPUTE_COLOUR, label="greedy policy")
    best = np.maximum.accumulate(scores)
    axes.step(episode, best, where="post", color=ACTIVATION_COLOUR, label="best plan so far")
    second = next((start for start, each in zip(first, rounds, strict=True) if each.stage == 2), None)
    if second is not None:
        axes.axvline(second, color=WEIGHTS_COLOUR, linestyle=":", label="backtracing begins")
