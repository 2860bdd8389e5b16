"""`automap infer`: from a profile and a cluster to a plan (formats.md, "Commands").

One plan by default; with `--sweep` many, one a combination; with `--observed` the next plan of a running job
(replan.py).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from automap_models.errors import BadInput
from automap_models.simulate.schedules import SCHEDULES

from ..requests import AUTO, InferRequest, PlannerRequest, ReplanRequest, SweepRequest
from ..runner import Command, Output, Report
from .arguments import (
    add_state_factor,
    add_topo,
    file_argument,
    filled,
    flag,
    given,
    number_or_auto,
    refuse,
    sized_profile,
    whole_number,
)
from .replan import replan_request, replanned

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from automap_models.core.report import PlanReport
    from automap_models.core.staged import StagedPlan
    from automap_models.planners.base import Planner
    from automap_models.planners.portfolio.sweep import Sweep
    from automap_models.simulate.engine import Timeline

    from .replan import Replanned

DEFAULT_SCHEDULE = "1f1b"
EPILOG = """examples:
  automap-infer bert.npz --topo C                            a plan for 4 nodes of 8 V100, printed
  automap-infer graph.txt --topo my-cluster.yaml --stages 8  PipeDream's profile, your cluster, 8 stages
  automap-infer bert.npz --topo C --out plan.json --plot plan.png --trace trace.json
  automap-infer bert.npz --topo C --schedule 1f1b            cuts refined for 1F1B as torch runs it
  automap-infer bert.npz --topo C --stages auto --micro-batches auto --global-batch 256 --verbose
  automap-infer bert.npz --topo C --planner exact            the proven optimum on the 128 grid
  automap-infer bert.npz --topo C --planner policy --beam 1  the bare greedy policy
  automap-infer bert.npz --sweep sweep.yaml --plot sweep.png  what if: other clusters, stages, micro-batches
  automap-infer bert.npz --topo C --json | jq .length_s      for machines
  automap-infer bert.npz --plan plan.json                    cost and show a plan made before
  automap-infer bert.npz --plan plan.json --observed times.json --out next.json --corrected bert-measured.npz

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan fits the memory, 1 a defect of ours,
141 the output's reader went away
"""

OF_PLANNING = (
    *("stages", "micro_batches", "global_batch", "microbatch_size", "state_factor", "granularity"),
    *("beam", "policy", "certify_budget", "refine_budget"),
)
"""Options that a plan made before has no use for."""
NOT_OF_SWEEPS = ("plan", "trace", "schedule", "observed", "attribute", "restart", "corrected")
"""Options about one plan."""
IN_SWEEP_FILE = ("topo", "stages", "micro_batches", "global_batch")
"""Options that a sweep's file has in their place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan on which cluster, and how."""
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        type=file_argument,
        help="profile.npz, a graph.txt of PipeDream or DAPPLE, or JSON of dnn-partitioning or Piper; "
        "automap-profile makes one of a model",
    )
    add_topo(parser, required=False)
    problem = parser.add_argument_group("what to plan")
    problem.add_argument(
        "--stages",
        metavar="S|auto",
        type=number_or_auto,
        help="number of stages; auto: the best one (default: one a node, or 1 where that is faster)",
    )
    problem.add_argument(
        "--micro-batches",
        metavar="M|auto",
        type=number_or_auto,
        help="micro-batches in a global batch (default 16); auto: the best number for --global-batch",
    )
    problem.add_argument(
        "--global-batch",
        metavar="B",
        type=whole_number,
        help="samples between two updates; alone it makes B / (samples of the profiled micro-batch) micro-batches",
    )
    problem.add_argument(
        "--microbatch-size", metavar="N", type=whole_number, help="samples in the profiled micro-batch"
    )
    add_state_factor(problem)
    problem.add_argument(
        "--granularity", metavar="N", type=whole_number, help="points at which the model may be cut (default 128)"
    )
    how = parser.add_argument_group("how to plan")
    how.add_argument(
        "--planner",
        metavar="NAME",
        default="auto",
        help="auto (default: the best of policy, uniform cuts and data parallelism), policy, exact, uniform, "
        "data-parallel, online (see automap-search pp); a named planner's own plan is returned as it is",
    )
    how.add_argument(
        "--beam", metavar="N", type=whole_number, help="first cuts that the policy goes on from (default 4; 1: greedy)"
    )
    how.add_argument(
        "--certify-budget",
        metavar="MS",
        type=float,
        help="milliseconds in which the exact search proves the plan optimal, or corrects that of --planner auto "
        "(default 300; 0: only a lower bound)",
    )
    how.add_argument(
        "--refine-budget",
        metavar="MS",
        type=float,
        help="milliseconds in which --planner auto moves its cuts off the grid, by single instructions (default 100)",
    )
    how.add_argument("--no-refine", action="store_true", help="leave the cuts on the grid")
    how.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="refine for the simulated length under this schedule instead of the length; also that of plot and trace "
        f"(default {DEFAULT_SCHEDULE})",
    )
    how.add_argument("--policy", metavar="FILE", type=file_argument, help="an .onnx policy instead of the shipped one")
    how.add_argument(
        "--sweep",
        metavar="FILE",
        type=file_argument,
        help="what if: lengths over the clusters, stages and micro-batches of a YAML file; --out writes .csv or .json, "
        "--plot draws them",
    )
    how.add_argument("--plan", metavar="FILE", type=file_argument, help="plan nothing: cost and show this plan.json")
    running = parser.add_argument_group("what a running job says")
    running.add_argument(
        "--observed",
        metavar="FILE",
        type=file_argument,
        help="measured stage times (times.json or a trace) of the job that runs --plan: they correct the profile, and "
        "the job is planned again",
    )
    running.add_argument(
        "--attribute",
        choices=("instructions", "devices", "either"),
        help="what a stage all of whose devices are slow is put down to (default: instructions; where the profile was "
        "corrected before, devices under the same cuts, under others either, by how much it is)",
    )
    running.add_argument("--restart", metavar="S", type=float, help="seconds that a move costs beside moving bytes")
    printed = parser.add_argument_group("what to print")
    printed.add_argument(
        "--verbose", action="store_true", help="also print what auto tried, with the outcome of each combination"
    )


