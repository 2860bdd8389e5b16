"""What a picture of a plan says above its stages and in its passes: no label touches another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.plots.pipeline import draw
from automap_models.simulate.plan_step import step_cost, timeline

N = 640


def report_of(stages: int, micro_batches: int, cuts: tuple[int, ...]) -> PlanReport:
    profile = Profile.create(C=np.ones(N), A=np.ones(N), W=np.ones(N))
    problem = StagedProblem(profile, Cluster(4, 16, 1e9, 1e9, 1e9), stages, micro_batches, granularity=N)
    plan = StagedPlan(cuts, tuple(range(64 // stages, 64, 64 // stages)), micro_batches, "given")
    return PlanReport(**vars(Result(problem, plan, step_cost(problem, plan), "feasible")), single_device_s=1.0)


@pytest.mark.parametrize(
    ("stages", "uneven"),
    [
        *((2, False), (4, True), (8, False)),
        *((stages, stages in (2, 8, 16, 32)) for stages in (2, 4, 8, 16, 32, 64)),
    ],
)
def test_no_label_touches_another(stages: int, uneven: bool) -> None:
    even = np.arange(1, stages) * N // stages
    cuts = tuple((even - 1 + (N // stages - 2) * uneven * (np.arange(stages - 1) % 2)).tolist())
    report = report_of(stages, 4 * stages, cuts)
    figure = draw(report, timeline(report.cost, report.plan.micro_batches, "1f1b"))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    above, *_, first, last = (axes for panel in figure.subfigs for axes in panel.axes)
    renderer = canvas.get_renderer()
    shown = {axes: [text.get_window_extent(renderer) for text in axes.texts] for axes in (above, first, last)}
    assert len(shown[above]) >= stages / 2
    for boxes in shown.values():
        rows = sorted(((round(box.y0), box.x0, box.x1) for box in boxes), key=lambda row: row[:2])
        assert all(one[2] < other[1] for one, other in pairwise(rows) if one[0] == other[0])
