"""Pictures can be read: legends lie inside them, and no line strikes through what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import automap_models as am
from automap_models.plots.exploration import draw_candidates

pytest.importorskip("matplotlib")
PROFILE = Path(__file__).parents[2] / "examples" / "vgg19_v100.npz"


@pytest.fixture(scope="module")
def exploration():
    """Plans of which the largest nearly fills the memory that they may have."""
    first = am.plan(PROFILE, "A", max_stages=2, budget=0.5).exploration
    largest = max(plan.memory_bytes for plan in first.candidates)
    return am.plan(PROFILE, "A", max_stages=2, budget=0.5, memory=1.05 * largest).exploration


def test_the_legend_of_the_plans_lies_inside_the_picture(exploration) -> None:
    figure = draw_candidates(exploration)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1


def test_the_legend_names_what_is_there(exploration) -> None:
    (legend,) = draw_candidates(exploration).legends
    names = {text.get_text().partition(" has ")[0] for text in legend.get_texts()}
    assert {"compute", "gradient all-reduce", "training state", "saved activations", "a device"} <= names
    assert "all-reduces of activations" not in names  # a profile has no operators to partition


def test_no_size_is_written_over_the_memory_line(exploration) -> None:
    figure = draw_candidates(exploration)
    figure.draw_without_rendering()
    memory = figure.axes[1]
    (line,) = memory.lines
    at = memory.transData.transform((line.get_xdata()[0], 0.0))[0]
    boxes = [text.get_window_extent() for text in memory.texts]
    assert len(boxes) == len(exploration.candidates)
    assert all(at < box.x0 or box.x1 < at for box in boxes)
    assert all(box.x1 <= memory.get_window_extent().x1 + 1 for box in boxes)
    assert any(at < box.x0 for box in boxes)  # the largest one's, which had no room before the line


def test_the_lengths_are_drawn_below_the_passes_and_their_numbers() -> None:
    figure = am.infer(PROFILE, "A", stages=2, planner="uniform", certify_budget=0).plot()
    (schedule,) = [axes for axes in figure.axes if axes.get_xlabel().startswith("time")]
    below = max(line.get_zorder() for line in schedule.lines)
    assert below < min(part.get_zorder() for part in (*schedule.collections, *schedule.texts))
