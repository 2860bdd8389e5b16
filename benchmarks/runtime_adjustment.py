"""What static plans lose on drifting and straggling devices, and what adjusting at run time wins back.

    python benchmarks/runtime_adjustment.py --plot docs/images/adjusting.png

Every job runs through the same windows (planners.replan.simulation): one keeps its plan, one measures each window,
adjusts, and moves where that pays, one knows every speed beforehand and moves for nothing. Seconds of simulated time,
moves included; no clock but that of the last column decides anything, so that the table is the same everywhere.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from policy_quality import ROOT
from rich.console import Console
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.files import read_profile
from automap_models.planners.base import PlannerOptions
from automap_models.planners.registry import make_planner
from automap_models.planners.replan.simulation import Outcome, World, simulate_job

MODELS = ("bert48_v100", "vgg19_v100", "t5_base_v100")
WORLDS = {
    "all drift": World(device_straggles=0.0, node_straggles=0.0),
    "devices straggle": World(drift=0.0, node_straggles=0.0),
    "nodes straggle": World(drift=0.0, device_straggles=0.0, node_straggles=0.04),
    "all of it": World(node_straggles=0.04),
}


def problems(
    models: Sequence[str],
) -> Iterator[tuple[StagedProblem, StagedPlan, Callable[[StagedProblem], list[StagedPlan]]]]:
    """Each model on cluster C with its plan, and the planner that made it."""
    planner = make_planner("auto", PlannerOptions(certify_s=0.0, refine_s=0.0))
    for model in models:
        cluster = read_cluster("C")
        problem = StagedProblem(read_profile(ROOT / "examples" / f"{model}.npz"), cluster, stages=cluster.nodes)
        yield problem, planner.plan(problem), lambda corrected: [planner.plan(corrected)]


def row(outcomes: list[Outcome], world: World, taken_s: float) -> list[str]:
    """The table's figures over all seeds."""
    static, adjusted, perfect = np.sum([outcome.totals(world.steps) for outcome in outcomes], axis=0)
    moves = float(np.mean([(outcome.moving_s > 0).sum() for outcome in outcomes]))
    moving = sum(float(outcome.moving_s.sum()) for outcome in outcomes)
    won = f"{100 * (static - adjusted) / (static - perfect):.0f} %" if static > 1.001 * perfect else "–"
    windows = 2 * world.windows * len(outcomes)  # the perfect job plans, too
    return [
        f"{100 * (static / perfect - 1):.2f} %",
        f"{100 * (adjusted / perfect - 1):.2f} %",
        won,
        f"{moves:.1f}",
        f"{100 * moving / adjusted:.2f} %",
        f"{1e3 * taken_s / windows:.0f} ms",
    ]


def write_plot(path: Path, outcome: Outcome, title: str) -> None:
    """Seconds a step of the three jobs over the windows, and when the adjusting one moved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    axes = figure.subplots()
    windows = np.arange(outcome.static_s.size)
    for times, label, colour in (
        (outcome.static_s, "keeps its plan", "#D55E00"),
        (outcome.adjusted_s, "adjusts it", "#0072B2"),
        (outcome.perfect_s, "knows everything beforehand", "#009E73"),
    ):
        axes.step(windows, times, where="mid", label=label, color=colour, linewidth=2.0)
    moved = np.flatnonzero(outcome.moving_s)
    axes.plot(moved, outcome.adjusted_s[moved], "v", color="black", label="moves")
    axes.axhline(outcome.healthy_s, color="grey", linestyle="--", linewidth=1.0, label="first plan, healthy devices")
    axes.set_xlabel("window")
    axes.set_ylabel("seconds a step")
    axes.set_title(title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--models", nargs="+", default=MODELS, help="profiles in examples/")
    parser.add_argument("--windows", type=int, default=World.windows)
    parser.add_argument("--plot", type=Path, help="draw the first model's first run with everything going on")
    arguments = parser.parse_args()
    heads = ("static loses", "adjusting loses", "won back", "moves", "time in moves", "CPU per plan")
    table = Table("model", "world", *heads)
    for problem, plan, starts in problems(arguments.models):
        for name, kind in WORLDS.items():
            world = replace(kind, windows=arguments.windows)
            begin = time.process_time()
            outcomes = [simulate_job(problem, plan, world, seed, starts) for seed in range(arguments.seeds)]
            table.add_row(problem.profile.model, name, *row(outcomes, world, time.process_time() - begin))
            if arguments.plot and name == "all of it" and problem.profile.model == "bert48":
                write_plot(arguments.plot, outcomes[0], f"{problem.profile.model} on C, {name}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
