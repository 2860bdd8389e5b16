"""How long it takes to prove the policy's plan optimal or to correct it, and how often the default budget is enough.

    OMP_NUM_THREADS=1 python benchmarks/certificate.py [--problems 200] [--seed 2026] [--profiles FOLDER] [--large]

Random problems are drawn like the training set (dist=mixed) on the interconnects of A, B and C with a seed of their
own; those on C (4 nodes of 8, 2 to 4 stages) make the claim: policy and proof ≤ 0.3 s in the median, ≥ 95 % proven
within the default budget, ≤ 500 MB. Every search is run to its end once, for its time, and once with the budget, for
the bound that stands when it runs out. Real profiles: S = nodes, M = 16, the default planner without refinement; large
problems (random models of exact_planner.py) are not searched to the end. Milliseconds are of processor time.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import add_profiles, fresh_problems, processor_time, profile_files, random_problem, timed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.competition import Makers, StagedPlanner
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import Certificate, certify
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner

BUDGET_S = AutoConfig().certify_s
LARGE = ((8, 8, 8), (8, 16, 8), (16, 8, 16))
"""Nodes, devices a node, stages."""


def plan_of(planner: StagedPlanner, problem: StagedProblem) -> StagedPlan | None:
    """The planner's plan, or the uniform one where the planner is not at home; None where that does not fit."""
    at_home = planner.out_of_range(problem) is None
    for proposer in (planner, UniformPlanner()) if at_home else (UniformPlanner(),):
        try:
            return proposer.plan(problem)
        except Infeasible:
            continue
    return None


def row(
    table: Table, label: str, problems: Sequence[StagedProblem], planner: StagedPlanner, *, to_the_end: bool = True
) -> None:
    """Plan and prove each; one line of the table."""
    planned_s, proof_s, proven, corrected, above, gaps = [], [], 0, 0, [], []
    for problem in track(problems, label, console=Console(stderr=True)):
        plan, taken_s = timed(lambda problem=problem: plan_of(planner, problem))  # type: ignore[misc]
        if not isinstance(plan, StagedPlan):
            continue
        planned_s.append(taken_s)
        within = certify(problem, plan, processor_time(BUDGET_S))
        proven += within.bound.proof == "exact"
        length_s = plan_cost(problem, within.plan or plan).length_s
        gaps.append(length_s / within.bound.value - 1)
        if to_the_end:
            whole, taken_s = timed(lambda problem=problem, plan=plan: certify(problem, plan, Deadline()))  # type: ignore[misc]
            assert isinstance(whole, Certificate)
            corrected += whole.plan is not None
            proof_s.append(taken_s)
            above.append(plan_cost(problem, plan).length_s / whole.bound.value)
    both = np.add(planned_s, proof_s) if to_the_end else np.zeros(0)
    table.add_row(
        label,
        str(len(planned_s)),
        *(f"{1e3 * np.quantile(both, share):.0f}" if to_the_end else "" for share in (0.5, 0.95, 1.0)),
        f"{100 * proven / len(planned_s):.1f} %",
        str(corrected) if above else "",
        f"{100 * (np.mean(above) - 1):.2f} %" if above else "",
        f"{100 * np.median(gaps):.1f} %",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
    )


def heads(title: str) -> Table:
    """An empty table."""
    proof = ("plan + proof ms", "p95", "worst", f"proven in {1e3 * BUDGET_S:.0f} ms")
    return Table(
        "problems", "count", *proof, "corrected", "policy above L*", "gap left, median", "peak MB", title=title
    )


def random_part(console: Console, arguments: argparse.Namespace) -> None:
    """Problems of the training mix, by cluster."""
    planner = PolicyPlanner(PolicyConfig(arguments.policy))
    table = heads("random problems")
    problems, _, _ = fresh_problems(12 * arguments.problems, arguments.seed)
    planner.solve_batch(problems[:1])  # the file is read only once
    for name, nodes in (("A", 2), ("B", 3), ("C", 4)):
        own = [p for p in problems if (p.cluster.nodes, p.cluster.devices_per_node) == (nodes, 8)]
        row(table, name, own[: arguments.problems], planner)
    console.print(table)


def large_part(console: Console, arguments: argparse.Namespace) -> None:
    """Problems that the budget is too short for: what the bound is worth then."""
    planner = PolicyPlanner(PolicyConfig(arguments.policy))
    table = heads("large problems")
    for nodes, size, stages in LARGE:
        cluster = Cluster(nodes, size, 130e9, 3.125e9, 32e9, f"{nodes} × {size}")
        scales = [tuple(np.random.default_rng(seed).uniform(-3.0, 1.5, 2)) for seed in range(10)]
        problems = [random_problem(cluster, stages, 16, scale, seed) for seed, scale in enumerate(scales)]
        row(table, f"{cluster.name} devices, {stages} stages", problems, planner, to_the_end=False)
    console.print(table)


def real_part(console: Console, arguments: argparse.Namespace, profiles: Sequence[Path]) -> None:
    """The default planner on real profiles."""
    policy = PolicyPlanner(PolicyConfig(arguments.policy))
    planner = AutoPlanner(AutoConfig(refine_s=0.0), Makers(policy))
    policy.solve_batch([StagedProblem(read_profile(profiles[0]), read_cluster("C"), stages=4)])  # read the file

    table = Table("profile", "cluster", "L", "planner", "proof", "gap", "ms")
    for path in profiles:
        profile = read_profile(path)
        for name in "ABC":
            cluster = read_cluster(name)
            problem = StagedProblem(profile, cluster, stages=cluster.nodes)
            result, taken_s = timed(lambda problem=problem: planner.solve(problem, deadline=processor_time()))  # type: ignore[misc]
            if result.plan is None or result.bound is None:
                table.add_row(path.stem, name, "fits no memory", "", "", "", "")
                continue
            length_s, bound = result.cost.length_s, result.bound
            gap = f"{100 * (length_s / bound.value - 1):.2f} %"
            cells = (f"{length_s:.4f} s", result.plan.planner, bound.proof, gap, f"{1e3 * taken_s:.0f}")
            table.add_row(path.stem, name, *cells)
    console.print(table)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200, help="random problems a cluster")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--policy", type=Path, default=None, help="policy file (default: the shipped one)")
    add_profiles(parser)
    parser.add_argument("--large", action="store_true", help="also 64 and 128 devices, 8 and 16 stages")
    arguments = parser.parse_args()
    console, profiles = Console(width=140), profile_files(arguments.profiles)
    random_part(console, arguments)
    if arguments.large:
        large_part(console, arguments)
    real_part(console, arguments, profiles)


if __name__ == "__main__":
    main()
