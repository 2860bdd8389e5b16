"""From the command's arguments to an evaluated plan: a new one, or one read back."""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import replace

from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import Profile
from automap_models.core.resources import zoo_dir
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import known_clusters, read_cluster
from automap_models.formats.files import read_profile
from automap_models.formats.plan_json import PlanReport, read_plan
from automap_models.planners.auto import choose, default_stages
from automap_models.planners.base import PlannerOptions
from automap_models.planners.evaluate import evaluate
from automap_models.planners.policy import SHIPPED
from automap_models.planners.registry import make_planner


def planned(arguments: argparse.Namespace) -> PlanReport:
    """Read the profile and the cluster, plan, evaluate.

    Raises:
        BadInput: an argument or a file cannot be used.
        Infeasible: no plan fits the memory.
    """
    _refuse_wrong_options(arguments)
    planner = make_planner(arguments.planner, _options(arguments))
    problem = _problem(arguments)
    notes = _few_cut_points(problem) if arguments.stages is None else ()
    start = time.perf_counter()
    if planner.name == "auto":
        choice = choose(problem, planner.options, stages_fixed=arguments.stages is not None)
        solved, plan, notes = choice.problem, choice.plan, (*notes, *choice.notes)
    else:
        solved = replace(problem, stages=1) if planner.name == "data-parallel" else problem
        plan = planner.plan(solved)
    return evaluate(
        solved,
        plan,
        planning_s=time.perf_counter() - start,
        certify_s=planner.options.certify_s,
        uniform_stages=problem.stages,
        policy=_policy_label(planner.options) if plan.planner == "policy" else None,
        notes=notes,
    )


def shown(arguments: argparse.Namespace) -> PlanReport:
    """Read a plan back and cost it again.

    Raises:
        BadInput: the plan is none, or belongs to another profile or cluster, or an argument asks for another plan.
        Infeasible: a stage does not fit the memory.
    """
    for name in (
        "stages",
        "micro_batches",
        "state_factor",
        "granularity",
        "beam",
        "policy",
        "certify_budget",
        "refine_budget",
    ):
        if getattr(arguments, name) is not None:
            raise BadInput("the plan read has its own", where="--" + name.replace("_", "-"), do="leave it out")
    cluster = None if arguments.topo is None else read_cluster(arguments.topo)
    problem, plan = read_plan(arguments.plan, _profile(arguments), cluster)
    return evaluate(problem, plan, planning_s=0.0, notes=(f"read from {arguments.plan}, costed again",))


def _options(arguments: argparse.Namespace) -> PlannerOptions:
    options = PlannerOptions(policy=arguments.policy, schedule=arguments.schedule)
    if arguments.beam is not None:
        if arguments.beam < 1:
            raise BadInput(f"a beam of {arguments.beam}", where="--beam", do="give at least 1")
        options = replace(options, beam=arguments.beam)
    if arguments.certify_budget is not None:
        options = replace(options, certify_s=_seconds("--certify-budget", arguments.certify_budget))
    if arguments.no_refine:
        return replace(options, refine_s=0.0)
    if arguments.refine_budget is not None:
        options = replace(options, refine_s=_seconds("--refine-budget", arguments.refine_budget))
    return options


def _seconds(option: str, milliseconds: float) -> float:
    if not milliseconds >= 0:
        raise BadInput(f"{milliseconds:g} milliseconds", where=option, do="give 0 or more")
    return milliseconds / 1e3


def _policy_label(options: PlannerOptions) -> str:
    """The policy file's name and the beginning of its SHA-256."""
    path = options.policy or zoo_dir() / SHIPPED
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def _refuse_wrong_options(arguments: argparse.Namespace) -> None:
    if arguments.planner == "data-parallel" and arguments.stages not in (None, 1):
        raise BadInput(
            f"data parallelism has one stage, not {arguments.stages}", where="--stages", do="leave --stages out"
        )
    for name in ("policy", "beam"):
        if getattr(arguments, name) is not None and arguments.planner not in ("auto", "policy"):
            raise BadInput(f"planner {arguments.planner} uses none", where=f"--{name}", do="leave it out")
    if arguments.refine_budget is not None and (arguments.no_refine or arguments.planner != "auto"):
        what = "--no-refine refines nothing" if arguments.no_refine else f"planner {arguments.planner} is not refined"
        raise BadInput(what, where="--refine-budget", do="leave it out")
    if arguments.certify_budget is not None and arguments.planner in ("exact", "data-parallel"):
        raise BadInput(
            f"a plan of planner {arguments.planner} needs no proof", where="--certify-budget", do="leave it out"
        )


def _profile(arguments: argparse.Namespace) -> Profile:
    if not arguments.profile.exists():
        from .profile_source import require_no_model

        require_no_model(arguments.profile)
    return read_profile(arguments.profile)


def _problem(arguments: argparse.Namespace) -> PipelineProblem:
    profile = _profile(arguments)
    if arguments.topo is None:
        raise BadInput(
            "no cluster is given", where="--topo", do=f"choose from {', '.join(known_clusters())} or give a YAML file"
        )
    cluster = read_cluster(arguments.topo)
    given = {
        name: getattr(arguments, name)
        for name in ("micro_batches", "state_factor", "granularity")
        if getattr(arguments, name) is not None
    }
    one_stage = PipelineProblem(profile, cluster, stages=1, **given)
    stages = default_stages(profile, cluster, one_stage.granularity) if arguments.stages is None else arguments.stages
    return replace(one_stage, stages=stages)


def _few_cut_points(problem: PipelineProblem) -> tuple[str, ...]:
    if problem.stages == problem.cluster.nodes:
        return ()
    return (
        f"{problem.stages} stages rather than one for each of the {problem.cluster.nodes} nodes: "
        f"the profile can be cut in {problem.stages - 1} place(s)",
    )
