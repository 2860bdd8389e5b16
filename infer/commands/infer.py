"""`automap infer`: from a profile and a cluster to a plan (formats.md, "Commands").

One plan by default; with `--sweep` many, one a combination; with `--observed` the next plan of a running job.
"""

from __future__ import annotations

import argparse

from automap_models.core.units import SECONDS
from automap_models.errors import BadInput
from automap_models.export.targets import PLANNED_FOR
from automap_models.planners.options import AUTO, PlanOptions
from automap_models.requests import InferRequest, ReplanRequest, SweepRequest, narrowed

from ..runner import Command, Output, reported_by
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
    whole_number,
)
from .strategies import TARGET

EPILOG = """examples:
  automap infer bert.npz --topo C                            a plan for 4 nodes of 8 V100, printed
  automap infer graph.txt --topo my-cluster.yaml --stages 8  PipeDream's profile, your cluster, 8 stages
  automap infer bert.npz --topo C --out plan.json --plot plan.png --trace trace.json
  automap infer bert.npz --topo C --schedule gpipe           the shortest step under GPipe instead of 1F1B
  automap infer bert.npz --topo C --global-batch 256 --verbose  all numbers of stages and micro-batches compete
  automap infer bert.npz --topo C --equal-replicas --cut-at blocks  equal stages of whole blocks
  automap infer bert.npz --topo C --objective length --stages 4  Auto-MAP's length L, as in its paper
  automap infer bert.npz --topo C --planner exact            the proven optimum on the 128 grid
  automap infer bert.npz --topo C --planner policy --beam 1  from the greedy plan alone
  automap infer bert.npz --sweep sweep.yaml --plot sweep.png  what if: other clusters, stages, micro-batches
  automap infer bert.npz --topo C --json | jq .step_s        for machines
  automap infer bert.npz --plan plan.json                    cost and show a plan made before
  automap infer bert.npz --plan plan.json --observed times.json --out next.json --corrected bert-measured.npz
"""

PROBLEM = f"""
    --stages S|auto         number of stages; auto: the best one (default: auto; with --objective length one a node, or
        1 where that is shorter)
    --micro-batches M|auto  micro-batches in a global batch; auto: the best number for it (default: auto; with
        --objective length, and of a planner that is named, 16 as profiled). A number alone, without --global-batch,
        makes a global batch of so many micro-batches as profiled
    --global-batch B        samples between two updates (default: 16 micro-batches as profiled); with --objective length
        alone it makes B / (samples of the profiled micro-batch) micro-batches
    --microbatch-size N     samples in the profiled micro-batch
    {STATE_FACTOR}
    --granularity N         points at which the model may be cut (default 128)
    {RESTRICTIONS}
    {TARGET}
"""
HOW = """
    --planner NAME         who plans: policy (the trained network), tables (compiled tables and moves), exact (the exact
        search), uniform (uniform cuts), data-parallel (one stage on all devices), online (see automap search pp), or
        auto (default): the simplest of nearly equal plans of all kinds, or by the length L that of tables, corrected by
        exact, and where that proves nothing the network's, if shorter. A named planner's own plan stays as it is
    --beam N               first cuts of the policy to go on from (default 4; 1: greedy)
    --certify-budget TIME  time, or milliseconds, in which the exact search proves the plan optimal, or corrects that of
        --planner auto (default 300 ms; 0: only a lower bound), or after which --planner exact stops (default 60 s),
        counted by what it computes: the plan is the same on every machine
    --refine-budget TIME   time, or milliseconds, in which --planner auto moves its cuts off the grid, by single
        instructions (default 100 ms, counted as well; 0: they stay on the grid)
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
    *("beam", "policy", "certify_s", "refine_s", "min_gain", "min_stage", "equal_replicas", "cut_at", "target"),
)
"""Options that a plan made before has no use for."""
NOT_OF_SWEEPS = ("plan", "trace", "min_gain", "min_stage", "observed", "attribute", "restart_s", "corrected")
"""Options about one plan."""
NOT_OF_REPLANNING = (
    *("stages", "micro_batches", "global_batch", "state_factor", "granularity"),
    *("beam", "certify_s", "refine_s", "plot", "trace", "schedule"),
)
"""Options that planning again has no use for: the plan has its own, and what it shows is not simulated."""
IN_SWEEP_FILE = ("topo", "stages", "micro_batches", "global_batch")
"""Options that a sweep's file has in their place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan on which cluster, and how."""
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        type=file_argument,
        help="profile.npz, a graph.txt of PipeDream or DAPPLE, or JSON of dnn-partitioning or Piper; "
        "automap profile makes one of a model",
    )
    add_topo(parser, required=False)
    add_options(
        parser.add_argument_group("what to plan"),
        PROBLEM,
        stages={"type": number_or_auto},
        micro_batches={"type": number_or_auto},
        N={"type": whole_number},
        B={"type": whole_number},
        target={"choices": PLANNED_FOR},
    )
    how = parser.add_argument_group("how to plan")
    add_objective(how)
    milliseconds = {"type": quantity(SECONDS, plain_per_base=1e3)}
    beam = {"type": whole_number}
    add_options(how, HOW, planner={"default": AUTO}, beam=beam, certify_s=milliseconds, refine_s=milliseconds)
    attribute = {"choices": ("instructions", "devices", "either")}
    add_options(parser.add_argument_group("what a running job says"), RUNNING, attribute=attribute)


