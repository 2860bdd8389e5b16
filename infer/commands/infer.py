"""`automap infer`: from a profile and a cluster to a plan (formats.md, "Commands").

One plan by default; with `--sweep` many, one a combination; with `--observed` the next plan of a running job
(replan.py).
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.units import SECONDS
from automap_models.errors import BadInput
from automap_models.planners.options import AUTO, PlanOptions

from ..requests import InferRequest, ReplanRequest, SweepRequest
from ..runner import Command, Output, Report
from .parsing import (
    RESTRICTIONS,
    STATE_FACTOR,
    add_objective,
    add_options,
    add_topo,
    file_argument,
    filled,
    number_or_auto,
    quantity,
    refuse,
    sized_profile,
    whole_number,
)
from .replan import replan_request, replanned
from .targets import TARGET, TARGET_CHOICES, narrow

if TYPE_CHECKING:
    from pathlib import Path

    from automap_models.core.result import PlanReport
    from automap_models.planners.portfolio.sweep import Sweep
    from automap_models.simulate.engine import Timeline

    from .replan import Replanned

EPILOG = """examples:
  automap-infer bert.npz --topo C                            a plan for 4 nodes of 8 V100, printed
  automap-infer graph.txt --topo my-cluster.yaml --stages 8  PipeDream's profile, your cluster, 8 stages
  automap-infer bert.npz --topo C --out plan.json --plot plan.png --trace trace.json
  automap-infer bert.npz --topo C --schedule gpipe           the shortest step under GPipe instead of 1F1B
  automap-infer bert.npz --topo C --global-batch 256 --verbose  all numbers of stages and micro-batches compete
  automap-infer bert.npz --topo C --equal-replicas --cut-at blocks  equal stages of whole blocks
  automap-infer bert.npz --topo C --objective length --stages 4  Auto-MAP's length L, as in its paper
  automap-infer bert.npz --topo C --planner exact            the proven optimum on the 128 grid
  automap-infer bert.npz --topo C --planner policy --beam 1  the bare greedy policy
  automap-infer bert.npz --sweep sweep.yaml --plot sweep.png  what if: other clusters, stages, micro-batches
  automap-infer bert.npz --topo C --json | jq .step_s        for machines
  automap-infer bert.npz --plan plan.json                    cost and show a plan made before
  automap-infer bert.npz --plan plan.json --observed times.json --out next.json --corrected bert-measured.npz

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan fits the memory, 1 a defect of ours,
141 the output's reader went away
"""

PROBLEM = """
    --stages S|auto         number of stages; auto: the best one (default: auto; with --objective length one a node, or
        1 where that is shorter)
    --micro-batches M|auto  micro-batches in a global batch; auto: the best number for it (default: auto; with
        --objective length, and of a planner that is named, 16 as profiled)
    --global-batch B        samples between two updates (default: 16 micro-batches as profiled); with --objective length
        alone it makes B / (samples of the profiled micro-batch) micro-batches
    --microbatch-size N     samples in the profiled micro-batch
"""
GRANULARITY = """
    --granularity N  points at which the model may be cut (default 128)
"""
HOW = """
    --planner NAME         who plans: policy (the trained policy), exact (the exact search), uniform (uniform cuts),
        data-parallel (one stage on all devices), online (see automap-search pp), or auto (default): the simplest of
        nearly equal plans of all kinds, or by the length L that of the policy, corrected by exact. A named planner's
        own plan is returned as it is
    --beam N               first cuts that the policy goes on from (default 4; 1: greedy)
    --certify-budget TIME  time, or milliseconds, in which the exact search proves the plan optimal, or corrects that of
        --planner auto (default 300 ms; 0: only a lower bound), counted by what it computes: the plan is the same on
        every machine
    --refine-budget TIME   time, or milliseconds, in which --planner auto moves its cuts off the grid, by single
        instructions (default 100 ms, counted as well)
    --no-refine            leave the cuts on the grid
    --policy FILE          an .onnx policy instead of the shipped one
    --sweep FILE           what if: steps over the clusters, stages and micro-batches of a YAML file; --out writes .csv
        or .json, --plot draws them
    --plan FILE            plan nothing: cost and show this plan.json
"""
RUNNING = """
    --observed FILE|FOLDER  measured stage times (times.json, a trace, or a folder with a trace of each rank) of the job
        that runs --plan: they correct the profile, and the job is planned again
    --attribute             what a stage all of whose devices are slow is put down to (default: instructions; where the
        profile was corrected before, devices under the same cuts, under others either, by how much it is)
    --restart TIME          what a move costs beside moving bytes, such as '90 s' or '2 min'
