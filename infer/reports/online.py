"""A pipeline plan by online training, as `automap infer` tells it, and a picture of how the training went."""

from __future__ import annotations

from functools import partial

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.plan_json import plan_document
from automap_models.planners.staged.evaluate import evaluate
from automap_models.plots.exploration import draw_online
from automap_models.requests import OnlineRequest

from ..runner import Report
from .pipeline import print_report


def report(request: OnlineRequest, answer: Result[StagedProblem, StagedPlan]) -> Report:
    """The plan, and a picture of the training."""
    plan = evaluate(answer, seed=request.seed)
    return Report(partial(print_report, plan), partial(plan_document, plan), draw=partial(draw_online, answer))
