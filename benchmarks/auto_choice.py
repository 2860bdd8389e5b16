"""What `--stages auto --micro-batches auto` chooses, and whether one contest finds what single exact searches find.

For each example profile that fits and each of the clusters A, B and C: the global batch is 16 profiled micro-batches.
`contest` is portfolio.auto.choose on all combinations at once, proven to the end and not refined; `one by one` searches
every combination exactly from nothing; `default` is the plan without `auto`, at the profiled micro-batch size. Then the
combinations a second of a sweep's quick plans. Processor time, so that other work on the machine counts for little.

    python benchmarks/auto_choice.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from automap_models.core.microbatch import required_size
from automap_models.core.staged import StagedProblem
from automap_models.errors import Infeasible
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.files import read_profile
from automap_models.planners.base import PlannerOptions
from automap_models.planners.portfolio.auto import choose, default_stages, remembering
from automap_models.planners.portfolio.candidates import candidates, stage_numbers
from automap_models.planners.staged.batch import plan_batch
from automap_models.planners.staged.exact import exact_search

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OPTIONS = PlannerOptions(certify_s=np.inf, refine_s=0.0)


def one_by_one_s(problems: Sequence[StagedProblem]) -> float:
    """The least length over all problems, each searched alone from nothing."""
    plans = [exact_search(problem) for problem in problems]
    return min(plan.optimality.value for plan in plans if plan and plan.optimality)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=["A", "B", "C"], metavar="NAME", help="default: A B C")
    arguments = parser.parse_args()
    make, console = remembering(), Console(width=140)
    out_of_range = make("policy", OPTIONS).out_of_range
    table = Table(
        "profile", "cluster", "tried", "S", "M", "samples", "L", "over one by one", "default", "ms", "one by one"
    )
    everything: list[StagedProblem] = []
    for path in sorted(EXAMPLES.glob("*.npz")):
        profile = read_profile(path)
        batch = 16 * required_size(profile)
        for name in arguments.clusters:
            one_stage = StagedProblem(profile, read_cluster(name), stages=1)
            problems = candidates(one_stage, stage_numbers(one_stage), batch, out_of_range).problems
            everything += problems
            start = time.process_time()
            try:
                choice = choose(problems, OPTIONS, make=make)
            except Infeasible:
                table.add_row(path.stem, name, str(len(problems)), "fits no memory")
                continue
            taken_s, start = time.process_time() - start, time.process_time()
            best_s = one_by_one_s(problems)
            alone_s = time.process_time() - start
            several = replace(one_stage, stages=default_stages(profile, one_stage.cluster))
            try:
                default = f"{choose([one_stage, several], OPTIONS, make=make).length_s / choice.length_s:.3f}"
            except Infeasible:
                default = "does not fit"
            solved = choice.problem
            cells = (solved.stages, solved.micro_batches, batch // solved.micro_batches, f"{choice.length_s:.3f} s")
            ratio = f"{choice.length_s / best_s:.9f}"
            times = (f"{1e3 * taken_s:.0f}", f"{1e3 * alone_s:.0f}")
            table.add_row(path.stem, name, str(len(problems)), *map(str, cells), ratio, default, *times)
    console.print(table)
    many = (everything * (1 + 2000 // len(everything)))[:2000]
    start, wall = time.process_time(), time.perf_counter()
    plan_batch(many)
    cpu_s, wall_s = time.process_time() - start, time.perf_counter() - wall
    console.print(
        f"plan_batch: {len(many)} combinations, {len(many) / cpu_s:.0f}/s of processor time, {len(many) / wall_s:.0f}/s"
    )


if __name__ == "__main__":
    main()