"""
OF_PLANNING = (
    *("stages", "micro_batches", "global_batch", "microbatch_size", "state_factor", "granularity"),
    *("beam", "policy", "certify_budget", "refine_budget", "min_gain", "min_stage", "equal_replicas", "cut_at", "for"),
)
"""Options that a plan made before has no use for."""
NOT_OF_SWEEPS = ("plan", "trace", "min_gain", "min_stage", "observed", "attribute", "restart", "corrected")
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
    add_options(
        parser.add_argument_group("what to plan"),
        PROBLEM + STATE_FACTOR + GRANULARITY + RESTRICTIONS + TARGET,
        stages={"type": number_or_auto},
        micro_batches={"type": number_or_auto},
        N={"type": whole_number},
        B={"type": whole_number},
        **{"for": TARGET_CHOICES},
    )
    how = parser.add_argument_group("how to plan")
    add_objective(how)
    milliseconds = {"type": quantity(SECONDS, plain_per_base=1e3)}
    beam = {"type": whole_number}
    add_options(how, HOW, planner={"default": AUTO}, beam=beam, certify_budget=milliseconds, refine_budget=milliseconds)
    attribute = {"choices": ("instructions", "devices", "either")}
    add_options(parser.add_argument_group("what a running job says"), RUNNING, attribute=attribute)
    verbose = "--verbose  also print what auto tried, with the outcome of each combination"
    add_options(parser.add_argument_group("what to print"), verbose)


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
    return filled(InferRequest, namespace, options=_plan_options(namespace))


def _plan_options(namespace: argparse.Namespace) -> PlanOptions:
    """What is asked of a plan, by the arguments of the same names and by those in milliseconds."""
    if namespace.no_refine:
        refuse(namespace, ("refine_budget",), "--no-refine refines nothing")
    narrow(namespace)
    names = {field.name for field in fields(PlanOptions)} & vars(namespace).keys()
    return PlanOptions(
        **{name: getattr(namespace, name) for name in names},
        certify_s=namespace.certify_budget,
        refine_s=0.0 if namespace.no_refine else namespace.refine_budget,
    )


def _sweep_request(namespace: argparse.Namespace) -> SweepRequest:
    refuse(namespace, IN_SWEEP_FILE, "a sweep has its own in its file")
    refuse(namespace, NOT_OF_SWEEPS, "is about one plan, not a sweep")
    if namespace.out and namespace.out.suffix.lower() not in (".csv", ".json"):
        what = f"no table of a sweep ends in {namespace.out.suffix!r}"
        raise BadInput(what, where=f"--out {namespace.out}", do="use .csv or .json")
    return filled(SweepRequest, namespace, options=_plan_options(namespace))


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
    from automap_models.formats.hardware_yaml import known_clusters, read_cluster
    from automap_models.planners.portfolio.planning import planned

    from ..reports.text import Steps

    profile = sized_profile(request.profile, None)
    if request.topo is None:
        raise BadInput(
            "no cluster is given", where="--topo", do=f"choose from {', '.join(known_clusters())} or give a YAML file"
        )
    with Steps() as steps:
        return planned(profile, read_cluster(request.topo), request.options, steps.watch)


def _read_back(request: InferRequest, path: Path) -> PlanReport:
    """A plan in a file, costed again."""
    from automap_models.api import read_plan

    return read_plan(path, sized_profile(request.profile, None), request.topo).report


def _swept(request: SweepRequest) -> Sweep:
    """Read the file, plan every combination in it."""
    from automap_models.formats.sweep_yaml import read_sweep
    from automap_models.planners.portfolio.sweep import Sweep, combinations, sweep

    from ..reports.text import Steps

    options = request.options
    spec, profile = read_sweep(request.sweep), sized_profile(request.profile, options.microbatch_size)
    policy = options.make_planner("policy")
    of_problems = {
        **options.given("state_factor", "granularity"),
        "schedule": options.step_schedule,
        "constraints": options.constraints,
    }
    chosen = combinations(spec, profile, of_problems, policy.out_of_range, str(request.sweep))
    with Steps() as steps:
        steps.begin(f"planning {len(chosen)} combinations")
        planner = replace(options, certify_s=options.certify_s or 0.0) if options.planner == AUTO else options
        rows = sweep(
            chosen, planner.make_planner(), progress=lambda done, total: steps.advance(done, total, "planning")
        )
    return Sweep(profile, rows, spec.global_batch)


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
    from automap_models.plots.pipeline import draw
    from automap_models.simulate.step import timeline

    from ..reports.advice import next_commands
    from ..reports.pipeline import print_report

    def drawn() -> Timeline:
        schedule = request.options.schedule or plan.problem.schedule or DEFAULT_SCHEDULE
        return timeline(plan.cost, plan.plan.micro_batches, schedule)

    out = None if request.out is None else str(request.out)
    steps = () if request.plan is not None else next_commands(plan, str(request.profile), request.topo, out)
    return Report(
        lambda: print_report(plan, steps, verbose=request.verbose),
        lambda: plan_document(plan),
        {"trace": lambda path: write_trace(path, drawn())},
        lambda: draw(plan, drawn()),
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
