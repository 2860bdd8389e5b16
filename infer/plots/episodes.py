"""What the pictures of all searches by episodes share: every episode, the greedy policy, the best plan so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .figures import ACTIVATION_COLOUR, COMPUTE_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPLORING_COLOUR = "#9A9A9A"


def episodes_figure(title: str, told: str) -> tuple[Figure, Axes]:
    """An empty figure over episodes; `told` is what its upright axis says."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=12, parse_math=False)
    axes.set_xlabel("episode")
    axes.set_ylabel(told)
    axes.grid(alpha=0.3)
    return figure, axes


def first_episodes(rounds: Sequence[Sequence[float]]) -> list[int]:
    """The number, from 1 on, of each round's first episode."""
    first: list[int] = np.cumsum([1, *(len(each) for each in rounds)])[:-1].tolist()
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
    values = np.concatenate([np.asarray(each, dtype=np.float64) for each in rounds]) if rounds else np.zeros(0)
    axes.plot(episode, values, ".", color=EXPLORING_COLOUR, markersize=3, label="episodes")
    line = [(at, each) for at, each in zip(first_episodes(rounds), greedy, strict=True) if each is not None]
    if line:
        axes.plot(*zip(*line, strict=True), color=COMPUTE_COLOUR, linewidth=1, label="greedy policy")
    axes.step(episode, best, where="post", color=ACTIVATION_COLOUR, linewidth=2, label="best plan so far")
    axes.set_xlim(left=0)
