"""What is proven about a plan, in words."""

from __future__ import annotations

from automap_models.core.result import PlanReport
from automap_models.core.units import counted, percent, seconds

from ..commands.parsing import in_options

ROUNDING = 1e-9
"""Lengths that differ relatively by no more are equal."""


def optimality_in_words(report: PlanReport) -> str:
    """How far the step can be from the best one on the grid."""
    proven, plans = report.bound, field_in_words(report)
    if proven is None:
        return "nothing is proven"
    grid, gap = f"on the {report.problem.granularity} grid", report.cost.step_s / proven.value - 1.0
    if report.plan.stages == 1 and not report.search_log and proven.proof == "exact" and gap <= ROUNDING:
        return "data parallelism is the only plan with one stage"
    if gap < -ROUNDING:
        return f"proven: {percent(-gap)} shorter than every plan with {plans} {grid}, by cuts between its points"
    if gap <= ROUNDING and report.plan.coarse_cuts is None:
        return f"proven: no plan with {plans} {grid} is shorter; cuts between its points may be"
    if proven.proof == "exact":
        where = f"of all plans with {plans} {grid}"
        return (
            f"proven: this is the shortest {where}" if gap <= ROUNDING else f"{percent(gap)} above the shortest {where}"
        )
    return f"at most {percent(gap)} above the shortest plan {grid} (proven lower bound {seconds(proven.value)})"


def field_in_words(report: PlanReport) -> str:
    """The plans that a proof is about: `4 stages`, `1 or 4 stages`, `any of the 17 combinations tried`."""
    if len({attempt.micro_batches for attempt in report.search_log}) > 1:
        return f"any of the {len(report.search_log)} combinations tried"
    stages = sorted({attempt.stages for attempt in report.search_log}) or [report.plan.stages]
    last = counted(stages[-1], "stage")
    shown = last if len(stages) == 1 else f"{stages[0]} {'or' if len(stages) == 2 else 'to'} {last}"
    restrictions = report.problem.constraints.in_words
    return f"{shown}, {in_options(restrictions)}," if restrictions else shown
