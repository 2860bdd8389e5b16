"""What the fineness of the compiled tables buys: L over the best known, and processor time, of several sets of tables.

    OMP_NUM_THREADS=1 python benchmarks/table_plans.py [--problems 300] [--seed 7] [--large] [--search 10]

Random problems as in policy_quality.py, whose optimum the exact search knows, or with --large those of
large_problems.py, whose best known plan comes from local searches of `--search` seconds of processor time each. A look
is one set of tables: its points × its units, and the guess of what comes before (planners.staged.table_plans). The sets
that are shipped for these sizes come first; all rows follow the best four first stages, and join their plans but where
it is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from common import drawn, fresh_problems, optimum_s, processor_time, timed
from large_problems import LARGE, length_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedProblem
from automap_models.planners.staged import table_plans
from automap_models.planners.staged.local_search import even_route, local_search
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.planners.staged.table_plans import Look

BEAM, REACH = 4, 8
SMALL_LOOKS: tuple[tuple[Look, ...], ...] = (
    table_plans.LOOKS[0][1],
    (Look(48, 32),),
    (Look(48, 32), Look(48, 32, 0.0)),
    (Look(48, 32), Look(24, 32, 0.0)),
    (Look(48, 32), Look(32, 32, 0.0), Look(32, 32, 3.0)),
    (Look(48, 32), Look(48, 32, 0.3), Look(48, 32, 3.0)),
    (Look(64, 32),),
)
LARGE_LOOKS: tuple[tuple[Look, ...], ...] = (
    table_plans.LOOKS[1][1],
    (),
    (Look(32, 32),),
    (Look(32, 32), Look(48, 64)),
    (Look(32, 32), Look(48, 128)),
    (Look(32, 32), Look(64, 64)),
    (Look(32, 32), Look(72, 64)),
    (Look(56, 64),),
)


def best_known_s(problem: StagedProblem, seconds: float) -> float:
    """L of the best plan of local searches from even stages and from the best so far in turns."""
    tables, deadline, seed = stage_tables(problem), processor_time(seconds), 1
    best = even = even_route(tables)
    while not deadline.passed:
        route = local_search(tables, problem.cluster, best if seed % 2 else even, deadline, seed)
        best, seed = min(best, route, key=lambda r: r.length_s), seed + 1
    return best.length_s


def label(looks: Sequence[Look]) -> str:
    """Such as 32 × 32, 48 × 128."""
    if not looks:
        return "none"
    return ", ".join(
        f"{look.points} × {look.units}" + (f" at {look.guess:g}" if look.guess != 1 else "") for look in looks
    )


def row(problems: Sequence[StagedProblem], best_s: Sequence[float], beam: int, reach: int) -> list[str]:
    """Cells of one set of tables."""
    ratios, times = [], []
    table_plans.table_plans(problems[0], beam, reach, "compile")
    for problem, least_s in zip(problems, best_s, strict=True):
        plans, taken_s = timed(lambda problem=problem: table_plans.table_plans(problem, beam, reach, "t"))  # type: ignore[misc]
        ratios.append(length_of(problem, plans[0]) / least_s)
        times.append(1e3 * taken_s)
    all_ratios = np.array(ratios)
    fits = all_ratios[np.isfinite(all_ratios)]
    cells = [f"{value:.4f}" for value in (fits.mean(), np.median(fits), np.quantile(fits, 0.99), fits.max())]
    return [*cells, str(all_ratios.size - fits.size), f"{np.median(times):.2f}", f"{np.mean(times):.2f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--large", action="store_true", help="8 to 16 stages on 64 to 128 devices")
    parser.add_argument("--search", type=float, default=10.0, help="seconds of the search for the best known plan")
    arguments = parser.parse_args()
    progress = Console(stderr=True)
    if arguments.large:
        drawn_problems = drawn(arguments.problems, arguments.seed, *LARGE)[0]
        best_s = [best_known_s(p, arguments.search) for p in track(drawn_problems, "searching", console=progress)]
    else:
        drawn_problems = fresh_problems(arguments.problems, arguments.seed)[0]
        best_s = [optimum_s(p) for p in track(drawn_problems, "exact optima", console=progress)]
    solved = [i for i, length_s in enumerate(best_s) if np.isfinite(length_s)]
    problems, best_s = [drawn_problems[i] for i in solved], [best_s[i] for i in solved]
    choices = LARGE_LOOKS if arguments.large else SMALL_LOOKS
    table = Table("points × units at guess", "mean", "median", "p99", "max", "do not fit", "ms, median", "ms, mean")
    table.title = f"L over the best known of {len(problems)} problems; processor time"
    shipped = table_plans.LOOKS
    for i, looks in enumerate(track(choices, "planning", console=progress)):
        table_plans.LOOKS = ((np.inf, looks),)
        if i == 0:
            table.add_row(f"as shipped: {label(looks)}", *row(problems, best_s, BEAM, REACH))
            table.add_row("the same, one first stage, not joined", *row(problems, best_s, 1, 0))
        else:
            table.add_row(label(looks), *row(problems, best_s, BEAM, REACH))
    table_plans.LOOKS = shipped
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
