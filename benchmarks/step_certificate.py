"""What the exact search proves about the step under 1F1B, and how soon.

    OMP_NUM_THREADS=1 python benchmarks/step_certificate.py [--profiles FOLDER] [--seconds 10] [--large]

Real profiles with M = 16 and S = nodes on A, B and C. The search begins from nothing. A row says how much shorter than
its plan any plan on the grid may be when it is stopped after 0.3 s, and after how long nothing is left to prove.
With --large the rows are those of 8 stages on 64 devices, stopped after 1 s. The claims: at most 2 % after 0.3 s, at
most 5 % after 1 s. Seconds are of processor time; the tables of a cluster are made and loops are compiled beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import add_profiles, processor_time, profile_files, timed
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.staged.costs import SearchResult
from automap_models.planners.staged.device_tables import device_tables
from automap_models.planners.staged.search import anytime_search

LARGE_STAGES = 8
BUDGET_S, LARGE_BUDGET_S = 0.3, 1.0


def large_clusters() -> list[Cluster]:
    """64 devices with the links and the memory of C."""
    c = read_cluster("C")
    return [Cluster(n, 64 // n, c.intra, c.inter, c.memory, f"{n} × {64 // n}") for n in (8, 16)]


def gap(result: SearchResult) -> str:
    """How much longer the best plan may be than the shortest one."""
    if result.finished:
        return "proven" if result.cost is not None else "nothing fits"
    if result.cost is None or not result.bound_s:
        return "no plan yet"
    return f"{100 * (result.cost.step_s / result.bound_s - 1):.1f} %"


def row(problem: StagedProblem, budget_s: float, most_s: float) -> tuple[str, str, str]:
    """The gap when the budget is spent; the step then known and, with more time, seconds until it is proven."""
    result = anytime_search(problem, processor_time(budget_s))
    whole, taken_s = timed(lambda: anytime_search(problem, processor_time(most_s)))
    step = f"{whole.cost.step_s:.5f} s" if whole.cost else ""
    return gap(result), step, f"{taken_s:.2f} s" if whole.finished else f"{gap(whole)} after {most_s:g} s"


def table(
    paths: Sequence[Path], clusters: Sequence[Cluster], stages: int | None, budget_s: float, most_s: float
) -> Table:
    """One row a profile and cluster."""
    heads = Table("profile", "cluster", "S", f"gap after {budget_s:g} s", "best step", "proven after")
    for path in paths:
        profile = read_profile(path)
        for cluster in clusters:
            device_tables(cluster)
            try:
                problem = StagedProblem(profile, cluster, stages=stages or cluster.nodes, schedule="1f1b")
            except BadInput:  # fewer places to cut than stages
                continue
            heads.add_row(path.stem, cluster.name, str(problem.stages), *row(problem, budget_s, most_s))
    return heads


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profiles(parser)
    parser.add_argument("--seconds", type=float, default=10.0, help="when to give up a proof")
    parser.add_argument("--large", action="store_true", help="8 stages on 64 devices instead")
    arguments = parser.parse_args()
    paths = profile_files(arguments.profiles)
    if arguments.large:
        rows = table(paths, large_clusters(), LARGE_STAGES, LARGE_BUDGET_S, arguments.seconds)
    else:
        rows = table(paths, [read_cluster(name) for name in "ABC"], None, BUDGET_S, arguments.seconds)
    Console(width=120).print(rows)


if __name__ == "__main__":
    main()
