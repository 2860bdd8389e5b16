"""How short the simulated 1F1B steps of policies' plans are, beside those of the search under the schedule.

    OMP_NUM_THREADS=1 python benchmarks/scheduled_policy.py [--policy FILE ...] [--problems 100] [--search 6]
    OMP_NUM_THREADS=1 python benchmarks/scheduled_policy.py --real [--profiles FOLDER] [--search 0.5]

Fresh random problems of 2 to 4 stages (those of policy_quality.py), under a schedule. The policies follow one or
several first cuts and take the plan with the shortest step of these; the search (planners.staged.search, what
`automap-infer --schedule` uses) sets out from the plan of 4 first cuts of each policy. The shortest step known is that
of a search of `--search` seconds and all plans here. The claim: greedily ≤ 1.01 of the best of 60 s. All times are of
processor time, one problem after the other; what the search takes comes on top of its policy's time. `--real` takes
the profiles of `examples/` and of a further folder on A, B and C, with S = nodes and M = 16, not random problems.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from common import add_profiles, fresh_problems, processor_time, profile_files, timed
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.staged.policy import SHIPPED, PolicyConfig, PolicyPlanner
from automap_models.planners.staged.search import anytime_search
from automap_models.resources import zoo_dir
from automap_models.simulate.step import step_cost

FIRST_CUTS = (1, 4, 16)
SETS_OUT_FROM = 4
BUDGETS_S = (0.02, 0.1, 0.3)


def step_s(problem: StagedProblem, plan: StagedPlan | None) -> float:
    """A plan's simulated step; infinite without one that fits."""
    cost = None if plan is None else step_cost(problem, plan)
    return cost.step_s if cost is not None and cost.feasible else float("inf")


def searched(problem: StagedProblem, start: StagedPlan, seconds: float) -> float:
    """The step that the search comes to from a plan."""
    fits = step_s(problem, start) < float("inf")
    result = anytime_search(problem, processor_time(seconds), start=start if fits else None)
    return min(step_s(problem, start), step_s(problem, result.plan))


def measure(
    problem: StagedProblem, policies: dict[str, Path | None], search_s: float
) -> dict[str, tuple[float, float]]:
    """Row → step and seconds; the shortest step known is row ''."""
    rows: dict[str, tuple[float, float]] = {}
    best = float("inf")
    for name, file in policies.items():
        start: tuple[StagedPlan | None, float] = (None, 0.0)
        for cuts in FIRST_CUTS:
            planner = planner_of(file, cuts)
            (plan,), taken = timed(partial(planner.raw_plans, [problem]))
            rows[f"{name}, {cuts} first cut(s)"] = step_s(problem, plan), taken
            start = (plan, taken) if cuts == SETS_OUT_FROM else start
        plan, taken = start
        if plan is None:
            continue
        for budget in (*BUDGETS_S, search_s):
            shortest, more = timed(partial(searched, problem, plan, budget))
            best = min(best, shortest)
            if budget in BUDGETS_S:
                rows[f"{name}, {SETS_OUT_FROM} and a search of {1e3 * budget:g} ms"] = shortest, taken + more
    rows[""] = min(best, *(step for step, _ in rows.values())), 0.0
    return rows


PLANNERS: dict[tuple[Path | None, int], PolicyPlanner] = {}


def planner_of(file: Path | None, beam: int) -> PolicyPlanner:
    """A policy's planner, its file read once."""
    if (file, beam) not in PLANNERS:
        PLANNERS[file, beam] = PolicyPlanner(PolicyConfig(file, beam))
        _ = PLANNERS[file, beam].policy
    return PLANNERS[file, beam]


def report(measured: list[dict[str, tuple[float, float]]]) -> Table:
    """Steps over the shortest known."""
    table = Table("plan", "problems", "mean", "median", "p90", "p99", "max", "do not fit", "ms, mean", "ms, median")
    for name in [name for name in measured[0] if name]:
        ratios: NDArray[np.float64] = np.array([rows[name][0] / rows[""][0] for rows in measured])
        fits, ms = ratios[np.isfinite(ratios)], 1e3 * np.array([rows[name][1] for rows in measured])
        cells = (fits.mean(), np.median(fits), *np.quantile(fits, (0.9, 0.99)), fits.max())
        lost = str(len(ratios) - len(fits))
        times = (f"{ms.mean():.1f}", f"{np.median(ms):.1f}")
        table.add_row(name, str(len(ratios)), *(f"{cell:.4f}" for cell in cells), lost, *times)
    return table


def real_problems(profiles: list[Path]) -> list[StagedProblem]:
    """The profiles on A, B and C with S = nodes and M = 16."""
    clusters = [read_cluster(name) for name in "ABC"]
    return [StagedProblem(read_profile(path), cluster, cluster.nodes, 16) for path in profiles for cluster in clusters]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files beside the shipped ones")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--real", action="store_true", help="real profiles in place of random problems")
    add_profiles(parser)
    parser.add_argument("--search", type=float, default=6.0, help="seconds of the long search")
    arguments = parser.parse_args()
    real = real_problems(profile_files(arguments.profiles)) if arguments.real else None
    problems = real or fresh_problems(arguments.problems, arguments.seed)[0]
    problems = [replace(problem, schedule=arguments.schedule) for problem in problems]
    length = zoo_dir() / SHIPPED
    policies = {"for the length": length, "shipped": None, **{str(file): file for file in arguments.policy}}
    console = Console(stderr=True)
    measured = [measure(p, policies, arguments.search) for p in track(problems, "planning", console=console)]
    Console(width=150).print(report([rows for rows in measured if np.isfinite(rows[""][0])]))


if __name__ == "__main__":
    main()
