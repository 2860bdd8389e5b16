"""What `--stages auto --micro-batches auto` chooses, and whether one portfolio finds what single exact searches find.

For each example profile that fits and each of the clusters A, B and C: the global batch is 16 profiled micro-batches,
and a plan has at most two stages a node. Plans are compared by the length L. `portfolio` is competition.compete on all
combinations at once, proven to the end and not refined; `one by one` searches every combination exactly from nothing;
`default` is the plan without `auto`, at the profiled micro-batch size. Then the combinations a second of a sweep's
quick plans. Processor time, so that other work on the machine counts for little.

    python benchmarks/auto_choice.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from common import EXAMPLES, timed
from rich.console import Console
from rich.table import Table

from automap_models.core.microbatch import required_size
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.competition import Budget, Makers, compete
from automap_models.planners.portfolio.space import PlanningSpace, default_stages
from automap_models.planners.staged.batch import plan_batch
from automap_models.planners.staged.search import exact_search

BUDGET = Budget(prove_s=np.inf, refine_s=0.0)


def one_by_one_s(problems: Sequence[StagedProblem]) -> float:
    """The least length over all problems, each searched alone from nothing."""
    plans = [(problem, exact_search(problem)) for problem in problems]
    return min(plan_cost(problem, plan).length_s for problem, plan in plans if plan)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=["A", "B", "C"], metavar="NAME", help="default: A B C")
    arguments = parser.parse_args()
    makers, console = Makers.with_policy(), Console(width=140)
    table = Table(
        "profile", "cluster", "tried", "S", "M", "samples", "L", "over one by one", "default", "ms", "one by one"
    )
    everything: list[StagedProblem] = []
    for path in sorted(EXAMPLES.glob("*.npz")):
        profile = read_profile(path)
        batch = 16 * required_size(profile)
        for name in arguments.clusters:
            one_stage = StagedProblem(profile, read_cluster(name), stages=1)
            space = PlanningSpace(ProfiledModel(profile), one_stage.cluster, batch)
            stages = tuple(range(1, 2 * one_stage.cluster.nodes + 1))
            problems = space.pipelines(makers.policy.out_of_range, stages).problems
            everything += problems
            choice, taken_s = timed(lambda problems=problems: compete(problems, makers, BUDGET, Deadline()))  # type: ignore[misc]
            if choice.plan is None:
                table.add_row(path.stem, name, str(len(problems)), "fits no memory")
                continue
            best_s, alone_s = timed(lambda problems=problems: one_by_one_s(problems))  # type: ignore[misc]
            several = replace(one_stage, stages=default_stages(profile, one_stage.cluster))
            two = compete([one_stage, several], makers, BUDGET, Deadline())
            default = f"{two.cost.length_s / choice.cost.length_s:.3f}" if two.plan else "does not fit"
            solved = choice.problem
            cells = (
                solved.stages,
                solved.micro_batches,
                batch // solved.micro_batches,
                f"{choice.cost.length_s:.3f} s",
            )
            ratio = f"{choice.cost.length_s / best_s:.9f}"
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
