"""How well a policy without tables plans, beside the shipped one, and how its training went.

    python benchmarks/learned_policy.py [--policy FILE ...] [--problems 300] [--run FOLDER ...] [--plot FILE]

L / L* on fresh random problems of 2 to 4 stages, with the plans of one and several first cuts, greedily and with the
searches that follow, and the processor time of a plan in their batch. What these searches come to from even stages is
what nothing learned gives. The claims: greedy mean ≤ 1.005 and p99 ≤ 1.05 without tables. `--plot` draws the curves of
training runs (`out=` of train/run.py): mean and 99th percentile on their held-out problems.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from common import fresh_problems, optimum_s, timed
from numpy.typing import NDArray
from policy_quality import ratio, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.local_search import even_route
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.planners.staged.table_plans import shortened

FIRST_CUTS = (1, 4, 16)
REACH = PolicyConfig().reach


def curve(run: Path) -> NDArray[np.float64]:
    """[epochs, 3] episodes, mean and 99th percentile of L / L* after each epoch of a run, gone on with or not."""
    points: dict[float, tuple[float, float]] = {}
    for log in sorted(run.glob("csv/*/metrics.csv")):
        with log.open(newline="") as file:
            rows = list(csv.DictReader(file))
        episodes = {row["epoch"]: float(row["train/episodes"]) for row in rows if row.get("train/episodes")}
        for row in rows:
            if row.get("val/gap_mean") and row["epoch"] in episodes:
                points[episodes[row["epoch"]]] = float(row["val/gap_mean"]), float(row["val/gap_p99"])
    return np.array([(number, *points[number]) for number in sorted(points)])


def plot(runs: list[Path], path: Path) -> None:
    """The curves of some runs, every run a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for run in runs:
        history = curve(run)
        for column, title in enumerate(("mean", "99th percentile"), 1):
            axes[column - 1].plot(history[:, 0] / 1000, 100 * (history[:, column] - 1), ".-", label=run.name)
            axes[column - 1].set(title=title, yscale="log", xlabel="episodes, thousands")
            axes[column - 1].grid(visible=True, which="both", alpha=0.3)
            axes[column - 1].yaxis.set_major_formatter(ScalarFormatter())
            axes[column - 1].yaxis.set_minor_formatter(ScalarFormatter())
    axes[0].set_ylabel("L / L* − 1 on held-out problems, greedy, %")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def even_plan(problem: StagedProblem) -> StagedPlan:
    """Stages of equal computation on equally many devices, whether they fit or not."""
    cuts, devices = even_route(stage_tables(problem)).cuts(stage_tables(problem))
    return StagedPlan(cuts, devices, problem.micro_batches, "even", problem.grid.to_points(cuts))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files beside the shipped one")
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="folders of training runs")
    parser.add_argument("--plot", type=Path, help="draw the runs' curves")
    arguments = parser.parse_args()
    problems = fresh_problems(arguments.problems, arguments.seed)[0]
    optima = [optimum_s(p) for p in track(problems, "exact optima", console=Console(stderr=True))]
    solved = [i for i, optimum in enumerate(optima) if np.isfinite(optimum)]
    problems, optima = [problems[i] for i in solved], [optima[i] for i in solved]
    table = Table("policy, first cuts followed", "problems", "mean", "median", "p99", "max", "do not fit")
    times = Table("policy, first cuts followed", "ms of processor time a plan, in a batch")

    def add(label: str, maker: Callable[[], Sequence[StagedPlan | None]]) -> None:
        maker()  # has the loops compiled
        plans, taken_s = timed(maker)
        ratios = np.array([ratio(*case) for case in zip(problems, plans, optima, strict=True)])
        summary(table, label, ratios)
        times.add_row(label, f"{1e3 * taken_s / len(problems):.1f}")

    add("even stages, searched", lambda: [shortened(problem, even_plan(problem), REACH) for problem in problems])
    for file in (None, *arguments.policy):
        for beam, reach in product(FIRST_CUTS, (0, REACH)):
            planner = PolicyPlanner(PolicyConfig(file, beam, reach))
            label = f"{file or 'shipped'}, {beam}{', searched' if reach else ''}"
            add(label, lambda planner=planner: planner.raw_plans(problems))  # type: ignore[misc]
    console = Console(width=120)
    console.print(table)
    console.print(times)
    if arguments.plot:
        plot(arguments.run, arguments.plot)


if __name__ == "__main__":
    main()
