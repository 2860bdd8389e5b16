"""How long the exact planner takes from nothing, how much memory it needs, and how fast it proves a known plan optimal.

    OMP_NUM_THREADS=1 python benchmarks/exact_planner.py [--sweep 30] [--large]

Random models of 3,000 instructions at granularity 128, S = N stages. Time per instruction is uniform; activations and
parameters are uniform, scaled so that transfers and all-reduces are negligible, or as long as computation, or longer.
The claims, for cluster C on one core: ≤ 3 s and ≤ 500 MB. Each row runs in a process of its own: its peak memory
is that of a fresh interpreter and this one row. Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from dataclasses import dataclass
from statistics import median

import numpy as np
from common import random_problem, timed
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.relaxation import lower_bound_s
from automap_models.planners.staged.search import exact_search

KINDS = {"computation": (-3.0, -3.0), "transfers": (0.5, -3.0), "all-reduce": (-3.0, 1.0), "everything": (0.0, 0.0)}
"""What decides → log10 of transfer and all-reduce time over computation time."""


@dataclass(frozen=True)
class Row:
    """One line of the table: some problems of one kind; seconds of processor time, worst and median."""

    median_s: float
    worst_s: float
    proof_s: float
    bound_s: float
    gap: float
    length_s: float
    peak_mb: float


def measure(cluster: Cluster, stages: int, kind: str, count: int) -> Row:
    """Plan `count` problems of a kind, or of random kinds and 1 … 64 micro-batches."""
    taken, proofs, bounds, gaps, length = [], [], [], [], 0.0
    for seed in range(count):
        rng = np.random.default_rng(10_000 + seed)
        scales, micro_batches = (tuple(rng.uniform(-3.0, 1.5, 2)), int(2 ** rng.uniform(0, 6)))
        if kind in KINDS:
            scales, micro_batches = KINDS[kind], 16
        problem = random_problem(cluster, stages, micro_batches, scales, seed)
        plan, taken_s = timed(lambda problem=problem: exact_search(problem))  # type: ignore[misc]
        taken.append(taken_s)
        if plan is None:
            raise RuntimeError("a problem of the benchmark does not fit its cluster")
        length = plan_cost(problem, plan).length_s
        shorter, taken_s = timed(lambda problem=problem, length=length: exact_search(problem, length))  # type: ignore[misc]
        if shorter is not None:
            raise RuntimeError("the optimum was not proven")
        proofs.append(taken_s)
        bound_s, taken_s = timed(lambda problem=problem: lower_bound_s(problem))  # type: ignore[misc]
        gaps.append(length / bound_s - 1.0)
        bounds.append(taken_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Row(median(taken), max(taken), median(proofs), median(bounds), median(gaps), length, peak_mb)


def in_its_own_process(cluster: Cluster, stages: int, kind: str, count: int) -> Row:
    """The same in a fresh interpreter."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (cluster, stages, kind, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=int, default=30, help="random problems in each cluster's last row")
    parser.add_argument("--large", action="store_true", help="also S = 5, 6 on cluster C and S = 8 on 64 devices")
    args = parser.parse_args()
    clusters = [(Cluster(n, 8, 130e9, 3.125e9, 32e9, name), n) for n, name in ((2, "A"), (3, "B"), (4, "C"))]
    if args.large:
        clusters += [(clusters[-1][0], 5), (clusters[-1][0], 6), (Cluster(8, 8, 130e9, 3.125e9, 32e9, "8 × 8"), 8)]
    table = Table(
        "cluster", "S", "what decides", "median s", "worst s", "proof s", "bound ms", "gap %", "L s", "peak MB"
    )
    for cluster, stages in clusters:
        for kind, count in [*((kind, 1) for kind in KINDS), (f"{args.sweep} random mixtures", args.sweep)]:
            row = in_its_own_process(cluster, stages, kind, count)
            table.add_row(
                cluster.name,
                str(stages),
                kind,
                *(f"{value:.3f}" for value in (row.median_s, row.worst_s, row.proof_s)),
                f"{1e3 * row.bound_s:.1f}",
                f"{100 * row.gap:.1f}",
                f"{row.length_s:.6f}" if count == 1 else "",
                f"{row.peak_mb:.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
