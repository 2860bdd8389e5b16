"""Plans of stages of one profile: one plan, many of them, the next one of a running job, or one that is learnt."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.core.observed import PlacedPlan, ReplanProblem
from automap_models.core.profile import Profile
from automap_models.core.result import PlanReport, Result
from automap_models.core.schedules import DEFAULT_MIN_STAGE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import known_clusters
from automap_models.formats.staged_plan import read_plan
from automap_models.planners.base import Progress, Watch
from automap_models.planners.options import AUTO, given
from automap_models.planners.portfolio.planning import planned
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.evaluate import evaluate
from automap_models.requests import InferRequest, OnlineRequest, ReplanRequest, SweepRequest, cluster_of
from automap_models.requests.profile import profiled, sized_profile

if TYPE_CHECKING:
    from automap_models.planners.portfolio.sweep import Sweep

POLICY = "policy"
"""The planner whose plan is a warm start by name."""


def solve(request: InferRequest, watch: Watch) -> PlanReport:
    """One plan, or the one that is given, costed again; held against what one gets without planning."""
    model = sized_profile(request.profile) if isinstance(request.profile, Path) else request.profile
    cluster = None if request.topo is None else cluster_of(request.topo)
    if request.plan is not None:
        notes = (f"read from {os.fspath(request.plan)}, costed again",)
        return evaluate(read_plan(request.plan, model, cluster), notes=notes)
    if cluster is None:
        do = f"give devices of a kind, such as 32xh100, a YAML file or one of {', '.join(known_clusters())}"
        raise BadInput("no cluster is given", where="`topo`", do=do)
    assert isinstance(model, Profile)  # of a ProfiledModel all kinds of plans are explored
    return planned(model, cluster, request.options, watch)


def swept(request: SweepRequest, watch: Watch) -> Sweep:
    """A plan for every combination in a file."""
    from automap_models.formats.sweep_yaml import read_sweep
    from automap_models.planners.portfolio.sweep import Sweep, combinations, sweep

    options = request.options
    spec, profile = read_sweep(request.sweep), sized_profile(request.profile, options.microbatch_size)
    quick = options.make_planner("tables" if options.policy is None else "policy")
    of_problems = {
        **given(options, "state_factor", "granularity"),
        "schedule": options.step_schedule,
        "constraints": options.constraints,
    }
    chosen = combinations(spec, profile, of_problems, quick.out_of_range, str(request.sweep))
    watch(Progress(f"planning {len(chosen)} combinations"))
    unproven = options.planner == AUTO and options.step_schedule is not None  # proofs by L take milliseconds
    planner = replace(options, certify_s=options.certify_s or 0.0) if unproven else options
    rows = sweep(chosen, planner.make_planner(), progress=lambda *part: watch(Progress("planning", *part)))
    return Sweep(profile, rows, spec.global_batch)


def replanned(request: ReplanRequest, watch: Watch) -> Result[ReplanProblem, PlacedPlan]:
    """The next plan of a running job."""
    from automap_models.formats.observed_json import read_observed, read_running

    cluster = None if request.topo is None else cluster_of(request.topo)
    read = read_plan(request.plan, sized_profile(request.profile, request.microbatch_size), cluster)
    problem, plan = read.problem, read.required_plan()
    if problem.schedule is not None:  # its next plan has no stage without work, either, unless it has one itself
        working = replace(problem, constraints=replace(problem.constraints, min_stage=DEFAULT_MIN_STAGE))
        problem = working if plan.check_valid(working)[0] else problem
    observed = read_observed(request.observed)
    running, speeds = read_running(request.plan, problem, plan)
    starts = make_planner("auto", policy=request.policy, certify_s=0.0, refine_s=0.0)
    again = ReplanProblem(problem, running, observed, request.attribute, speeds, request.restart_s)
    return make_planner("replan", kind="replan", starts=(starts,)).solve(again, watch=watch)


def trained(request: OnlineRequest, watch: Watch) -> PlanReport:
    """The plan that an agent learns on the profile; the result's search log tells how the training went."""
    from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, agent_config

    cluster = cluster_of(request.topo)
    agent_config(request.agent)
    profile = profiled(request.source, request.device or cluster.kind, watch)
    options = given(request, "micro_batches", "state_factor")
    problem = StagedProblem(profile, cluster, request.stages or cluster.nodes, **options)
    config = OnlineConfig(
        request.agent, request.episodes, request.seed, _warm_start(request.warm_start, problem), prove_s=10.0
    )
    watch(Progress("training"))
    result = OnlinePlanner(config).solve(problem, watch=watch)
    return evaluate(result, seed=request.seed)


def _warm_start(name: str | None, problem: StagedProblem) -> StagedPlan | None:
    """The policy's plan, or that in a file of the same profile, cluster and numbers of stages and micro-batches."""
    if name is None:
        return None
    if name == POLICY:
        return make_planner(POLICY).plan(problem)
    result = read_plan(Path(name), problem.profile, problem.cluster)
    for number in ("stages", "micro_batches", "state_factor"):
        written, wanted = getattr(result.problem, number), getattr(problem, number)
        if written != wanted:
            differs = f"has {number.replace('_', '-')} {written:g}, not {wanted:g}"
            raise BadInput(differs, where=f"`warm_start={name}`", do=f"give `{number}` as the plan has it")
    return result.required_plan()