def request(namespace: argparse.Namespace) -> InferRequest | SweepRequest | ReplanRequest:
    """What is asked for."""
    if namespace.sweep:
        refuse(namespace, ("observed",), "is about one plan, not a sweep")
    if not namespace.observed:
        refuse(
            namespace, ("attribute", "restart_s", "corrected"), "is about measured times", "give these with --observed"
        )
    if namespace.sweep:
        return _sweep_request(namespace)
    if namespace.observed:
        return _replan_request(namespace)
    if namespace.plan is not None:
        refuse(namespace, OF_PLANNING, "the plan read has its own")
    return filled(InferRequest, namespace, options=_plan_options(namespace))


def _plan_options(namespace: argparse.Namespace) -> PlanOptions:
    vars(namespace).update(narrowed(vars(namespace)))
    return filled(PlanOptions, namespace)


def _sweep_request(namespace: argparse.Namespace) -> SweepRequest:
    refuse(namespace, IN_SWEEP_FILE, "a sweep has its own in its file")
    refuse(namespace, NOT_OF_SWEEPS, "is about one plan, not a sweep")
    if namespace.out and namespace.out.suffix.lower() not in (".csv", ".json"):
        what = f"no table of a sweep ends in {namespace.out.suffix!r}"
        raise BadInput(what, where=f"--out {namespace.out}", do="use .csv or .json")
    return filled(SweepRequest, namespace, options=_plan_options(namespace))


def _replan_request(namespace: argparse.Namespace) -> ReplanRequest:
    if namespace.plan is None:
        raise BadInput("needs the plan that was running", where="--observed", do="give it with --plan")
    named = () if namespace.planner == AUTO else ("planner",)
    refuse(namespace, (*NOT_OF_REPLANNING, *named), "planning again has no use for it")
    restart_s = namespace.restart_s or 0.0
    if not 0 <= restart_s < float("inf"):
        raise BadInput(f"{restart_s:g} seconds", where="--restart", do="give 0 or more")
    return filled(
        ReplanRequest,
        namespace,
        restart_s=restart_s,
        names_corrected=namespace.corrected is not None or namespace.out is None,
    )


COMMAND = Command(
    description="Plan how to train a profiled model on a cluster: where to cut it into pipeline stages, "
    "and which devices each stage gets.",
    epilog=EPILOG,
    exits={3: "no plan fits the memory"},
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
    verbose="; also print what auto tried, with the outcome of each combination",
    report=reported_by({InferRequest: "pipeline", SweepRequest: "sweep", ReplanRequest: "replan"}),
)
