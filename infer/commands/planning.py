"""From the command's arguments to an evaluated plan: a new one, or one read back."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from automap_models.core.microbatch import profiled_size
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.plan_json import PlanReport, read_plan
from automap_models.planners.base import PlannerOptions
from automap_models.planners.portfolio.auto import Choice, choose, remembering
from automap_models.planners.portfolio.contest import MakePlanner
from automap_models.planners.staged.evaluate import evaluate
from automap_models.planners.staged.policy import SHIPPED
from automap_models.resources import zoo_dir

from .problems import AUTO, Asked, asked_for, batch_notes, sized_profile


def planned(arguments: argparse.Namespace) -> PlanReport:
    """Read the profile and the cluster, plan, evaluate.

    Raises:
        BadInput: an argument or a file cannot be used.
        Infeasible: no plan fits the memory.
    """
    refuse_wrong_options(arguments)
    options, make = planner_options(arguments), remembering()
    planner, asked = make(arguments.planner, options), asked_for(arguments)
    start = time.perf_counter()
    if planner.name == "auto":
        choice = _chosen(asked, options, make)
    else:
        problem = replace(asked.problem, stages=1) if planner.name == "data-parallel" else asked.problem
        choice = Choice(problem, planner.plan(problem))
    solved, plan = choice.problem, choice.plan
    taken_s = time.perf_counter() - start
    replicas = max(last - first + 1 for first, last in plan.stage_devices(solved.cluster.devices))
    notes = (
        *(_few_cut_points(asked.problem) if arguments.stages is None else ()),
        *choice.notes,
        *batch_notes(solved, replicas, profiled_size(solved.profile)),
    )
    return evaluate(
        solved,
        plan,
        planning_s=taken_s,
        certify_s=options.certify_s,
        uniform_stages=solved.stages if arguments.stages == AUTO and solved.stages > 1 else asked.problem.stages,
        policy=_policy_label(options) if plan.planner == "policy" else None,
        notes=notes,
        tried=choice.tried if len(choice.tried) > 1 else (),
    )


def _chosen(asked: Asked, options: PlannerOptions, make: MakePlanner) -> Choice:
    """The best of the problems asked for, with a note on those that were not tried."""
    field = asked.candidates(make("policy", options).out_of_range)
    with _watched(len(field.problems)):
        choice = choose(field.problems, options, make=make)
    if not field.left_out:
        return choice
    note = f"{field.left_out} combination(s) of stages and micro-batches not tried: {field.why}"
    return replace(choice, notes=(*choice.notes, note))


def _watched(problems: int) -> AbstractContextManager[object]:
    """A line on the terminal where the choice is among several problems, which may take seconds."""
    if problems <= 2 or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from ..reports.progress import Steps

    steps = Steps()
    steps.begin(f"choosing among {problems} combinations of stages and micro-batches")
    return steps


def shown(arguments: argparse.Namespace) -> PlanReport:
    """Read a plan back and cost it again.

    Raises:
        BadInput: the plan is none, or belongs to another profile or cluster, or an argument asks for another plan.
        Infeasible: a stage does not fit the memory.
    """
    for name in (
        "stages",
        "micro_batches",
        "global_batch",
        "microbatch_size",
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
    problem, plan = read_plan(arguments.plan, sized_profile(arguments), cluster)
    return evaluate(problem, plan, planning_s=0.0, notes=(f"read from {arguments.plan}, costed again",))


def planner_options(arguments: argparse.Namespace) -> PlannerOptions:
    """The arguments that planners read.

    Raises:
        BadInput: a value out of range.
    """
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


def refuse_wrong_options(arguments: argparse.Namespace) -> None:
    """Refuse options that the planner asked for does not read.

    Raises:
        BadInput: naming the first.
    """
    if arguments.planner == "data-parallel" and arguments.stages not in (None, 1):
        raise BadInput(
            f"data parallelism has one stage, not {arguments.stages}", where="--stages", do="leave --stages out"
        )
    for name in ("stages", "micro_batches"):
        if getattr(arguments, name) == AUTO and arguments.planner != "auto":
            where, do = f"--{name.replace('_', '-')} auto", "give a number, or leave --planner out"
            raise BadInput(f"planner {arguments.planner} does not choose", where=where, do=do)
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


def _few_cut_points(problem: StagedProblem) -> tuple[str, ...]:
    if problem.stages == problem.cluster.nodes:
        return ()
    return (
        f"{problem.stages} stages rather than one for each of the {problem.cluster.nodes} nodes: "
        f"the profile can be cut in {problem.stages - 1} place(s)",
    )