def request(namespace: argparse.Namespace) -> InferRequest | SweepRequest | ReplanRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing beside the others, or has a value that it cannot have.
    """
    if namespace.observed and namespace.sweep:
        raise BadInput("is about one plan, not a sweep", where="--observed", do="leave it out")
    for name in ("attribute", "restart", "corrected"):
        if getattr(namespace, name) is not None and not namespace.observed:
            raise BadInput("is about measured times", where=f"--{name}", do="give these with --observed")
    if namespace.sweep:
        return _sweep_request(namespace)
    if namespace.observed:
        return replan_request(namespace)
    return _infer_request(namespace)


def _infer_request(namespace: argparse.Namespace) -> InferRequest:
    if namespace.plan is not None:
        refuse(namespace, OF_PLANNING, "the plan read has its own")
    else:
        _refuse_of_planner(namespace)
    return filled(InferRequest, namespace, planner=_planner_request(namespace))


def _planner_request(namespace: argparse.Namespace) -> PlannerRequest:
    if namespace.beam is not None and namespace.beam < 1:
        raise BadInput(f"a beam of {namespace.beam}", where="--beam", do="give at least 1")
    certify_s = _seconds("--certify-budget", namespace.certify_budget)
    refine_s = 0.0 if namespace.no_refine else _seconds("--refine-budget", namespace.refine_budget)
    return PlannerRequest(namespace.planner, namespace.beam, namespace.policy, certify_s, refine_s, namespace.schedule)


def _seconds(option: str, milliseconds: float | None) -> float | None:
    if milliseconds is None:
        return None
    if not milliseconds >= 0:
        raise BadInput(f"{milliseconds:g} milliseconds", where=option, do="give 0 or more")
    return milliseconds / 1e3


def _refuse_of_planner(namespace: argparse.Namespace) -> None:
    """Refuse options that the planner asked for does not read."""
    planner = namespace.planner
    if planner == "data-parallel" and namespace.stages not in (None, 1):
        what = f"data parallelism has one stage, not {namespace.stages}"
        raise BadInput(what, where="--stages", do="leave --stages out")
    for name in ("stages", "micro_batches"):
        if getattr(namespace, name) == AUTO and planner != "auto":
            where, do = f"{flag(name)} auto", "give a number, or leave --planner out"
            raise BadInput(f"planner {planner} does not choose", where=where, do=do)
    if planner not in ("auto", "policy"):
        refuse(namespace, ("policy", "beam"), f"planner {planner} uses none")
    if namespace.no_refine or planner != "auto":
        what = "--no-refine refines nothing" if namespace.no_refine else f"planner {planner} is not refined"
        refuse(namespace, ("refine_budget",), what)
    if planner in ("exact", "data-parallel"):
        refuse(namespace, ("certify_budget",), f"a plan of planner {planner} needs no proof")


def _sweep_request(namespace: argparse.Namespace) -> SweepRequest:
    _refuse_of_planner(namespace)
    refuse(namespace, IN_SWEEP_FILE, "a sweep has its own in its file")
    refuse(namespace, NOT_OF_SWEEPS, "is about one plan, not a sweep")
    if namespace.out and namespace.out.suffix.lower() not in (".csv", ".json"):
        what = f"no table of a sweep ends in {namespace.out.suffix!r}"
        raise BadInput(what, where=f"--out {namespace.out}", do="use .csv or .json")
    return filled(SweepRequest, namespace, planner=_planner_request(namespace))


def run(request: InferRequest | SweepRequest | ReplanRequest) -> PlanReport | Sweep | Replanned:
    """The plan, evaluated; many of them; or the next plan of a running job.

    Raises:
        BadInput: an argument or a file cannot be used.
        Infeasible: no plan fits the memory.
    """
    if isinstance(request, SweepRequest):
        return _swept(request)
    if isinstance(request, ReplanRequest):
        return replanned(request)
    return _planned(request) if request.plan is None else _read_back(request, request.plan)


def _planned(request: InferRequest) -> PlanReport:
    """Read the profile and the cluster, plan, evaluate."""
    from automap_models.core.microbatch import rescaling_notes
    from automap_models.formats.cluster_yaml import known_clusters, read_cluster
    from automap_models.planners.portfolio.auto import AutoConfig
    from automap_models.planners.portfolio.space import planning_problem
    from automap_models.planners.staged.evaluate import evaluate

    planner, profile = _staged_planner(request.planner), sized_profile(request.profile, request.microbatch_size)
    if request.topo is None:
        raise BadInput(
            "no cluster is given", where="--topo", do=f"choose from {', '.join(known_clusters())} or give a YAML file"
        )
    problem = planning_problem(
        profile,
        read_cluster(request.topo),
        request.stages,
        request.micro_batches,
        request.global_batch,
        **given(request, "state_factor", "granularity"),
    )
    if request.planner.name == "auto":
        with _watched(len(problem.stages)):
            result = planner.solve(problem.space)
    else:
        one = request.planner.name == "data-parallel"
        result = planner.solve(replace(problem.problem, stages=1) if one else problem.problem)
    solved, plan = result.problem, result.required_plan()
    replicas = max(last - first + 1 for first, last in plan.stage_devices(solved.cluster.devices))
    notes = (
        *(problem.notes if request.stages is None else ()),
        *result.notes,
        *rescaling_notes(solved.profile, replicas),
    )
    certify_s = request.planner.certify_s
    chosen = request.stages == AUTO and solved.stages > 1
    return evaluate(
        replace(result, notes=notes),
        certify_s=AutoConfig().certify_s if certify_s is None else certify_s,
        uniform_stages=solved.stages if chosen else problem.problem.stages,
        policy=_policy_label(request.planner) if plan.planner == "policy" else None,
    )


def _watched(problems: int) -> AbstractContextManager[object]:
    """A line on the terminal where the choice is among several problems, which may take seconds."""
    if problems <= 2 or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from ..reports.text import Steps

    steps = Steps()
    steps.begin(f"choosing among {problems} combinations of stages and micro-batches")
    return steps


def _read_back(request: InferRequest, path: Path) -> PlanReport:
    """A plan in a file, costed again."""
    from automap_models.formats.cluster_yaml import read_cluster
    from automap_models.formats.plan_json import read_plan
    from automap_models.planners.staged.evaluate import evaluate

    cluster = None if request.topo is None else read_cluster(request.topo)
    read = read_plan(path, sized_profile(request.profile, request.microbatch_size), cluster)
    return evaluate(read, notes=(f"read from {path}, costed again",))


def _swept(request: SweepRequest) -> Sweep:
    """Read the file, plan every combination in it."""
    from automap_models.formats.sweep_yaml import read_sweep
    from automap_models.planners.portfolio.sweep import Sweep, combinations, sweep

    from ..reports.text import Steps

    asked = request.planner
    quick = asked.name == AUTO and asked.certify_s is None and asked.refine_s is None
    spec, profile = read_sweep(request.sweep), sized_profile(request.profile, request.microbatch_size)
    policy, fields = _staged_planner(asked, "policy"), given(request, "state_factor", "granularity")
    chosen = combinations(spec, profile, fields, policy.out_of_range, str(request.sweep))
    with Steps() as steps:
        steps.begin(f"planning {len(chosen)} combinations")
        planner = policy if quick else _staged_planner(asked)
        rows = sweep(chosen, planner, quick=quick, progress=lambda done, total: steps.advance(done, total, "planning"))
    return Sweep(profile, rows, spec.global_batch)


def _staged_planner(request: PlannerRequest, name: str | None = None) -> Planner[Any, StagedPlan, Any]:
    """The planner asked for, or another one, with the options that are given and that it has.

    Raises:
        BadInput: there is no such planner, or its policy file cannot be read.
    """
    from automap_models.planners.registry import config_names, make_planner, planner_names

    name = request.name if name is None else name
    if name not in planner_names("staged"):
        raise BadInput(
            f"unknown planner {name!r}", where="--planner", do=f"choose from {', '.join(planner_names('staged'))}"
        )
    options = ("policy", "beam", "certify_s", "refine_s", "schedule")
    known = config_names(name)
    return make_planner(name, kind="staged", **given(request, *(option for option in options if option in known)))


def _policy_label(request: PlannerRequest) -> str:
    """The policy file's name and the beginning of its SHA-256."""
    import hashlib

    from automap_models.planners.staged.policy import SHIPPED
    from automap_models.resources import zoo_dir

    path = request.policy or zoo_dir() / SHIPPED
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def report(request: InferRequest | SweepRequest | ReplanRequest, outcome: PlanReport | Sweep | Replanned) -> Report:
    """Tables, pictures and documents of whatever was asked for."""
    if isinstance(request, SweepRequest):
        from ..reports.sweep import sweep_report

        return sweep_report(outcome)  # type: ignore[arg-type]
    if isinstance(request, ReplanRequest):
        from ..reports.pipeline import replan_report

        return replan_report(request, outcome)  # type: ignore[arg-type]
    return _plan_report(request, outcome)  # type: ignore[arg-type]


