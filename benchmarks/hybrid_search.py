"""How long the search for the best hybrid plan takes, beside that for the best pipeline, and how much is to be gained.

    OMP_NUM_THREADS=1 python benchmarks/hybrid_search.py [--problems 20]

Random models of 3,000 instructions (exact_planner.py) on cluster C at granularity 128, with shardings over
2, 4 and 8 devices: 99 % of the instructions are divided, at 0.9 to 1.1 times the time that so many replicas take; one
in a hundred is followed by an all-reduce. The claim: 4 stages that choose among 1 + 6 shardings are planned in a
second, and proven with the best length known in half of that. Milliseconds are of processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from common import random_problem, timed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline
from automap_models.planners.staged.search import anytime_search, exact_search

LAUNCH_S = 1e-5
DEGREES = (2, 4, 8)


def random_sharding(rng: np.random.Generator, profile: Profile, degree: int, name: str) -> ShardedProfile:
    """A random way to share a profile's instructions."""
    n = len(profile)
    divided, reduced = rng.uniform(size=n) < 0.99, rng.uniform(size=n) < 0.01
    share = np.where(divided, 1.0 / degree, 1.0)
    slower = rng.uniform(0.9, 1.1)
    nbytes = 0.05 * profile.A * reduced
    return ShardedProfile(
        name=name,
        degree=degree,
        C=slower * share * profile.C,
        C_fwd=slower * share * profile.C_fwd,
        A=profile.A,
        held=np.where(rng.uniform(size=n) < 0.5, profile.A, profile.A / degree),
        W=share * profile.W,
        stash=share * profile.stash,
        reduced_fwd=nbytes,
        reduced_bwd=nbytes,
        starts_fwd=reduced.astype(np.float64),
        starts_bwd=reduced.astype(np.float64),
        gradients=profile.W * ~divided,
        frozen=share * profile.frozen,
    )


def hybrid_problem(seed: int, stages: int, shardings_a_degree: int) -> StagedProblem:
    """A model in which anything may decide, with so many shardings for each degree."""
    rng = np.random.default_rng(10_000 + seed)
    kind, micro_batches = tuple(rng.uniform(-3.0, 1.5, 2)), int(2 ** rng.uniform(0, 6))
    pipeline = random_problem(read_cluster("C"), stages, micro_batches, kind, seed)
    shardings = (
        random_sharding(rng, pipeline.profile, t, f"{t}-way {j}") for t in DEGREES for j in range(shardings_a_degree)
    )
    return replace(pipeline, shardings=tuple(shardings), launch_s=LAUNCH_S)


def measure(problem: StagedProblem) -> tuple[float, float, float, float]:
    """Milliseconds for the best pipeline, the best hybrid plan and the proof of it; how much longer the pipeline is."""
    pipeline, pipeline_s = timed(lambda: exact_search(replace(problem, shardings=())))
    hybrid, hybrid_s = timed(lambda: anytime_search(problem, Deadline()))
    proof, proof_s = timed(lambda: anytime_search(problem, Deadline(), hybrid.bound_s))
    if pipeline is None or proof.plan is not None:
        raise RuntimeError("a problem of the benchmark does not fit its cluster, or an optimum was not proven")
    longer = plan_cost(problem, pipeline).length_s / hybrid.bound_s - 1.0
    return 1e3 * pipeline_s, 1e3 * hybrid_s, 1e3 * proof_s, longer


def cells(values: Sequence[float]) -> str:
    """Median and worst."""
    return f"{np.median(values):.0f} / {np.max(values):.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20)
    arguments = parser.parse_args()
    heads = ("stages", "shardings", "pipeline ms", "hybrid ms", "proof ms", "pipeline longer by")
    table = Table(*heads, title="cluster C, median / worst")
    console = Console(stderr=True)
    measure(hybrid_problem(0, 2, 1))  # imports and caches
    for stages, shardings_a_degree in ((2, 2), (4, 0), (4, 1), (4, 2), (4, 4), (8, 2)):
        label = f"{stages} stages, {shardings_a_degree} sharding(s) a degree"
        rows = [
            measure(hybrid_problem(seed, stages, shardings_a_degree))
            for seed in track(range(arguments.problems), label, console=console)
        ]
        *times, gains = zip(*rows, strict=True)
        gain = f"{100 * np.mean(gains):.1f} %, at most {100 * np.max(gains):.1f} %"
        table.add_row(str(stages), f"1 + {len(DEGREES) * shardings_a_degree}", *map(cells, times), gain)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
