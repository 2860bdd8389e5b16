"""How close the plans of the policy, and of compiled tables, are to the optimum by the length L, and in what time.

    OMP_NUM_THREADS=1 python benchmarks/policy_quality.py [--problems 2000] [--policy FILE …] [--profiles FOLDER]
    OMP_NUM_THREADS=1 python benchmarks/policy_quality.py --problems 0 --default [--profiles FOLDER]
    python benchmarks/policy_quality.py --problems 0 --run FOLDER … --plot FILE

Random problems are drawn as training sets are (dist=mixed), 2 to 4 stages on the clusters A, B and C, with a seed of
their own; real ones are profiles on A, B and C with S = nodes and M = 16. L* is the exact planner's on the grid. First
cuts: from so many the network plans greedily; "searched": the planner looks beside and between these plans. Times
are of processor time, of one problem after another. The claims for L / L*: all real problems optimal from four first
cuts, searched; random ones ≤ 1.003 in the mean from sixteen; at most 5 ms a plan on C.

`--default` says what the network brings to the default planner, which asks it where nothing is proven: 4 to 16 stages
on 4 and 16 nodes of C and p4d-4.

`--plot` draws the curves of training runs (`out=` of train/run.py) on their held-out problems.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import add_profiles, fresh_problems, optimum_s, print_rows, profile_files, timed, tracked
from numpy.typing import NDArray

from automap_models.core.staged import StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import NEVER, Planner
from automap_models.planners.portfolio.auto import AutoConfig
from automap_models.planners.portfolio.length import LengthSearch
from automap_models.planners.portfolio.proofs import Attempt
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.search import TablesPlanner

FIRST_CUTS = (1, 4, 16)
HEADS = ("planner", "first cuts", "searched", "problems", "mean", "median", "p99", "max", "do not fit", "ms")

Problems = Sequence[tuple[StagedProblem, float]]
"""With their optima."""


def planners(files: Sequence[Path | None]) -> Iterator[tuple[tuple[str, str, str], Planner[Any, Any, Any]]]:
    """All that are compared: their first cells, and they."""
    yield ("uniform cuts", "", ""), UniformPlanner()
    yield ("tables", "", "yes"), TablesPlanner()
    for file, beam, search in product(files, FIRST_CUTS, (False, True)):
        name = "policy" if file is None else f"policy {file}"
        yield (name, str(beam), "yes" if search else ""), PolicyPlanner(PolicyConfig(file, beam, search))


def compared(problems: Problems, files: Sequence[Path | None]) -> Iterator[list[str]]:
    """Rows of L / L* of every planner on problems."""
    for cells, planner in planners(files):
        planner.solve(problems[0][0])  # has the loops compiled
        results, taken_s = timed(lambda planner=planner: [planner.solve(problem) for problem, _ in problems])  # type: ignore[misc]
        lengths = [result.cost.length_s if result.plan is not None else np.inf for result in results]
        ratios = np.array(lengths) / [optimum for _, optimum in problems]
        fits = ratios[np.isfinite(ratios)]
        values = (fits.mean(), np.median(fits), np.quantile(fits, 0.99), fits.max())
        numbers = [f"{value:.4f}" for value in values]
        lost, ms = len(ratios) - len(fits), 1e3 * taken_s / len(problems)
        yield [*cells, str(len(ratios)), *numbers, str(lost), f"{ms:.1f}"]


def random_problems(count: int, seed: int) -> Problems:
    problems = fresh_problems(count, seed)
    optima = [optimum_s(problem) for problem in tracked(problems, "exact optima")]
    return [(problem, optimum) for problem, optimum in zip(problems, optima, strict=True) if np.isfinite(optimum)]


def real_problems(profiles: Sequence[Path]) -> Problems:
    """T5 is trained with Adafactor, which keeps one number a parameter where Adam keeps two."""
    problems = []
    for path, name in product(profiles, "ABC"):
        cluster, state = read_cluster(name), 2.0 if path.stem.startswith("t5") else 4.0
        problem = StagedProblem(read_profile(path), cluster, stages=cluster.nodes, state_factor=state)
        optimum = optimum_s(problem)
        if np.isfinite(optimum):
            problems.append((problem, optimum))
    return problems


class TablesAlone(LengthSearch):
    """The default by the length L, without the network."""

    def _ask_network(self, attempts: Sequence[Attempt]) -> bool:
        return False


def defaults(profiles: Sequence[Path]) -> Iterator[list[str]]:
    """Rows of what the network brings to the default planner by the length L, where it changes anything."""
    config, ratios, longer = AutoConfig(), [], []
    for path, (name, nodes) in product(profiles, product(("C", "p4d-4"), (4, 16))):
        profile, cluster = read_profile(path), replace(read_cluster(name), nodes=nodes)
        for stages in (4, 8, 12, 16):
            problem = StagedProblem(profile, cluster, stages, 16, state_factor=2.0 if path.stem[:2] == "t5" else 4.0)
            results = [
                timed(partial(search(None, prove_s, config.refine_s, NEVER).solve, [problem]))
                for search, prove_s in ((TablesAlone, 0.3), (TablesAlone, 1.0), (LengthSearch, 0.3))
            ]
            if results[0][0].plan is None:
                continue
            alone_s, longer_s, both_s = (result.cost.length_s for result, _ in results)
            ratios.append(both_s / alone_s)
            longer.append(longer_s / alone_s)
            if min(ratios[-1], longer[-1]) < 1.0 - 1e-6:
                cells = f"{longer[-1]:.4f}", f"{ratios[-1]:.4f}", results[2][0].required_plan().planner
                yield [path.stem, f"{name}, {nodes} nodes", str(stages), *cells, *(f"{s:.2f}" for _, s in results)]
    yield [f"mean of {len(ratios)}", "", "", f"{np.mean(longer):.4f}", f"{np.mean(ratios):.4f}", *4 * [""]]


DEFAULT_HEADS = ("profile", "cluster", "stages", "1 s", "network", "made by", "s", "s with 1 s", "s with the network")


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


def plot(runs: Sequence[Path], path: Path) -> None:
    """The curves of some runs, every run a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for run in runs:
        history = curve(run)
        for column, title in enumerate(("mean", "99th percentile"), 1):
            axes[column - 1].plot(history[:, 0] / 1e6, 100 * (history[:, column] - 1), ".-", label=run.name)
            axes[column - 1].set(title=title, yscale="log", xlabel="episodes, millions")
            axes[column - 1].grid(visible=True, which="both", alpha=0.3)
            axes[column - 1].yaxis.set_major_formatter(ScalarFormatter())
            axes[column - 1].yaxis.set_minor_formatter(ScalarFormatter())
    axes[0].set_ylabel("greedy length over the optimum, %")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files beside the shipped one")
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="folders of training runs")
    parser.add_argument("--default", action="store_true", help="what it brings to the default planner")
    parser.add_argument("--plot", type=Path, help="draw the runs' curves")
    add_profiles(parser)
    arguments = parser.parse_args()
    if arguments.plot:
        plot(arguments.run, arguments.plot)
    if arguments.default:
        print_rows(DEFAULT_HEADS, defaults(profile_files(arguments.profiles)))
    if arguments.problems:
        files = (None, *arguments.policy)
        print_rows(HEADS, compared(real_problems(profile_files(arguments.profiles)), files))
        print_rows(HEADS, compared(random_problems(arguments.problems, arguments.seed), files))


if __name__ == "__main__":
    main()
