"""Searches as pictures: the explorer's plans, and the episodes of an agent (Auto-MAP's Figures 16 and 17).

A plan's bar shows what its step consists of, and beside it what fills the fullest device. Of a training every episode,
the greedy policy and the best plan are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from automap_models.core.sharding import CANDIDATES
from automap_models.core.units import counted, seconds, shortened, size, size_unit, time_unit
from automap_models.formats.sharding_plan import ShardingReport
from automap_models.plots.figures import ACTIVATION_COLOUR, COMPUTE_COLOUR, WEIGHTS_COLOUR, blank_figure
from automap_models.simulate.breakdown import Breakdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from automap_models.core.result import Result
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.planners.portfolio.candidate import Candidate
    from automap_models.planners.portfolio.explore import Exploration

Part = Callable[[Breakdown], float]

TIMES: Mapping[str, tuple[Part, str]] = {
    "compute": (lambda parts: parts.compute_s, "#0072B2"),
    "all-reduces of activations": (lambda parts: parts.activations_s, "#56B4E9"),
    "transfers": (lambda parts: parts.transfers_s, "#009E73"),
    "idle time": (lambda parts: parts.bubble_s, "#BBBBBB"),
    "gradient all-reduce": (lambda parts: parts.gradients_s, "#D55E00"),
    "sum of tied weights": (lambda parts: parts.tied_s, "#F0E442"),
    "update": (lambda parts: parts.update_s, "#444444"),
}
"""What a step consists of → its part, its colour (Okabe and Ito's palette)."""
SIZES: Mapping[str, tuple[Part, str]] = {
    "training state": (lambda parts: parts.state_bytes, "#E69F00"),
    "saved activations": (lambda parts: parts.stash_bytes, "#CC79A7"),
}


def draw_candidates(exploration: Exploration) -> Figure:
    """The figure; a notebook can show it as it is."""
    plans, limit = exploration.candidates, exploration.space.cluster.memory
    figure = blank_figure(13.0, 2.4 + 0.5 * len(plans), title(exploration), 13)
    times, memory = figure.subplots(1, 2, width_ratios=(3.0, 2.0))
    unit_s, unit = time_unit(max(plan.step_s for plan in plans))
    _bars(times, plans, TIMES, unit_s, lambda plan: seconds(plan.step_s))
    times.set_xlabel(f"step time, {unit}")
    names = [plan.name if plan.fits else f"{plan.name}\n(does not fit)" for plan in plans]
    times.set_yticks(np.arange(len(plans)), names, parse_math=False)
    unit_bytes, unit = size_unit(max(plan.memory_bytes for plan in plans))
    _bars(memory, plans, SIZES, unit_bytes, lambda plan: size(plan.memory_bytes), limit)
    has = "the smallest device has" if exploration.space.cluster.groups else "a device has"
    memory.axvline(limit / unit_bytes, color="black", linestyle="--", label=f"{has} {size(limit)}", zorder=0.5)
    memory.set_xlabel(f"memory of the fullest device, {unit}")
    memory.set_yticks([])
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def title(exploration: Exploration) -> str:
    """Model, cluster and batch in one line."""
    space, cluster = exploration.space, exploration.space.cluster
    samples = "" if space.global_batch is None else f"  ·  {counted(space.global_batch, 'sample')} a step"
    return f"{space.model.profile.model} on {cluster.name} ({cluster.shape} devices){samples}"


def _bars(
    axes: Axes,
    plans: tuple[Candidate, ...],
    parts: Mapping[str, tuple[Part, str]],
    unit: float,
    text: Callable[[Candidate], str],
    line: float = np.inf,
) -> None:
    """Stacked bars, the best plan on top, each with its sum beside it, or beyond a line that it would cross."""
    starts, places = np.zeros(len(plans)), np.arange(len(plans))
    for name, (part, colour) in parts.items():
        widths = np.array([part(plan.parts) for plan in plans]) / unit
        if not widths.any():
            continue
        bars = axes.barh(places, widths, left=starts, color=colour, height=0.7, label=name)
        for bar, plan in zip(bars, plans, strict=True):
            bar.set_alpha(1.0 if plan.fits else 0.35)
        starts += widths
    room = 0.2 * float(starts.max())  # that a bar's sum takes beside it
    ends = [line / unit if end <= line / unit < end + room else end for end in starts.tolist()]
    for place, plan, end in zip(places, plans, ends, strict=True):
        axes.annotate(text(plan), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0.0, max(ends) + room)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


EXPLORING_COLOUR = "#9A9A9A"


def episodes_figure(title: str, quantity: str) -> tuple[Figure, Axes]:
    """An empty figure over episodes; `told` is what its upright axis says."""
    figure = blank_figure(9.0, 5.0, title)
    axes = figure.subplots()
    axes.set_xlabel("episode")
    axes.set_ylabel(quantity)
    axes.grid(alpha=0.3)
    return figure, axes


def first_episodes(rounds: Sequence[Sequence[float]]) -> list[int]:
    """The number, from 1 on, of each round's first episode."""
    first: list[int] = np.cumsum([1, *(len(scores) for scores in rounds)])[:-1].tolist()
    return first


def draw_episodes(
    axes: Axes, rounds: Sequence[Sequence[float]], greedy: Sequence[float | None], best: NDArray[np.float64]
) -> None:
    """Episodes as dots, the greedy ones and the best so far as lines.

    Args:
        rounds: what the episodes of each round came to.
        greedy: the same of the one without exploration, None where there was none.
        best: [episodes] so far.
    """
    episode = np.arange(1, best.size + 1)
    values = np.concatenate([np.asarray(scores, dtype=np.float64) for scores in rounds]) if rounds else np.zeros(0)
    axes.plot(episode, values, ".", color=EXPLORING_COLOUR, markersize=3, label="episodes")
    line = [(number, value) for number, value in zip(first_episodes(rounds), greedy, strict=True) if value is not None]
    if line:
        axes.plot(*zip(*line, strict=True), color=COMPUTE_COLOUR, linewidth=1, label="greedy policy")
    axes.step(episode, best, where="post", color=ACTIVATION_COLOUR, linewidth=2, label="best plan so far")
    axes.set_xlim(left=0)


def draw_search(report: ShardingReport) -> Figure:
    """The figure; a notebook can show it as it is."""
    figure, axes = episodes_figure(search_title(report), f"partitioned {CANDIDATES[report.plan.mesh[0].kind]}s")
    proven, rounds = report.bound, report.search_log
    if proven is not None:
        axes.axhline(proven.value, color="black", linestyle="--", linewidth=1, label=f"proven bound, {proven.value:g}")
    scores = [entry.scores for entry in rounds]
    best = np.maximum.accumulate(np.concatenate(scores))
    draw_episodes(axes, scores, [entry.greedy for entry in rounds], best)
    second = [number for number, entry in zip(first_episodes(scores), rounds, strict=True) if entry.stage == 2]
    if second:
        axes.axvline(second[0], color=WEIGHTS_COLOUR, linestyle=":", label="backtracing begins")
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure


def search_title(report: ShardingReport) -> str:
    """The model, and below it kind, rules, planner and seed."""
    facts, (axis,) = report.facts, report.plan.mesh
    cut_off = ", interrupted" if facts["interrupted"] else ""
    return (
        f"{shortened(report.problem.model, 80)}, {axis.kind} plan for {axis.size} devices\n"
        f"rules {report.problem.rules}  ·  planner {report.plan.planner}, seed {facts['seed']}  ·  "
        f"{counted(facts['episodes'], 'episode')}{cut_off}"
    )


def draw_online(result: Result[StagedProblem, StagedPlan]) -> Figure:
    """The figure; a notebook can show it as it is."""
    problem, rounds, bound = result.problem, result.search_log, result.bound
    stages = counted(problem.stages, "stage")
    title = f"{problem.profile.model} on {problem.cluster.name}, {stages}: online training"
    figure, axes = episodes_figure(title, "length L, s")
    best = np.repeat([entry.best_s for entry in rounds], [len(entry.lengths_s) for entry in rounds])
    draw_episodes(axes, [entry.lengths_s for entry in rounds], [entry.greedy_s for entry in rounds], best)
    least = float(best.min())
    if bound is not None:
        what, least = "shortest plan" if bound.proof == "exact" else "lower bound", bound.value
        axes.axhline(least, color="black", linestyle="--", linewidth=1, label=f"{what} on the grid")
    longest = max((length for entry in rounds for length in entry.lengths_s if length < np.inf), default=np.inf)
    axes.set_ylim(0.98 * least, min(1.02 * longest, 1.5 * least))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
