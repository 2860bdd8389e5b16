"""The picture of a strategy shows what every rank holds, and what its device has."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from automap_models.core.estimate import DeviceMemory, Estimate, StepParts
from automap_models.core.framework import UNKNOWN
from automap_models.core.strategy import Strategy
from automap_models.plots.strategies import GB, draw_strategies

pytest.importorskip("matplotlib")


def drawn_estimate(ranks: int) -> Estimate:
    return Estimate(
        strategy=Strategy(micro_batch=1, global_batch=8, pp=ranks),
        stage_layers=(1,) * ranks,
        model="a model",
        cluster="a cluster",
        device="a device",
        parts=StepParts(*(0.1 * (i + 1) for i in range(len(StepParts._fields)))),
        parts_rank=0,
        memory=tuple(DeviceMemory(*((i + rank + 1) * GB for i in range(7))) for rank in range(ranks)),
        memory_bytes=tuple(80 * GB for _ in range(ranks)),
        step_s=1.0,
        tokens_per_s_per_device=8.0,
        mfu=0.5,
        bubble_rate=0.1,
        facts=UNKNOWN,
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_bars_end_where_the_memory_does_and_every_device_s_memory_is_seen(ranks: int) -> None:
    """Of a single rank, the line of the device's memory was one point: nothing was to be seen."""
    estimate = drawn_estimate(ranks)
    axes = draw_strategies(estimate, []).axes[0]
    tops = [0.0] * ranks
    for bar in axes.patches:
        rank = round(bar.get_x() + bar.get_width() / 2)
        tops[rank] = max(tops[rank], bar.get_y() + bar.get_height())
    assert tops == pytest.approx([memory.total / GB for memory in estimate.memory])
    (lines,) = axes.collections
    for rank, ((left, low), (right, high)) in enumerate(lines.get_segments()):
        assert (low, high) == (80, 80) and left < rank < right
    assert axes.get_ylim()[1] > 80


def test_a_strategy_that_is_the_best_without_two_choices_is_one_point_with_both_names() -> None:
    """The second point lay on the first: the legend named a colour that was not to be seen."""
    best, other = drawn_estimate(1), replace(drawn_estimate(1), step_s=2.0)
    others = [("without ZeRO", other), ("with equal cuts", replace(other)), ("data", replace(other, step_s=3.0))]
    middle = draw_strategies(best, others).axes[1]
    points = [(line.get_xdata()[0], line.get_label()) for line in middle.lines]
    assert points == [(2, "without ZeRO,\nwith equal cuts: 2.00 s"), (3, "data: 3.00 s"), (1, "best: 1.00 s")]


def test_numbers_of_a_logarithmic_axis_do_not_cover_one_another() -> None:
    """Steps of llama3-70b on 64 to 1,024 devices: 100 and 90 were drawn into one another, and 10, 9 and 8."""
    steps = {64: 120, 128: 58.9, 256: 29.7, 512: 15.1, 1024: 7.74}
    sizes = [(devices, replace(drawn_estimate(1), step_s=of)) for devices, of in steps.items()]
    figure = draw_strategies(drawn_estimate(1), sizes=sizes)
    figure.draw_without_rendering()
    axis = figure.axes[2].yaxis
    low, high = axis.get_view_interval()
    labels = [*axis.get_majorticklabels(), *axis.get_minorticklabels()]
    inside = [label for label in labels if label.get_text() and low <= label.get_position()[1] <= high]
    extents = sorted((label.get_window_extent().y0, label.get_window_extent().y1) for label in inside)
    assert len(extents) > 3
    assert all(top < bottom for (_, top), (bottom, _) in pairwise(extents))
