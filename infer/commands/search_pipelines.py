"""`automap search pp`: a pipeline plan by online training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

from ..requests import OnlineRequest
from ..runner import Command, Output, Report
from .parsing import (
    DEVICE,
    SEED,
    STATE_FACTOR,
    STEP,
    add_options,
    add_topo,
    at_least,
    filled,
    flag,
    given,
    name_argument,
    source_of,
)
from .profile import profile_of

if TYPE_CHECKING:
    from automap_models.core.result import Result
    from automap_models.core.staged import StagedPlan, StagedProblem

ABOUT = (
    "Pipeline parallelism by online training: an agent learns on the one profile where to cut it into stages, "
    "instruction by instruction, and which devices near the node boundaries each stage gets."
)
POLICY = "policy"
"""The planner whose plan is a warm start by name."""
PROVE_S = 10.0
"""How long the exact search on the candidates may take after the training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to cut on which cluster, and how long to learn."""
    parser.add_argument(
        "what",
        metavar="MODEL|PROFILE",
        type=name_argument,
        help="a model as automap-profile takes it, or a profile",
    )
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE)
    problem = f"""
        --stages S         number of stages (default: one a node)
        --micro-batches M  in a global batch (default 16)
        {STATE_FACTOR}
        --radius N         devices around the node boundaries (default 3)
    """
    group = parser.add_argument_group("what to plan")
    add_options(group, problem, stages={"type": at_least(2)}, radius={"default": 3})
    learning = f"""
        --agent NAME|FILE         hyper-parameters: default, paper (Auto-MAP's own) or a YAML file like
            conf/online/default.yaml
        --episodes N              to play (default: the agent's)
        {SEED}
        --warm-start policy|FILE  begin with the trained policy's plan, or with this plan.json (./policy is a file)
    """
    group = parser.add_argument_group("who learns, for how long")
    add_options(group, learning, agent={"default": "default"}, seed={"default": 0})


def request(namespace: argparse.Namespace) -> OnlineRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing for what is given.
    """
    return filled(OnlineRequest, namespace, source=source_of(vars(namespace)))


def run(request: OnlineRequest) -> Result[StagedProblem, StagedPlan]:
    """Train on the grid of all instructions.

    Raises:
        BadInput: a file or a value cannot be used.
        Infeasible: no plan fits the memory.
        UserCodeError: the user's own code raised.
    """
    from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner

    from ..reports.text import Steps

    problem = _problem(request)
    config = filled(OnlineConfig, request, warm_start=_warm_start(request.warm_start, problem), prove_s=PROVE_S)
    with Steps() as steps:
        steps.begin("training")
        result = OnlinePlanner(config).solve(problem, watch=steps.watch)
    result.required_plan()
    return result


def report(request: OnlineRequest, result: Result[StagedProblem, StagedPlan]) -> Report:
    """The plan as `automap infer` tells it; a picture of how the training went."""
    from automap_models.formats.plan_json import plan_document
    from automap_models.planners.staged.evaluate import evaluate
    from automap_models.plots.exploration import draw_online

    from ..reports.pipeline import print_report

    evaluated = evaluate(result, seed=request.seed)
    return Report(lambda: print_report(evaluated), lambda: plan_document(evaluated), draw=lambda: draw_online(result))


def _problem(request: OnlineRequest) -> StagedProblem:
    """The problem on the grid of all instructions.

    Raises:
        BadInput: an argument or a file cannot be used.
    """
    from automap_models.core.staged import StagedProblem
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.planners.online.planner import agent_config, at_instructions

    cluster = read_cluster(request.topo)
    agent_config(request.agent)
    profile = profile_of(request.source, request.device or cluster.kind)
    fields = given(request, "micro_batches", "state_factor")
    return at_instructions(StagedProblem(profile, cluster, request.stages or cluster.nodes, **fields))


def _warm_start(name: str | None, problem: StagedProblem) -> StagedPlan | None:
    """The policy's plan, or that in a file.

    Raises:
        BadInput: the plan belongs to another profile or cluster, or has other numbers of stages or micro-batches; or
            the problem is larger than the policy can express.
        Infeasible: the policy's plan does not fit the memory.
    """
    if name is None:
        return None
    return _policy_plan(problem) if name == POLICY else _plan_in(Path(name), problem)


def _policy_plan(problem: StagedProblem) -> StagedPlan:
    from automap_models.core.coarsen import DEFAULT_GRANULARITY
    from automap_models.planners.registry import make_planner

    return make_planner(POLICY).plan(replace(problem, granularity=DEFAULT_GRANULARITY))


def _plan_in(path: Path, problem: StagedProblem) -> StagedPlan:
    from automap_models.formats.plan_reader import read_plan

    read = read_plan(path, problem.profile, problem.cluster)
    own, plan = read.problem, read.required_plan()
    for what in ("stages", "micro_batches", "state_factor"):
        if getattr(own, what) != getattr(problem, what):
            differs = f"has {flag(what)[2:]} {getattr(own, what):g}, not {getattr(problem, what):g}"
            raise BadInput(differs, where=f"--warm-start {path}", do=f"give {flag(what)} as the plan has it")
    return plan


COMMAND = Command(
    summary="pipeline parallelism by online training",
    description=ABOUT,
    epilog="",
    add_arguments=add_arguments,
    outputs=(
        Output("plan", ("--out",), "write the plan as JSON"),
        Output("plot", ("--plot",), "draw how the training went (.png, .svg, .pdf)", picture=True),
    ),
    json="print the plan as JSON and nothing else",
    inputs=("what", "warm_start"),
    request=request,
    run=run,
    report=report,
)
