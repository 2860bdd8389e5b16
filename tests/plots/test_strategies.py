"""The picture of a strategy shows what every rank holds, and what its device has."""

from __future__ import annotations

import pytest

from automap_models.core.estimate import DeviceMemory, Estimate, StepParts
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
        memory=tuple(DeviceMemory(*((i + rank + 1) * GB for i in range(7))) for rank in range(ranks)),
        memory_bytes=tuple(80 * GB for _ in range(ranks)),
        step_s=1.0,
        tokens_per_s_per_device=8.0,
        mfu=0.5,
        bubble_rate=0.1,
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
