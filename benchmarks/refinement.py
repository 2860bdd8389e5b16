"""What refinement by single instructions gains: in the length L, and in the simulated length of 1F1B.

    OMP_NUM_THREADS=1 python benchmarks/refinement.py [--random 10] [--budget 100] [--profiles FOLDER]

Each problem starts from its optimum on the 128 grid; S = nodes, M = 16. Real profiles, and random models of 3,000
instructions (those of exact_planner.py, their mixtures of communication and computation). `L gain` is that of
refinement under L, `1F1B gain` that of refinement under the simulated length, both with the budget of the command and
in processor time; `to the end` is the gain without a deadline, and the time it takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import add_profiles, processor_time, profile_files, random_problem, timed
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.staged.refine import refine
from automap_models.planners.staged.search import exact_search
from automap_models.simulate.step import step_cost

SCHEDULE = "1f1b"


def rated(problem: StagedProblem, plan: StagedPlan) -> float:
    """What refinement makes short."""
    return step_cost(problem, plan).step_s


def gain(problem: StagedProblem, plan: StagedPlan, budget_s: float, schedule: str | None) -> tuple[float, float]:
    """Per cent that refinement takes off, and its processor time in milliseconds."""
    problem = replace(problem, schedule=schedule)
    refined, taken_s = timed(lambda: refine(problem, plan, processor_time(budget_s)))
    before, after = (rated(problem, candidate) for candidate in (plan, refined))
    return 100 * (1 - after / before), 1e3 * taken_s


def measure(problem: StagedProblem, plan: StagedPlan, budget_s: float) -> list[float]:
    """One row of figures: L gain, its time, 1F1B over L, 1F1B gain and time with the budget, the same to the end."""
    by_length = gain(problem, plan, budget_s, None)
    over = rated(replace(problem, schedule=SCHEDULE), plan) / rated(problem, plan)
    return [
        *by_length,
        over,
        *gain(problem, plan, budget_s, SCHEDULE),
        *gain(problem, plan, float("inf"), SCHEDULE),
    ]


def cells(figures: list[float]) -> Iterator[str]:
    """The figures as the table shows them."""
    for value, form in zip(
        figures, ("{:.2f} %", "{:.0f}", "{:.3f}", "{:.2f} %", "{:.0f}", "{:.2f} %", "{:.0f}"), strict=True
    ):
        yield form.format(value)


def real_rows(table: Table, paths: list[Path], budget_s: float) -> None:
    """Every profile on A, B and C."""
    for path in paths:
        profile = read_profile(path)
        for name in "ABC":
            cluster = read_cluster(name)
            problem = StagedProblem(profile, cluster, stages=cluster.nodes)
            plan = exact_search(problem)
            if plan is None:
                table.add_row(path.stem, name, str(len(profile)), "fits no memory")
            else:
                table.add_row(path.stem, name, str(len(profile)), *cells(measure(problem, plan, budget_s)))


def random_rows(table: Table, count: int, budget_s: float) -> None:
    """Random mixtures, medians and extremes; also larger clusters with more stages."""
    clusters = [read_cluster(name) for name in "ABC"] + [Cluster(8, 8, 130e9, 3.125e9, 32e9, "8 × 8")]
    for cluster in clusters:
        rows = []
        for seed in range(count):
            rng = np.random.default_rng(10_000 + seed)
            scales = (float(rng.uniform(-3.0, 1.5)), float(rng.uniform(-3.0, 1.5)))
            problem = random_problem(cluster, cluster.nodes, 16, scales, seed)
            plan = exact_search(problem)
            if plan is not None:
                rows.append(measure(problem, plan, budget_s))
        for label, figures in (("median", np.median(rows, axis=0)), ("largest", np.max(rows, axis=0))):
            table.add_row(f"{len(rows)} random, {label}", cluster.name, "3000", *cells(figures.tolist()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=10, help="random models a cluster")
    parser.add_argument("--budget", type=float, default=100.0, help="milliseconds")
    add_profiles(parser)
    arguments = parser.parse_args()
    heads = ("L gain", "ms", "1F1B / L before", "1F1B gain", "ms", "to the end", "ms")
    table = Table("profile", "cluster", "n", *heads)
    real_rows(table, profile_files(arguments.profiles), arguments.budget / 1e3)
    random_rows(table, arguments.random, arguments.budget / 1e3)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
