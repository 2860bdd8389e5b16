"""`automap infer --observed`: measured times of a running job in, a corrected profile and perhaps a better plan out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray
from automap_models.core.report import PlanReport
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import plan_cost
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.json_fields import Fields, finite, read_json
from automap_models.formats.observed_json import read_observed
from automap_models.formats.plan_json import read_plan
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.evaluate import evaluate

from .planning import sized_profile
from .requests import ReplanRequest


@dataclass(frozen=True, eq=False)
class Replanned:
    """What planning again came to.

    Attributes:
        result: the next plan on these devices, and what the times say about them.
        report: the same plan on healthy devices, as in every plan.json.
        observed: the times.
    """

    result: Result[ReplanProblem, PlacedPlan]
    report: PlanReport
    observed: Observed


def replanned(request: ReplanRequest) -> Replanned:
    """Read profile, plan and times, and plan again.

    Raises:
        BadInput: a file cannot be used, or the files do not belong together.
        Infeasible: the plan does not fit the memory.
    """
    cluster = None if request.topo is None else read_cluster(request.topo)
    read = read_plan(request.plan, sized_profile(request.profile, request.microbatch_size), cluster)
    problem, plan = read.problem, read.required_plan()
    observed = read_observed(request.observed)
    running, known = _running(request.plan, plan, problem.cluster.devices)
    starts = make_planner("auto", policy=request.policy, certify_s=0.0, refine_s=0.0)
    result = make_planner("replan", kind="replan", starts=(starts,)).solve(
        ReplanProblem(problem, running, observed, request.attribute, known, request.restart_s)
    )
    corrected, plan = result.facts["corrected"], result.required_plan().plan
    healthy = Result(corrected, plan, plan_cost(corrected, plan), "feasible", taken_s=result.taken_s)
    return Replanned(result, evaluate(healthy), observed)


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