def _plan_report(request: InferRequest, plan: PlanReport) -> Report:
    from automap_models.formats.chrome_trace import write_trace
    from automap_models.formats.plan_json import plan_document

    from ..reports.pipeline import print_report

    def timeline() -> Timeline:
        from automap_models.planners.staged.evaluate import timeline

        return timeline(plan.cost, plan.plan.micro_batches, request.planner.schedule or DEFAULT_SCHEDULE)

    def draw() -> Figure:
        from ..plots.pipeline import draw

        return draw(plan, timeline())

    def trace(path: Path) -> None:
        write_trace(path, timeline())

    return Report(
        lambda: print_report(plan, verbose=request.verbose),
        lambda: plan_document(plan),
        {"trace": trace},
        draw,
    )


COMMAND = Command(
    summary="plan the pipeline stages of a profiled model on a cluster",
    description="Plan how to train a profiled model on a cluster: where to cut it into pipeline stages, "
    "and which devices each stage gets.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(
        Output("plan", ("--out",), "write the plan as JSON; of a sweep, its rows as .csv or .json"),
        Output("plot", ("--plot",), "draw arrays, cuts and schedule (.png, .svg, .pdf)", picture=True),
        Output("trace", ("--trace",), "write the schedule for chrome://tracing or Perfetto"),
        Output("corrected profile", ("--corrected",), "write the profile (.npz) as --observed corrects it"),
    ),
    json="print the plan as JSON and nothing else",
    inputs=("profile", "plan", "policy", "observed", "sweep"),
    request=request,
    run=run,
    report=report,
)
