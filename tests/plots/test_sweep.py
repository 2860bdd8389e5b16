"""A sweep's picture can be read: its axis has numbers whatever the steps are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from automap_models.formats.hardware_yaml import read_cluster
from automap_models.plots.sweep import draw_sweep

pytest.importorskip("matplotlib")


def row(stages: int, micro_batches: int, step_s: float) -> Any:
    outcome = SimpleNamespace(ok=True, outside=None)
    cluster = read_cluster("A")
    return SimpleNamespace(
        cluster=cluster,
        stages=stages,
        micro_batches=micro_batches,
        step_s=step_s,
        pace_s=step_s / micro_batches,
        outcome=outcome,
    )


@pytest.mark.parametrize(("shortest", "longest"), [(0.12, 0.9), (0.076, 0.89), (1.1, 9.5), (0.003, 40.0)])
def test_a_logarithmic_axis_has_several_numbers(shortest: float, longest: float) -> None:
    """Between 0.12 and 0.9 s there was none, between 76 and 890 ms one."""
    rows = [row(2, 4, longest), row(2, 8, (shortest * longest) ** 0.5), row(2, 16, shortest)]
    figure = draw_sweep("model", rows, same_batch=True)
    figure.draw_without_rendering()
    axis = figure.axes[0]
    low, high = axis.get_ylim()
    shown = [label.get_text() for label in axis.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len([text for text in shown if text]) >= 3
    assert axis.get_yscale() == "log"
