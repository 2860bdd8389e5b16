"""From a profile, a cluster and what is asked to the evaluated plan: what `automap infer` and Python's `plan` do.

And what `automap plan` and Python's `explore` are asked, as a space of plans and the configuration of its planner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.core.cluster import Cluster
from automap_models.core.layers import loop_notes
from automap_models.core.microbatch import rescaling_notes, sized, whole_sample_notes
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import PlanReport
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.hardware_yaml import known_devices, step_device
from automap_models.planners.base import SILENT, Watch
from automap_models.planners.options import AUTO, ExploreOptions, PlanOptions, given
from automap_models.planners.portfolio.auto import AutoConfig
from automap_models.planners.portfolio.space import PlanningSpace, default_batch, planning_space, possible_stages
from automap_models.planners.staged.evaluate import evaluate
from automap_models.resources import zoo_dir

if TYPE_CHECKING:
    from automap_models.planners.portfolio.explore import ExploreConfig


def planned(profile: Profile, cluster: Cluster, options: PlanOptions, watch: Watch = SILENT) -> PlanReport:
    """Plan, and hold the plan against what one gets without planning.

    Raises:
        BadInput: an option cannot be used with this profile and cluster.
        Infeasible: no plan fits the memory.
    """
    planner = options.make_planner()
    space, problem = planning_space(
        sized(profile, options.microbatch_size),
        cluster,
        options.stages,
        options.micro_batches,
        options.global_batch,
        choose=options.planner == AUTO,
        schedule=options.step_schedule,
        schedules=options.schedules if options.planner == AUTO else (),
        constraints=options.constraints,
        device=step_device(profile, cluster),
        **given(options, "state_factor", "granularity"),
    )
    if options.planner == AUTO:
        result = planner.solve(space, watch=watch)
    elif options.planner in ("tables", "exact"):
        filled = space.problem(problem.stages, problem.micro_batches, problem.schedule)
        result = planner.solve(problem if possible_stages(filled) is None else filled, watch=watch)
    else:
        result = planner.solve(replace(problem, stages=1) if options.planner == "data-parallel" else problem)
    solved, plan = result.problem, result.required_plan()
    notes = (
        *(_fewer_than_nodes(problem) if options.stages is None and len(space.stage_numbers) <= 2 else ()),
        *result.notes,
        *_untied_notes(space),
        *sample_notes(solved, plan),
        *loop_notes(solved.profile),
        *device_notes(solved),
    )
    certify_s = options.certify_s
    chosen = solved.stages > 1 and (options.stages == AUTO or len(space.stage_numbers) > 2)
    return evaluate(
        replace(result, notes=notes),
        certify_s=AutoConfig().certify_s if certify_s is None else certify_s,
        uniform_stages=solved.stages if chosen else problem.stages,
        policy=_policy_label(options.policy) if plan.planner == "policy" else None,
    )


def _fewer_than_nodes(problem: StagedProblem) -> Iterator[str]:
    """That the profile has too few cut points for one stage a node."""
    stages, nodes = problem.stages, problem.cluster.nodes
    if stages != nodes:
        yield (
            f"{stages} stages rather than one for each of the {nodes} nodes: "
            f"the profile can be cut in {stages - 1} place(s)"
        )


def _untied_notes(space: PlanningSpace) -> Iterator[str]:
    """That a shared weight rules out the pipelines of the framework that is planned for."""
    target, shared = space.constraints.target, space.model.profile.shared_parameters
    if target is not None and not target.ties and shared and space.several:
        yield (
            f"stages that share a weight ({shared[0].name}) are not what the framework of `target` trains: "
            "no pipeline competes"
        )


def sample_notes(problem: StagedProblem, plan: StagedPlan) -> Iterator[str]:
    """What a reader should know about the micro-batches of a plan and the samples of its replicas."""
    replicas = [replicas for replicas, _ in plan.degrees(problem)]
    whole_samples = problem.schedule is not None
    if whole_samples:
        yield from whole_sample_notes(problem.samples, replicas)
    yield from rescaling_notes(problem.profile, max(replicas), whole_samples=whole_samples)


def device_notes(problem: StagedProblem) -> Iterator[str]:
    """Whose times a plan has, where these are not simply those of the cluster's devices.

    That they are of another kind is said of shipped kinds only: drivers have other names for devices.
    """
    cluster, profiled, kind = problem.cluster, problem.profile.device, problem.cluster.device
    scaled = problem.profile.meta.get("scaled_from")
    if isinstance(scaled, list):
        origin, factor = scaled
        yield f"times of {origin} are scaled to {kind} by the clock: {factor:.3g} of them"
    elif profiled and not cluster.groups and not kind:
        yield f"cluster {cluster.name} does not say its `device`: taken for the profile's, {profiled}"
    if kind and profiled != kind and profiled in known_devices():
        what = f"cluster {cluster.name} is made of {kind}"
        yield f"times are those of {profiled}, but {what}: profile the model for {kind}"


def _policy_label(policy: Path | str | None) -> str:
    """The policy file's name and the beginning of its SHA-256."""
    from automap_models.planners.staged.policy import SHIPPED

    path = zoo_dir() / SHIPPED if policy is None else Path(policy)
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def space_to_explore(model: ProfiledModel, cluster: Cluster, options: ExploreOptions) -> PlanningSpace:
    """Everything that competes for the best plan.

    Raises:
        BadInput: an option cannot be used with this model and cluster.
    """
    usual = default_batch(model.profile, cluster.devices)
    return PlanningSpace(
        model,
        options.limited(cluster),
        device=step_device(model.profile, cluster),
        global_batch=usual if options.global_batch is None else options.global_batch,
        state_factor=options.state_factor,
        constraints=options.constraints,
        schedule=options.step_schedule,
        schedules=options.schedules,
    )


def explore_config(options: ExploreOptions) -> ExploreConfig:
    """How long and how to search."""
    from automap_models.planners.portfolio.explore import ExploreConfig

    return ExploreConfig(thorough=options.thorough, **given(options, "budget_s", "min_gain"))
