"""How close the policy's plans are to the optimum: L / L* on fresh random problems and on real profiles.

    python benchmarks/policy_quality.py [--problems 2000] [--seed 2026] [--policy FILE] [--profiles FOLDER]

Random problems are drawn like the training set (dist=mixed), on the bandwidths of clusters A, B and C only, with a
seed of their own. L* is the exact planner's on the grid, which refinement by single instructions may fall below. The
claims, for L / L*: greedy mean ≤ 1.005 and p99 ≤ 1.05, as shipped without proof (beam and refinement) mean ≤ 1.001 and
max ≤ 1.02 on the random problems; on each real profile with S = nodes and M = 16 greedy ≤ 1.02. Budgets are of
processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import add_profiles, fresh_problems, optimum_s, processor_time, profile_files
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.portfolio.auto import AutoConfig
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import ExactPlanner, certify
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.refine import refine

SHIPPED_BEAM = PolicyConfig().beam


def fitting(problem: StagedProblem, plan: StagedPlan | None) -> StagedPlan | None:
    """The plan if there is one and it fits the memory."""
    return plan if plan is not None and plan_cost(problem, plan).feasible else None


def ratio(problem: StagedProblem, plan: StagedPlan | None, optimum_s: float) -> float:
    """L / L*; infinite without a plan that fits."""
    plan = fitting(problem, plan)
    return plan_cost(problem, plan).length_s / optimum_s if plan else float("inf")


def summary(table: Table, label: str, ratios: NDArray[np.float64]) -> None:
    """One row: count, mean, median, p99, maximum, plans that do not fit."""
    fits = ratios[np.isfinite(ratios)]
    values = (fits.mean(), np.median(fits), np.quantile(fits, 0.99), fits.max()) if fits.size else ()
    cells = [f"{value:.4f}" for value in values] or ["–"] * 4
    table.add_row(label, str(len(ratios)), *cells, str(len(ratios) - len(fits)))


def random_part(console: Console, arguments: argparse.Namespace) -> None:
    """L / L* on random problems, in all, by stages and by distribution."""
    problems, distribution, names = fresh_problems(arguments.problems, arguments.seed)
    optima = np.array([optimum_s(p) for p in track(problems, "exact optima", console=Console(stderr=True))])
    solvable = np.flatnonzero(np.isfinite(optima))
    problems, optima, distribution = [problems[i] for i in solvable], optima[solvable], distribution[solvable]
    stages = np.array([p.stages for p in problems])
    greedy, beam = (PolicyPlanner(PolicyConfig(arguments.policy, b)) for b in (1, SHIPPED_BEAM))
    plans = {"greedy": greedy.raw_plans(problems), f"beam {SHIPPED_BEAM}": beam.raw_plans(problems)}
    refined = track(
        list(zip(problems, plans[f"beam {SHIPPED_BEAM}"], strict=True)), "refining", console=Console(stderr=True)
    )
    plans[f"beam {SHIPPED_BEAM}, refined"] = [
        plan and refine(problem, plan, processor_time(AutoConfig().refine_s))
        for problem, plan in ((problem, fitting(problem, plan)) for problem, plan in refined)
    ]
    budget_s = AutoConfig().certify_s
    proven = track(
        list(zip(problems, plans[f"beam {SHIPPED_BEAM}"], strict=True)), "proving", console=Console(stderr=True)
    )
    plans["as shipped: proven or corrected, refined"] = [
        as_shipped(problem, plan, budget_s) for problem, plan in proven
    ]
    for name, own in plans.items():
        ratios = np.array([ratio(*case) for case in zip(problems, own, optima, strict=True)])
        table = Table("problems", "count", "mean", "median", "p99", "max", "do not fit", title=f"L / L*, {name}")
        summary(table, "all", ratios)
        for s in np.unique(stages):
            summary(table, f"{s} stages", ratios[stages == s])
        for i, kind in enumerate(names):
            summary(table, kind, ratios[distribution == i])
        console.print(table)


def as_shipped(problem: StagedProblem, plan: StagedPlan | None, budget_s: float) -> StagedPlan | None:
    """What the default planner makes of the policy's plan, if the number of stages is given."""
    plan = fitting(problem, plan)
    if plan is None:
        return None
    certificate = certify(problem, plan, processor_time(budget_s))
    proven = certificate.bound.proof == "exact"
    return refine(problem, certificate.plan or plan, processor_time(AutoConfig().refine_s), proven=proven)


def real_part(console: Console, arguments: argparse.Namespace, profiles: Sequence[Path]) -> None:
    """L / L* on real profiles on A, B and C with S = nodes and M = 16."""
    table = Table("profile", "cluster", "L*", "greedy", f"beam {SHIPPED_BEAM}", "uniform", "device cuts of L*")
    greedy, beam = (PolicyPlanner(PolicyConfig(arguments.policy, b)) for b in (1, SHIPPED_BEAM))
    for path in profiles:
        profile = read_profile(path)
        for name in "ABC":
            cluster = read_cluster(name)
            # T5 is trained with Adafactor, which keeps one number a parameter where Adam keeps two.
            state = 2.0 if path.stem.startswith("t5") else 4.0
            problem = StagedProblem(profile, cluster, stages=cluster.nodes, state_factor=state)
            try:
                best = ExactPlanner().plan(problem)
            except Infeasible:
                table.add_row(path.stem, name, "nothing fits", "", "", "", "")
                continue
            length = plan_cost(problem, best).length_s
            plans = [planner.raw_plans([problem])[0] for planner in (greedy, beam)] + [UniformPlanner().plan(problem)]
            cells = [f"{ratio(problem, plan, length):.4f}" for plan in plans]
            table.add_row(path.stem, name, f"{length:.4f} s", *cells, str(best.device_cuts))
    console.print(table)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--policy", type=Path, default=None, help="policy file (default: the shipped one)")
    add_profiles(parser)
    arguments = parser.parse_args()
    console = Console()
    real_part(console, arguments, profile_files(arguments.profiles))
    random_part(console, arguments)


if __name__ == "__main__":
    main()
