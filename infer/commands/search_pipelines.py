"""`automap-search pp`: a pipeline plan by online training, from the arguments to what is printed and written."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

from ..arguments import add_step_arguments, at_least

if TYPE_CHECKING:
    from automap_models.core.profile import Profile
    from automap_models.core.result import Result
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.formats.plan_report import PlanReport
    from automap_models.planners.watch import Progress

ABOUT = (
    "Pipeline parallelism by online training: an agent learns on the one profile where to cut it into stages, "
    "instruction by instruction, and which devices near the node boundaries each stage gets."
)
POLICY = "policy"
"""The planner whose plan is a warm start by name."""
PROVE_S = 10.0
"""How long the exact search on the candidates may take after the training."""


def add_pipeline_arguments(made: argparse.ArgumentParser) -> None:
    """The arguments of `automap-search pp`."""
    made.add_argument("what", metavar="MODEL|PROFILE", help="what to cut: as below, or a profile of automap-profile")
    made.add_argument(
        "--topo", metavar="NAME|FILE", required=True, help="a shipped cluster (A, B, C, …) or a YAML file"
    )
    step = made.add_argument_group("which training step")
    add_step_arguments(step)
    step.add_argument("--device", metavar="NAME|FILE", help="device of a model's times (default v100)")
    asked = made.add_argument_group("what to plan")
    asked.add_argument("--stages", metavar="S", type=at_least(2), help="number of stages (default: one a node)")
    asked.add_argument("--micro-batches", metavar="M", type=at_least(1), help="in a global batch (default 16)")
    asked.add_argument("--state-factor", metavar="X", type=float, help="bytes of training state per byte of parameters")
    asked.add_argument(
        "--radius", metavar="N", type=at_least(0), default=3, help="devices around the node boundaries (default 3)"
    )
    how = made.add_argument_group("who learns, for how long")
    how.add_argument(
        "--agent",
        metavar="NAME|FILE",
        default="default",
        help="hyper-parameters: default, paper (Auto-MAP's own) or a YAML file like conf/online/default.yaml",
    )
    how.add_argument("--episodes", metavar="N", type=at_least(1), help="to play (default: the agent's)")
    how.add_argument("--seed", metavar="N", type=at_least(0), default=0, help="of random draws (default 0)")
    how.add_argument(
        "--warm-start",
        metavar="policy|FILE",
        help="begin with the trained policy's plan, or with this plan.json (./policy is a file)",
    )
    out = made.add_argument_group("what to write")
    out.add_argument("--out", metavar="FILE", type=Path, help="write the plan as JSON")
    out.add_argument("--plot", metavar="FILE", type=Path, help="draw how the training went (.png, .svg, .pdf)")
    out.add_argument("--json", action="store_true", help="print the plan as JSON and nothing else")


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, train, then write: after a mistake nothing is written."""
    files = _files(arguments)
    problem = _problem(arguments)
    result = _trained(arguments, problem)
    report = _report(arguments, result)
    if arguments.out:
        from automap_models.formats.plan_json import write_plan

        write_plan(arguments.out, report)
    if arguments.plot:
        from ..plots.online import write_online_plot

        write_online_plot(arguments.plot, result)
    _print(arguments, report, files)
    return 0


def _files(arguments: argparse.Namespace) -> dict[str, Path]:
    """What shall be written → where.

    Raises:
        BadInput: it cannot be written, or is an input or another output, too.
    """
    from automap_models.formats.files import require_writable

    from ..plots.pipeline import require_plotting

    files = {what: path for what, path in (("plan", arguments.out), ("plot", arguments.plot)) if path}
    taken = {Path(path).resolve() for path in (arguments.what, arguments.warm_start) if path}
    for what, path in files.items():
        if path.resolve() in taken:
            raise BadInput("is an input or another output, too", where=f"{path} for the {what}", do="give another name")
        taken.add(path.resolve())
        (require_plotting if what == "plot" else require_writable)(path)
    return files


def _problem(arguments: argparse.Namespace) -> StagedProblem:
    """The problem on the grid of all instructions.

    Raises:
        BadInput: an argument or a file cannot be used.
    """
    from automap_models.core.staged import StagedProblem
    from automap_models.formats.cluster_yaml import read_cluster
    from automap_models.planners.online.planner import agent_options, at_instructions

    cluster = read_cluster(arguments.topo)
    agent_options(arguments.agent)
    profile = _profile(arguments)
    given = {name: getattr(arguments, name) for name in ("micro_batches", "state_factor")}
    given = {name: value for name, value in given.items() if value is not None}
    return at_instructions(StagedProblem(profile, cluster, arguments.stages or cluster.nodes, **given))


def _profile(arguments: argparse.Namespace) -> Profile:
    from ..sources import kind_of, profile_of, require_applicable

    source = kind_of(arguments.what)
    require_applicable(source, arguments)
    asked = argparse.Namespace(**vars(arguments), measure=False, framework=None, model=None)
    return profile_of(source, asked)


def _trained(arguments: argparse.Namespace, problem: StagedProblem) -> Result[StagedProblem, StagedPlan]:
    from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner

    from ..reports.progress import Steps

    config = OnlineConfig(
        agent=arguments.agent,
        radius=arguments.radius,
        episodes=arguments.episodes,
        seed=arguments.seed,
        warm_start=_warm_start(arguments.warm_start, problem),
        prove_s=PROVE_S,
    )
    with Steps() as steps:
        steps.begin("training")

        def watch(news: Progress) -> None:
            steps.advance(news.done or 0, news.total, news.what)

        return OnlinePlanner(config).solve(problem, watch=watch)


def _report(arguments: argparse.Namespace, result: Result[StagedProblem, StagedPlan]) -> PlanReport:
    from automap_models.planners.staged.evaluate import evaluate

    plan = result.required_plan()
    report = evaluate(result.problem, plan, planning_s=result.taken_s, notes=result.notes)
    return replace(report, seed=arguments.seed)


def _warm_start(given: str | None, problem: StagedProblem) -> StagedPlan | None:
    """The policy's plan, or that in a file.

    Raises:
        BadInput: the plan belongs to another profile or cluster, or has other numbers of stages or micro-batches; or
            the problem is larger than the policy can express.
        Infeasible: the policy's plan does not fit the memory.
    """
    if given is None:
        return None
    return _policy_plan(problem) if given == POLICY else _plan_in(Path(given), problem)


def _policy_plan(problem: StagedProblem) -> StagedPlan:
    from automap_models.core.coarsen import DEFAULT_GRANULARITY
    from automap_models.planners.registry import make_planner

    return make_planner(POLICY).plan(replace(problem, granularity=DEFAULT_GRANULARITY))


def _plan_in(path: Path, problem: StagedProblem) -> StagedPlan:
    from automap_models.formats.plan_json import read_plan

    own, plan = read_plan(path, problem.profile, problem.cluster)
    for what in ("stages", "micro_batches", "state_factor"):
        if getattr(own, what) != getattr(problem, what):
            option = what.replace("_", "-")
            differs = f"has {option} {getattr(own, what):g}, not {getattr(problem, what):g}"
            raise BadInput(differs, where=f"--warm-start {path}", do=f"give --{option} as the plan has it")
    return plan


def _print(arguments: argparse.Namespace, report: PlanReport, files: Mapping[str, Path]) -> None:
    if arguments.json:
        from automap_models.formats.plan_json import plan_document

        from ..runner import print_json

        print_json(plan_document(report))
    else:
        from ..reports.pipeline import print_report

        print_report(report, files)
