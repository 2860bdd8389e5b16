"""Everything a report says about a plan beside the plan itself: costs, simulated lengths, baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.plan_json import PlanReport
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.certificate import certify
from automap_models.simulate.engine import simulate
from automap_models.simulate.schedules import SCHEDULES
from automap_models.simulate.timeline import Timeline


def timeline(problem: StagedProblem, plan: StagedPlan, schedule: str) -> Timeline:
    """One simulated global batch of a plan under a schedule of `simulate.schedules.SCHEDULES`."""
    return simulate(*plan_cost(problem, plan).as_tuple(), plan.micro_batches, schedule)


def baseline_s(planner: str, problem: StagedProblem) -> float | None:
    """The length of a baseline's plan; None where it does not fit the memory."""
    try:
        return plan_cost(problem, make_planner(planner).plan(problem)).length_s
    except Infeasible:
        return None


def evaluate(
    problem: StagedProblem,
    plan: StagedPlan,
    *,
    planning_s: float,
    certify_s: float = 0.0,
    uniform_stages: int | None = None,
    policy: str | None = None,
    notes: Sequence[str] = (),
    tried: Sequence[SearchLogEntry] = (),
) -> PlanReport:
    """Cost and simulate a plan, bound it, and hold it against what one gets without planning.

    Args:
        problem: the problem that the plan solves.
        plan: valid for it.
        planning_s: how long planning took.
        certify_s: how long it may take to find out about the optimum where the plan comes without.
        uniform_stages: stages of the uniform baseline where they are not the plan's.
        policy: which policy made the plan, if one did.
        notes: sentences for people.
        tried: among what the planner chose, if it did.
    """
    cost = plan_cost(problem, plan)
    return PlanReport(
        problem=problem,
        plan=replace(plan, optimality=plan.optimality or certify(problem, plan, certify_s).optimality),
        cost=cost,
        simulated_length_s={name: timeline(problem, plan, name).length_s for name in SCHEDULES},
        single_device_s=problem.micro_batches * float(problem.profile.C.sum()),
        data_parallel_s=baseline_s("data-parallel", replace(problem, stages=1)),
        uniform_s=baseline_s("uniform", replace(problem, stages=uniform_stages or problem.stages)),
        planning_s=planning_s,
        policy=policy,
        notes=tuple(notes),
        tried=tuple(tried),
    )
