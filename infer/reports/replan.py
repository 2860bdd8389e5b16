"""A running job's next plan, by what it says of itself (docs/how-to/replan.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from automap_models.core.observed import PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray
from automap_models.core.result import PlanReport, Result
from automap_models.core.units import counted, percent, seconds, size, span
from automap_models.formats.npz import write_npz
from automap_models.formats.staged_plan import plan_document
from automap_models.planners.staged.evaluate import evaluate
from automap_models.requests import ReplanRequest
from automap_models.simulate.plan_step import step_cost

from ..runner import Report
from .pipeline import heading, shape, stage_table
from .text import fact_table, plain, print_parts

ReplanResult = Result[ReplanProblem, PlacedPlan]


def report(request: ReplanRequest, answer: ReplanResult) -> Report:
    """The stages, what the times say, the corrected profile."""
    corrected, plan = answer.facts["corrected"], answer.required_plan().plan
    healthy = evaluate(Result(corrected, plan, step_cost(corrected, plan), "feasible", taken_s=answer.taken_s))
    return Report(
        partial(print_adjustment, answer, healthy, names_corrected=request.names_corrected),
        partial(adjustment_document, answer, healthy),
        {"corrected profile": lambda path: write_npz(path, corrected.profile)},
    )


def adjustment_document(result: ReplanResult, report: PlanReport) -> dict[str, Any]:
    """plan.json of the new plan on healthy devices, with all that is known about these ones under `adjustment`."""
    facts, after = result.facts, result.required_plan()
    speeds, moved = facts["speeds"], facts["migration"]
    return {
        **plan_document(report),
        "adjustment": {
            "stage_scale": [
                {"forward": float(forward), "backward": float(backward)}
                for forward, backward in zip(speeds.forward_scale, speeds.backward_scale, strict=True)
            ],
            "slowdown": speeds.slowdown.tolist(),
            "slowdown_error": speeds.error.tolist(),
            "device_order": list(after.device_order),
            "idle": list(after.idle),
            "running_length_s": float(facts["running_cost"].step_s),
            "length_s": float(result.cost.step_s),
            "moving": {
                "received_bytes": moved.received_bytes,
                "between_nodes_bytes": moved.between_nodes_bytes,
                "moving_s": moved.migration_s,
                "restart_s": result.problem.restart_s,
            },
            "pays_after_steps": facts["pays_after_steps"],
        },
    }


def print_adjustment(result: ReplanResult, report: PlanReport, *, names_corrected: bool) -> None:
    """Print the next plan for people.

    Args:
        result: the next plan on these devices, and what the times say about them.
        report: the same plan on healthy devices.
        names_corrected: whether the user knows where the corrected profile goes, which the plan belongs to.
    """
    print_parts(
        [
            heading(report.problem.profile.model, report.problem.cluster),
            f"plan [bold]{plain(report.plan.planner)}[/bold]: {shape(report)}",
        ],
        [stage_table(replace(report, cost=result.cost))],
        [fact_table(_facts(result), _notes(result, names_corrected))],
    )


def _facts(result: ReplanResult) -> Iterator[tuple[str, str]]:
    facts, after, observed = result.facts, result.required_plan(), result.problem.observed
    speeds, moved, running_s = facts["speeds"], facts["migration"], facts["running_cost"].step_s
    yield "measured", f"{counted(len(observed.forward_s), observed.unit)}, times of one micro-batch"
    both = zip(speeds.forward_scale.tolist(), speeds.backward_scale.tolist(), strict=True)
    scales = ", ".join(f"{s}: × {forward:.3f} and × {backward:.3f}" for s, (forward, backward) in enumerate(both))
    yield "profile", f"forward and backward by stage: {scales}"
    yield "devices", _slow_devices(speeds.slowdown)
    yield "running", f"{seconds(running_s)} for one global batch on these devices"
    if after is result.problem.running:
        yield "new plan", "none is shorter: stay"
        return
    share = percent(facts["saved_s"] / running_s)
    yield "new plan", f"{seconds(result.cost.step_s)}, {share} shorter"
    if after.device_order != tuple(range(len(after.device_order))):
        yield "positions", "hold devices " + ", ".join(_runs(after.device_order))
    if after.idle:
        yield "idle", f"device {', '.join(map(str, after.idle))}: the stage is faster without"
    between = f"{size(moved.between_nodes_bytes)} of them between nodes"
    state = f"{size(moved.received_bytes)} of parameters and optimiser state"
    yield "moving", f"{state}, {between}: {seconds(moved.migration_s)}"
    pays = facts["pays_after_steps"]
    restart = f" and {seconds(result.problem.restart_s)} for the restart" if result.problem.restart_s else ""
    yield "pays", f"the move{restart} after {counted(pays or 0, 'step')}"


def _slow_devices(slowdown: FloatArray) -> str:
    other = np.flatnonzero(slowdown != 1.0)
    if not other.size:
        return "all alike"
    slowest = other[np.argsort(-slowdown[other], kind="stable")][:12]
    more = f" and {other.size - slowest.size} more" if other.size > slowest.size else ""
    return "time over that of the others: " + ", ".join(f"{d}: × {slowdown[d]:.2f}" for d in slowest.tolist()) + more


def _runs(order: Sequence[int]) -> Iterator[str]:
    """Consecutive devices in short: 8–15, 0–7, 16."""
    for run in np.split(order, np.flatnonzero(np.diff(order) != 1) + 1):
        yield span((run[0], run[-1]))


def _notes(result: ReplanResult, names_corrected: bool) -> Iterator[str]:
    yield from result.notes
    yield "times in the table are those of a stage's working replicas, the slowest of them"
    if not names_corrected:
        yield "the plan belongs to the corrected profile, which --corrected FILE writes"
