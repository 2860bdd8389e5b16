"""From a profile, a cluster and what is asked to the evaluated plan: what `automap-infer` and Python's `plan` do.

And what `automap-plan` and Python's `explore` are asked, as a space of plans and the configuration of its planner.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import rescaling_notes, sized
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import PlanReport
from automap_models.core.staged import DEFAULT_STATE_FACTOR
from automap_models.planners.base import SILENT, Progress, Watch
from automap_models.planners.options import AUTO, ExploreOptions, PlanOptions
from automap_models.planners.portfolio.auto import AutoConfig
from automap_models.planners.portfolio.explore import DEFAULT_BUDGET_S, ExploreConfig
from automap_models.planners.portfolio.space import PlanningSpace, default_batch, planning_problem
from automap_models.planners.staged.evaluate import evaluate
from automap_models.planners.staged.policy import SHIPPED
from automap_models.resources import zoo_dir


def planned(profile: Profile, cluster: Cluster, options: PlanOptions, watch: Watch = SILENT) -> PlanReport:
    """Plan, and hold the plan against what one gets without planning.

    Raises:
        BadInput: an option cannot be used with this profile and cluster.
        Infeasible: no plan fits the memory.
    """
    planner = options.make_planner()
    problem = planning_problem(
        sized(profile, options.microbatch_size),
        cluster,
        options.stages,
        options.micro_batches,
        options.global_batch,
        **options.given("state_factor", "granularity"),
    )
    if options.planner == AUTO:
        if len(problem.stages) > 2:
            watch(Progress(f"choosing among {len(problem.stages)} combinations of stages and micro-batches"))
        result = planner.solve(problem.space)
    else:
        one = options.planner == "data-parallel"
        result = planner.solve(replace(problem.problem, stages=1) if one else problem.problem)
    solved, plan = result.problem, result.required_plan()
    replicas = max(last - first + 1 for first, last in plan.stage_devices(solved.cluster.devices))
    notes = (
        *(problem.notes if options.stages is None else ()),
        *result.notes,
        *rescaling_notes(solved.profile, replicas),
    )
    certify_s = options.certify_s
    chosen = options.stages == AUTO and solved.stages > 1
    return evaluate(
        replace(result, notes=notes),
        certify_s=AutoConfig().certify_s if certify_s is None else certify_s,
        uniform_stages=solved.stages if chosen else problem.problem.stages,
        policy=_policy_label(options.policy) if plan.planner == "policy" else None,
    )


def _policy_label(policy: Path | str | None) -> str:
    """The policy file's name and the beginning of its SHA-256."""
    path = zoo_dir() / SHIPPED if policy is None else Path(policy)
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def space_to_explore(model: ProfiledModel, cluster: Cluster, options: ExploreOptions) -> PlanningSpace:
    """Everything that competes for the best plan.

    Raises:
        BadInput: an option cannot be used with this model and cluster.
    """
    return PlanningSpace(
        model,
        options.limited(cluster),
        global_batch=default_batch(model.profile) if options.global_batch is None else options.global_batch,
        state_factor=DEFAULT_STATE_FACTOR if options.state_factor is None else options.state_factor,
        constraints=options.constraints,
    )


def explore_config(options: ExploreOptions) -> ExploreConfig:
    """How long and how to search."""
    return ExploreConfig(options.budget_s or DEFAULT_BUDGET_S, options.thorough, options.seed)
