"""`automap infer --observed`: measured times of a running job in, a corrected profile and perhaps a better plan out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray
from automap_models.core.report import PlanReport
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import plan_cost
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.observed_json import read_observed
from automap_models.formats.plan_json import AdjustmentDocument, read_plan
from automap_models.formats.schema import Foreign, read_json, wrong
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


class _AdjustedPlan(Foreign):
    """What a plan.json says about the devices of the running job, if it was adjusted to them."""

    adjustment: AdjustmentDocument | UnsetType = UNSET


def _running(path: Path, plan: StagedPlan, devices: int) -> tuple[PlacedPlan, FloatArray]:
    """The plan with its devices, as they are numbered or as an earlier adjustment put them, and their slowdowns [D].

    Raises:
        BadInput: the adjustment in the file is none of this plan.
    """
    earlier = read_json(path, _AdjustedPlan).adjustment
    if earlier is UNSET:
        return PlacedPlan(plan, tuple(range(devices))), np.ones(devices)
    at, order, idle = "$.adjustment", tuple(earlier.device_order), tuple(earlier.idle)
    if sorted(order) != list(range(devices)):
        raise wrong(str(path), f"{at}.device_order", order, f"each of the devices 0 to {devices - 1} once")
    if not set(idle) <= set(order):
        raise wrong(str(path), f"{at}.idle", idle, f"some of the devices 0 to {devices - 1}")
    running = PlacedPlan(plan, order, idle)
    if set(running.stage_of_device()[running.working()].tolist()) != set(range(plan.stages)):
        raise wrong(str(path), f"{at}.idle", idle, "devices that leave every stage one that works")
    if len(earlier.slowdown) != devices:
        raise wrong(str(path), f"{at}.slowdown", earlier.slowdown, f"{devices} positive numbers")
    return running, np.array(earlier.slowdown, dtype=np.float64)
