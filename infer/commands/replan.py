"""`automap-infer --observed`: measured times of a running job in, a corrected profile and perhaps a better plan out."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.json_fields import Fields, finite, read_json
from automap_models.formats.npz import write_npz
from automap_models.formats.observed_json import read_observed
from automap_models.formats.plan_json import PlanReport, dumps, plan_document, read_plan
from automap_models.planners.base import PlannerOptions
from automap_models.planners.registry import make_planner
from automap_models.planners.replan.replan import ReplanConfig, ReplanPlanner
from automap_models.planners.staged.evaluate import evaluate

from ..reports.pipeline import heading, shape, stage_table
from ..reports.tables import console, fact_table, plain
from ..reports.units import counted, percent, seconds, size
from .problems import sized_profile

Replanned = Result[ReplanProblem, PlacedPlan]

PLANNING = (
    "stages",
    "micro_batches",
    "global_batch",
    "state_factor",
    "granularity",
    "beam",
    "certify_budget",
    "refine_budget",
    "plot",
    "trace",
    "schedule",
)
"""Arguments that an adjustment has no use for: the plan has its own, and what it shows is not simulated."""
MOST_SHOWN = 12
"""Slow or fast devices that are listed one by one."""


def adjusted(arguments: argparse.Namespace) -> tuple[Replanned, PlanReport, Observed]:
    """Read profile, plan and times, and plan again.

    Returns:
        The result; the new plan's report, with costs on healthy devices as in every plan.json; the times.

    Raises:
        BadInput: an argument or a file cannot be used, or the files do not belong together.
        Infeasible: the plan does not fit the memory.
    """
    _refuse_wrong_options(arguments)
    cluster = None if arguments.topo is None else read_cluster(arguments.topo)
    problem, plan = read_plan(arguments.plan, sized_profile(arguments), cluster)
    observed = read_observed(arguments.observed)
    running, known = _running(arguments.plan, plan, problem.cluster.devices)
    starts = make_planner("auto", PlannerOptions(policy=arguments.policy, certify_s=0.0, refine_s=0.0))
    result = ReplanPlanner(ReplanConfig(starts=(starts,))).solve(
        ReplanProblem(problem, running, observed, arguments.attribute, known, arguments.restart or 0.0)
    )
    placed = result.required_plan()
    return result, evaluate(result.facts["corrected"], placed.plan, planning_s=result.taken_s), observed


def write_adjustment(arguments: argparse.Namespace, result: Replanned, report: PlanReport) -> None:
    """Write what was asked for, each file whole or not at all."""
    if arguments.corrected:
        write_npz(arguments.corrected, result.facts["corrected"].profile)
    if arguments.out:
        text = dumps(adjustment_document(result, report)) + "\n"

        def write(file: BinaryIO) -> None:
            file.write(text.encode("utf-8", errors="backslashreplace"))

        write_atomically(arguments.out, write)


def adjustment_document(result: Replanned, report: PlanReport) -> dict[str, Any]:
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
            "running_length_s": float(facts["running_cost"].length_s),
            "length_s": float(result.cost.length_s),
            "moving": {
                "received_bytes": moved.received_bytes,
                "between_nodes_bytes": moved.between_nodes_bytes,
                "moving_s": moved.migration_s,
                "restart_s": result.problem.restart_s,
            },
            "pays_after_steps": facts["pays_after_steps"],
        },
    }


def print_adjustment(result: Replanned, report: PlanReport, observed: Observed, files: dict[str, Path]) -> None:
    """Print an adjustment for people; `files` maps what was written to where."""
    screen = console()
    screen.print(heading(report.problem.profile, report.problem.cluster))
    screen.print(f"plan [bold]{plain(report.plan.planner)}[/bold]: {shape(report)}\n")
    screen.print(stage_table(replace(report, cost=result.cost), screen.width))
    screen.print()
    screen.print(fact_table(_facts(result, observed), _notes(result, files)))
    for what, path in files.items():
        screen.print(f"[bold]{'wrote':>9}[/bold]  {plain(f'{what}: {path}')}", soft_wrap=True)


def _facts(result: Replanned, observed: Observed) -> Iterator[tuple[str, str]]:
    facts, after = result.facts, result.required_plan()
    speeds, moved, running_s = facts["speeds"], facts["migration"], facts["running_cost"].length_s
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
    yield "new plan", f"{seconds(result.cost.length_s)}, {share} shorter"
    if after.device_order != tuple(range(len(after.device_order))):
        yield "positions", "hold devices " + ", ".join(_runs(after.device_order))
    if after.idle:
        yield "idle", f"device {', '.join(map(str, after.idle))}: the stage is faster without"
    between = f"{size(moved.between_nodes_bytes)} of them between nodes"
    yield (
        "moving",
        f"{size(moved.received_bytes)} of parameters and optimiser state, {between}: {seconds(moved.migration_s)}",
    )
    pays = facts["pays_after_steps"]
    restart = f" and {seconds(result.problem.restart_s)} for the restart" if result.problem.restart_s else ""
    yield "pays", f"the move{restart} after {counted(pays or 0, 'step')}"


def _slow_devices(slowdown: FloatArray) -> str:
    other = np.flatnonzero(slowdown != 1.0)
    if not other.size:
        return "all alike"
    shown = other[np.argsort(-slowdown[other], kind="stable")][:MOST_SHOWN]
    more = f" and {other.size - shown.size} more" if other.size > shown.size else ""
    return "time over that of the others: " + ", ".join(f"{d}: × {slowdown[d]:.2f}" for d in shown.tolist()) + more


def _runs(order: Sequence[int]) -> Iterator[str]:
    """Consecutive devices in short: 8–15, 0–7, 16."""
    first = 0
    for at in range(1, len(order) + 1):
        if at == len(order) or order[at] != order[at - 1] + 1:
            yield str(order[first]) if at - first == 1 else f"{order[first]}–{order[at - 1]}"
            first = at


def _notes(result: Replanned, files: dict[str, Path]) -> Iterator[str]:
    yield from result.notes
    yield "times in the table are those of a stage's working replicas, the slowest of them"
    if "plan" in files and "corrected profile" not in files:
        yield "the plan belongs to the corrected profile, which --corrected FILE writes"


def _running(path: Path, plan: StagedPlan, devices: int) -> tuple[PlacedPlan, FloatArray]:
    """The plan with its devices, as they are numbered or as an earlier adjustment put them, and their slowdowns.

    Raises:
        BadInput: the adjustment in the file is none of this plan.
    """
    document = read_json(path)
    if "adjustment" not in document:
        return PlacedPlan(plan, tuple(range(devices))), np.ones(devices)
    earlier = document.object("adjustment")
    order, idle = earlier.wholes("device_order"), earlier.wholes("idle")
    if sorted(order) != list(range(devices)):
        earlier.refuse("device_order", f"each of the devices 0 to {devices - 1} once")
    if not set(idle) <= set(order):
        earlier.refuse("idle", f"some of the devices 0 to {devices - 1}")
    running = PlacedPlan(plan, order, idle)
    if set(running.stage_of_device()[running.working()].tolist()) != set(range(plan.stages)):
        earlier.refuse("idle", "devices that leave every stage one that works")
    return running, _slowdowns(earlier, devices)


def _slowdowns(earlier: Fields, devices: int) -> FloatArray:
    """[D] slowdowns that an earlier adjustment found."""
    written = earlier.any("slowdown")
    values = [finite(value) for value in written] if isinstance(written, list) else []
    if len(values) != devices or any(value is None or value <= 0 for value in values):
        earlier.refuse("slowdown", f"{devices} positive numbers")
    return np.array(values, dtype=np.float64)


def _refuse_wrong_options(arguments: argparse.Namespace) -> None:
    if arguments.plan is None:
        raise BadInput("needs the plan that was running", where="--observed", do="give it with --plan")
    for name in PLANNING:
        if getattr(arguments, name) is not None:
            what = "--" + name.replace("_", "-")
            raise BadInput("an adjustment has no use for it", where=what, do="leave it out")
    if arguments.no_refine or arguments.planner != "auto":
        what = "--no-refine" if arguments.no_refine else "--planner"
        raise BadInput("an adjustment has no use for it", where=what, do="leave it out")
    if arguments.restart is not None and not 0 <= arguments.restart < math.inf:
        raise BadInput(f"{arguments.restart:g} seconds", where="--restart", do="give 0 or more")
