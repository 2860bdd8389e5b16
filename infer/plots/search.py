"""A search as a picture: scores over episodes, as Auto-MAP's Figures 16 and 17."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.sharding import CANDIDATES

from ..commands.searching import Found
from ..reports.tables import shortened
from ..reports.units import counted
from .episodes import draw_episodes, episodes_figure, first_episodes
from .figures import WEIGHTS_COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_search(found: Found) -> Figure:
    """The figure; a notebook can show it as it is."""
    figure, axes = episodes_figure(search_title(found), f"partitioned {CANDIDATES[found.report.plan.kind]}s")
    proven, rounds = found.report.plan.optimality, found.rounds
    if proven is not None:
        axes.axhline(proven.bound, color="black", linestyle="--", linewidth=1, label=f"proven bound, {proven.bound:g}")
    scores = [each.scores for each in rounds]
    best = np.maximum.accumulate(np.concatenate(scores))
    draw_episodes(axes, scores, [each.greedy for each in rounds], best)
    second = [at for at, each in zip(first_episodes(scores), rounds, strict=True) if each.stage == 2]
    if second:
        axes.axvline(second[0], color=WEIGHTS_COLOUR, linestyle=":", label="backtracing begins")
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])
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
