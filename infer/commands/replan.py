"""`automap-infer --observed`: measured times of a running job in, a corrected profile and perhaps a better plan out."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.atomic import write_atomically
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.json_fields import Fields, finite, read_json
from automap_models.formats.npz import write_npz
from automap_models.formats.observed_json import Observed, read_observed
from automap_models.formats.plan_json import PlanReport, dumps, plan_document, read_plan
from automap_models.planners.base import PlannerOptions
from automap_models.planners.registry import make_planner
from automap_models.planners.replan.migration import Placed
from automap_models.planners.replan.replan import Adjustment, adjust
from automap_models.planners.staged.evaluate import evaluate

from ..reports.pipeline import heading, shape, stage_table
from ..reports.tables import console, fact_table, plain
from ..reports.units import counted, percent, seconds, size
from .problems import sized_profile

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


def adjusted(arguments: argparse.Namespace) -> tuple[Adjustment, PlanReport, Observed]:
    """Read profile, plan and times, and adjust.

    Returns:
        The adjustment; the new plan's report, with costs on healthy devices as in every plan.json; the times.

    Raises:
        BadInput: an argument or a file cannot be used, or the files do not belong together.
        Infeasible: the plan does not fit the memory.
    """
    _refuse_wrong_options(arguments)
    cluster = None if arguments.topo is None else read_cluster(arguments.topo)
    problem, plan = read_plan(arguments.plan, sized_profile(arguments), cluster)
    observed = read_observed(arguments.observed)
    options = PlannerOptions(policy=arguments.policy, certify_s=0.0, refine_s=0.0)
    running, known = _running(arguments.plan, plan, problem.cluster.devices)
    start = time.perf_counter()
    found = adjust(
        problem,
        running,
        observed,
        attribute=arguments.attribute,
        known=known,
        starts=lambda corrected: _plans_for_equal_devices(corrected, options),
        restart_s=arguments.restart or 0.0,
    )
    taken_s = time.perf_counter() - start
    return found, evaluate(found.problem, found.after.plan, planning_s=taken_s), observed


def write_adjustment(arguments: argparse.Namespace, found: Adjustment, report: PlanReport) -> None:
    """Write what was asked for, each file whole or not at all."""
    if arguments.corrected:
        write_npz(arguments.corrected, found.problem.profile)
    if arguments.out:
        text = dumps(adjustment_document(found, report)) + "\n"

        def write(file: BinaryIO) -> None:
            file.write(text.encode("utf-8", errors="backslashreplace"))

        write_atomically(arguments.out, write)


def adjustment_document(found: Adjustment, report: PlanReport) -> dict[str, Any]:
    """plan.json of the new plan on healthy devices, with all that is known about these ones under `adjustment`."""
    speeds, moved = found.speeds, found.moving
    return {
        **plan_document(report),
        "adjustment": {
            "stage_scale": [
                {"forward": float(forward), "backward": float(backward)}
                for forward, backward in zip(speeds.forward_scale, speeds.backward_scale, strict=True)
            ],
            "slowdown": [float(each) for each in speeds.slowdown],
            "slowdown_error": [float(each) for each in speeds.error],
            "device_order": list(found.after.order),
            "idle": list(found.after.idle),
            "running_length_s": float(found.before_cost.length_s),
            "length_s": float(found.after_cost.length_s),
            "moving": {
                "received_bytes": moved.received_bytes,
                "between_nodes_bytes": moved.between_nodes_bytes,
                "moving_s": moved.moving_s,
                "restart_s": found.restart_s,
            },
            "pays_after_steps": found.pays_after_steps,
        },
    }


def print_adjustment(found: Adjustment, report: PlanReport, observed: Observed, files: dict[str, Path]) -> None:
    """Print an adjustment for people; `files` maps what was written to where."""
    screen = console()
    screen.print(heading(report.problem.profile, report.problem.cluster))
    screen.print(f"plan [bold]{plain(found.after.plan.planner)}[/bold]: {shape(report)}\n")
    screen.print(stage_table(replace(report, cost=found.after_cost), screen.width))
    screen.print()
    screen.print(fact_table(_facts(found, observed), _notes(found, files)))
    for what, path in files.items():
        screen.print(f"[bold]{'wrote':>9}[/bold]  {plain(f'{what}: {path}')}", soft_wrap=True)


def _facts(found: Adjustment, observed: Observed) -> Iterator[tuple[str, str]]:
    speeds, moved = found.speeds, found.moving
    yield "measured", f"{counted(len(observed.forward_s), observed.unit)}, times of one micro-batch"
    both = zip(speeds.forward_scale.tolist(), speeds.backward_scale.tolist(), strict=True)
    scales = ", ".join(f"{s}: × {forward:.3f} and × {backward:.3f}" for s, (forward, backward) in enumerate(both))
    yield "profile", f"forward and backward by stage: {scales}"
    yield "devices", _slow_devices(speeds.slowdown)
    yield "running", f"{seconds(found.before_cost.length_s)} for one global batch on these devices"
    if found.after is found.before:
        yield "new plan", "none is shorter: stay"
        return
    share = percent(found.saved_s / found.before_cost.length_s)
    yield "new plan", f"{seconds(found.after_cost.length_s)}, {share} shorter"
    if found.after.order != tuple(range(len(found.after.order))):
        yield "positions", "hold devices " + ", ".join(_runs(found.after.order))
    if found.after.idle:
        yield "idle", f"device {', '.join(map(str, found.after.idle))}: the stage is faster without"
    between = f"{size(moved.between_nodes_bytes)} of them between nodes"
    yield (
        "moving",
        f"{size(moved.received_bytes)} of parameters and optimiser state, {between}: {seconds(moved.moving_s)}",
    )
    pays = found.pays_after_steps
    restart = f" and {seconds(found.restart_s)} for the restart" if found.restart_s else ""
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


def _notes(found: Adjustment, files: dict[str, Path]) -> Iterator[str]:
    yield "times in the table are those of a stage's working replicas, the slowest of them"
    if "plan" in files and "corrected profile" not in files:
        yield "the plan belongs to the corrected profile, which --corrected FILE writes"


def _running(path: Path, plan: StagedPlan, devices: int) -> tuple[Placed, FloatArray]:
    """The plan with its devices, as they are numbered or as an earlier adjustment put them, and their slowdowns.

    Raises:
        BadInput: the adjustment in the file is none of this plan.
    """
    document = read_json(path)
    if "adjustment" not in document:
        return Placed(plan, tuple(range(devices))), np.ones(devices)
    earlier = document.object("adjustment")
    order, idle = earlier.wholes("device_order"), earlier.wholes("idle")
    if sorted(order) != list(range(devices)):
        earlier.refuse("device_order", f"each of the devices 0 to {devices - 1} once")
    if not set(idle) <= set(order):
        earlier.refuse("idle", f"some of the devices 0 to {devices - 1}")
    running = Placed(plan, order, idle)
    if set(running.stage_of_device()[running.working()].tolist()) != set(range(plan.stages)):
        earlier.refuse("idle", "devices that leave every stage one that works")
    return running, _slowdowns(earlier, devices)


def _slowdowns(earlier: Fields, devices: int) -> FloatArray:
    """[D] slowdowns that an earlier adjustment found."""
    written = earlier.any("slowdown")
    values = [finite(each) for each in written] if isinstance(written, list) else []
    if len(values) != devices or any(value is None or value <= 0 for value in values):
        earlier.refuse("slowdown", f"{devices} positive numbers")
    return np.array(values, dtype=np.float64)


def _plans_for_equal_devices(problem: StagedProblem, options: PlannerOptions) -> list[StagedPlan]:
    try:
        return [make_planner("auto", options).plan(problem)]
    except Infeasible:
        return []


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
