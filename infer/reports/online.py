"""A pipeline plan by online training, as `automap infer` tells it, and a picture of how the training went."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.staged_plan import plan_document, read_plan
from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, agent_config
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.evaluate import evaluate
from automap_models.plots.exploration import draw_online

from ..commands.parsing import filled, flag, given
from ..requests import OnlineRequest
from ..runner import Report
from .pipeline import print_report
from .profile import profile_of
from .text import Steps

POLICY = "policy"
"""The planner whose plan is a warm start by name."""


def report(request: OnlineRequest) -> Report:
    """Train on the profile."""
    cluster = read_cluster(request.topo)
    agent_config(request.agent)
    profile = profile_of(request.source, request.device or cluster.kind)
    options = given(request, "micro_batches", "state_factor")
    problem = StagedProblem(profile, cluster, request.stages or cluster.nodes, **options)
    config = filled(OnlineConfig, request, warm_start=_warm_start(request.warm_start, problem), prove_s=10.0)
    with Steps() as steps:
        steps.begin("training")
        result = OnlinePlanner(config).solve(problem, watch=steps.watch)
    result.required_plan()
    plan = evaluate(result, seed=request.seed)
    return Report(partial(print_report, plan), partial(plan_document, plan), draw=partial(draw_online, result))


def _warm_start(name: str | None, problem: StagedProblem) -> StagedPlan | None:
    """The policy's plan, or that in a file of the same profile, cluster and numbers of stages and micro-batches."""
    if name is None:
        return None
    if name == POLICY:
        return make_planner(POLICY).plan(problem)
    result = read_plan(Path(name), problem.profile, problem.cluster)
    for what in ("stages", "micro_batches", "state_factor"):
        written, wanted = getattr(result.problem, what), getattr(problem, what)
        if written != wanted:
            differs = f"has {flag(what)[2:]} {written:g}, not {wanted:g}"
            raise BadInput(differs, where=f"--warm-start {name}", do=f"give {flag(what)} as the plan has it")
    return result.required_plan()
