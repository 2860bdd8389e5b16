"""`automap-search pp`: a pipeline plan by online training, from the arguments to what is printed and written."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

from ..arguments import add_step_arguments, at_least

if TYPE_CHECKING:
    from automap_models.core.profile import Profile
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.formats.plan_report import PlanReport
    from automap_models.planners.online.planner import OnlineOptions, Trained
    from automap_models.planners.online.search import OnlineRound

ABOUT = (
    "Pipeline parallelism by online training: an agent learns on the one profile where to cut it into stages, "
    "instruction by instruction, and which devices near the node boundaries each stage gets."
)
POLICY = "policy"
"""The planner whose plan is a warm start by name."""


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
    trained, report = _trained(arguments, problem)
    if arguments.out:
        from automap_models.formats.plan_json import write_plan

        write_plan(arguments.out, report)
    if arguments.plot:
        from ..plots.online import write_online_plot

        write_online_plot(arguments.plot, trained)
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
    from automap_models.planners.online.planner import agent_config, at_instructions

    cluster = read_cluster(arguments.topo)
    agent_config(arguments.agent)
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


def _trained(arguments: argparse.Namespace, problem: StagedProblem) -> tuple[Trained, PlanReport]:
    from automap_models.planners.online.planner import train_online
    from automap_models.planners.staged.evaluate import evaluate

    options = _options(arguments, problem)
    begun = time.perf_counter()
    from ..reports.progress import Steps

    with Steps() as steps:
        steps.begin("training")

        def watch(each: OnlineRound, total: int) -> None:
            steps.advance(each.episodes, total, f"training, best so far {each.best_s:.4g} s")

        trained = train_online(problem, replace(options, watch=watch))
    report = evaluate(problem, trained.plan, planning_s=time.perf_counter() - begun, notes=notes(trained))
    return trained, replace(report, seed=arguments.seed)


def _options(arguments: argparse.Namespace, problem: StagedProblem) -> OnlineOptions:
    from automap_models.planners.online.planner import OnlineOptions

    return OnlineOptions(
        agent=arguments.agent,
        radius=arguments.radius,
        episodes=arguments.episodes,
        seed=arguments.seed,
        warm_start=_warm_start(arguments.warm_start, problem),
    )


def _warm_start(given: str | None, problem: StagedProblem) -> StagedPlan | None:
    """The policy's plan, or that in a file, on this problem's grid.

    Raises:
        BadInput: the plan belongs to another profile or cluster, or has other numbers of stages or micro-batches; or
            the problem is larger than the policy can express.
        Infeasible: the policy's plan does not fit the memory.
    """
    if given is None:
        return None
    plan = _policy_plan(problem) if given == POLICY else _plan_in(Path(given), problem)
    return replace(plan, coarse_cuts=problem.grid.to_points(plan.cuts), optimality=None)


def _policy_plan(problem: StagedProblem) -> StagedPlan:
    from automap_models.core.coarsen import DEFAULT_GRANULARITY
    from automap_models.planners.registry import make_planner

    return make_planner(POLICY).plan(replace(problem, granularity=DEFAULT_GRANULARITY))


def _plan_in(path: Path, problem: StagedProblem) -> StagedPlan:
    from automap_models.formats.plan_json import read_plan

    own, plan = read_plan(path, problem.profile, problem.cluster)
    for what in ("stages", "micro_batches", "state_factor"):
        if getattr(own, what) != getattr(problem, what):
            told = f"has {what.replace('_', '-')} {getattr(own, what):g}, not {getattr(problem, what):g}"
            raise BadInput(told, where=f"--warm-start {path}", do=f"give --{what.replace('_', '-')} as the plan has it")
    return plan


def notes(trained: Trained) -> tuple[str, ...]:
    """Sentences on what was searched, how far the plan is from the best there, and what the pruning may cost."""
    possible, optimum = trained.candidates, trained.optimum
    episodes = trained.rounds[-1].episodes if trained.rounds else 0
    searched = (
        f"{possible.pivots:,} candidate pivots (device cuts within {possible.radius} of the centre solution), "
        f"{trained.pivots:,} of them played on in {episodes:,} episodes"
    )
    beside = "the shortest plan" if optimum.proof == "exact" else "a lower bound"
    proven = f"{100 * trained.gap:.2f} % above {beside} on these candidates ({optimum.value:.4g} s)"
    if not possible.contain(trained.plan.cuts, trained.plan.device_cuts):  # the plan that it started from
        proven = "the plan it started from, which is not on these candidates"
        if optimum.proof == "exact":
            proven += ": none on them is shorter"
    told = [searched, proven]
    if trained.interrupted:
        told.insert(0, f"interrupted: the best plan of {episodes:,} episodes, not the end of the training")
    return tuple(told)


def _print(arguments: argparse.Namespace, report: PlanReport, files: Mapping[str, Path]) -> None:
    if arguments.json:
        from automap_models.formats.plan_json import plan_document

        from ..runner import print_json

        print_json(plan_document(report))
    else:
        from ..reports.pipeline import print_report

        print_report(report, files)
