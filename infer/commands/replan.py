"""`automap infer --observed`: the next plan of a running job, by what it says of itself (docs/how-to/replan.md)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

from ..requests import ReplanRequest
from .parsing import filled, refuse, sized_profile

if TYPE_CHECKING:
    from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
    from automap_models.core.result import PlanReport, Result

NOT_OF_REPLANNING = (
    *("stages", "micro_batches", "global_batch", "state_factor", "granularity"),
    *("beam", "certify_budget", "refine_budget", "plot", "trace", "schedule"),
)
"""Options that planning again has no use for: the plan has its own, and what it shows is not simulated."""


def replan_request(namespace: argparse.Namespace) -> ReplanRequest:
    """What is asked for.

    Raises:
        BadInput: there is no plan, or an option means nothing for planning again.
    """
    if namespace.plan is None:
        raise BadInput("needs the plan that was running", where="--observed", do="give it with --plan")
    refuse(namespace, NOT_OF_REPLANNING, "planning again has no use for it")
    if namespace.no_refine or namespace.planner != "auto":
        where = "--no-refine" if namespace.no_refine else "--planner"
        raise BadInput("planning again has no use for it", where=where, do="leave it out")
    restart_s = namespace.restart or 0.0
    if not 0 <= restart_s < float("inf"):
        raise BadInput(f"{restart_s:g} seconds", where="--restart", do="give 0 or more")
    return filled(
        ReplanRequest,
        namespace,
        restart_s=restart_s,
        names_corrected=namespace.corrected is not None or namespace.out is None,
    )


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
    from automap_models.core.observed import ReplanProblem
    from automap_models.core.result import Result
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.formats.observed_json import read_observed, read_running
    from automap_models.formats.plan_reader import read_plan
    from automap_models.planners.registry import make_planner
    from automap_models.planners.staged.evaluate import evaluate
    from automap_models.simulate.step import step_cost

    cluster = None if request.topo is None else read_cluster(request.topo)
    read = read_plan(request.plan, sized_profile(request.profile, request.microbatch_size), cluster)
    problem, plan = read.problem, read.required_plan()
    observed = read_observed(request.observed)
    running, known = read_running(request.plan, problem, plan)
    starts = make_planner("auto", policy=request.policy, certify_s=0.0, refine_s=0.0)
    result = make_planner("replan", kind="replan", starts=(starts,)).solve(
        ReplanProblem(problem, running, observed, request.attribute, known, request.restart_s)
    )
    corrected, plan = result.facts["corrected"], result.required_plan().plan
    healthy = Result(corrected, plan, step_cost(corrected, plan), "feasible", taken_s=result.taken_s)
    return Replanned(result, evaluate(healthy), observed)
