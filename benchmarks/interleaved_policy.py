"""How short the simulated steps of plans are that run interleaved, two virtual stages a rank, by who planned.

    OMP_NUM_THREADS=1 python benchmarks/interleaved_policy.py [--policy FILE ...] [--problems 60] [--judged 200000]

Fresh random problems of 2 to 4 stages (those of policy_quality.py) whose micro-batches make equal rounds. No exact
search knows this step: what plans are held against is the shortest of all plans here and of descents
(envs.pipeline.descent) over `--judged` plans. Plans that are short otherwise, by the length L and by the step under
1F1B, are laid out in two pieces a rank, too. The last column says what interleaving brings: the shortest 1F1B step
over the shortest interleaved one. All times are of processor time, one problem after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import fresh_problems, processor_time, timed
from rich.console import Console
from rich.progress import track
from scheduled_policy import report

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.pipeline.descent import Descent
from automap_models.envs.pipeline.encoding import EncodedProblems, decode, encode
from automap_models.envs.pipeline.env import Problems
from automap_models.envs.pipeline.interleaving import INTERLEAVED, runs
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.policy_file import policy_of
from automap_models.planners.staged.search import anytime_search

FIRST_CUTS = (1, 4, 16)
SHORT = (1_000, 5_000)
SEARCH_S = 2.0
EVEN, LENGTH, ONE_F_ONE_B = "even stages", "the shortest L, proven", f"the shortest 1F1B step that {SEARCH_S:g} s find"

Start = tuple[Sequence[int], Sequence[int]]


@dataclass
class Measured:
    """Of a problem: step and seconds of plans by who planned, of '' the shortest known; what 1F1B takes over that."""

    rows: dict[str, tuple[float, float]]
    over_1f1b: float


def judged(encoded: EncodedProblems, starts: Sequence[Start], plans: int, seed: int) -> float:
    """The shortest step that descents from some plans come to; of these alone where no more may be judged."""
    descent = Descent(Problems.from_encoded(encoded), INTERLEAVED)
    if not plans:
        at = [np.array([np.searchsorted(descent.places, cuts), firsts]) for cuts, firsts in starts]
        return float(descent.times(np.array(at)).min()) if at else float("inf")
    descent.search(starts, plans, np.random.default_rng(seed))
    return descent.best_time


def start_of(plan: StagedPlan | None) -> list[Start]:
    """Its cuts as points, and first devices."""
    return [] if plan is None or plan.coarse_cuts is None else [(plan.coarse_cuts, plan.device_cuts)]


def by_policy(encoded: EncodedProblems, file: Path, beam: int) -> list[Start]:
    """The plans of a policy file, from as many first cuts."""
    boundaries = int(encoded.stages[0]) - 1
    cuts, firsts, _ = policy_of(file).plans(encoded, beam)
    rows = [(c[:boundaries].tolist(), d[:boundaries].tolist()) for c, d in zip(cuts[0], firsts[0], strict=True)]
    return [row for row in rows if min(*row[0], *row[1]) >= 0]


def measure(problem: StagedProblem, files: Sequence[Path], plans: int) -> Measured:
    """All rows of a problem."""
    encoded = encode([problem])
    own = replace(decode(encoded, 0), schedule=None)
    scheduled = replace(own, schedule="1f1b")
    even = Descent(Problems.from_encoded(encoded), INTERLEAVED).even()
    rows: dict[str, tuple[float, float]] = {}

    def add(name: str, starts: list[Start], seconds: float, more: int = 0) -> None:
        step, taken = timed(lambda: judged(encoded, starts, more, 0))
        rows[name] = step, seconds + taken

    by_length, length_taken = timed(lambda: start_of(ExactPlanner().solve(own).plan))
    search, searched = timed(lambda: anytime_search(scheduled, processor_time(SEARCH_S), far=True))
    by_step = start_of(search.plan)
    add(EVEN, [even], 0.0)
    add(LENGTH, by_length, length_taken)
    add(ONE_F_ONE_B, by_step, searched)
    every = [even, *by_length, *by_step]
    for more in SHORT:
        add(f"descents over {more:,} plans from even stages", [even], 0.0, more)
    for file in files:
        for beam in FIRST_CUTS:
            starts, taken = timed(lambda file=file, beam=beam: by_policy(encoded, file, beam))  # type: ignore[misc]
            add(f"{file.parent.name}, {beam} first cut(s)", starts, taken)
        every += starts
        for more in SHORT:
            add(f"descents over {more:,} plans from {file.parent.name}, {beam} first cuts", starts, taken, more)
    best = min(judged(encoded, every, plans, 1), *(step for step, _ in rows.values()))
    return Measured(rows | {"": (best, 0.0)}, (search.cost.step_s if search.cost else float("inf")) / best)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files, named by their folders")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--judged", type=int, default=200_000, help="plans that the longest descents judge")
    arguments = parser.parse_args()
    problems = [
        problem
        for problem in fresh_problems(arguments.problems, arguments.seed)[0]
        if runs(INTERLEAVED, problem.stages, problem.micro_batches)
    ]
    measure(problems[0], arguments.policy, 100)  # files are read and loops compiled
    measured = [
        measure(problem, arguments.policy, arguments.judged)
        for problem in track(problems, "planning", console=Console(stderr=True))
    ]
    measured = [of for of in measured if np.isfinite(of.rows[""][0])]
    Console(width=150).print(report([of.rows for of in measured]))
    over = np.array([of.over_1f1b for of in measured])
    shorter, fits = float((over > 1).mean()), over[np.isfinite(over)]
    print(f"shortest 1F1B step over the shortest interleaved one: median {np.median(fits):.3f}, p10 ", end="")
    print(f"{np.quantile(fits, 0.1):.3f}, p90 {np.quantile(fits, 0.9):.3f}; interleaving is shorter on {shorter:.0%}")


if __name__ == "__main__":
    main()
