"""How short the simulated 1F1B steps of plans by tables, moves and networks are, beside those of the search.

    OMP_NUM_THREADS=1 python benchmarks/scheduled_policy.py [--policy FILE ...] [--problems 100] [--search 6]
    OMP_NUM_THREADS=1 python benchmarks/scheduled_policy.py --real [--profiles FOLDER] [--search 6]
    OMP_NUM_THREADS=1 python benchmarks/scheduled_policy.py --large --problems 20 --search 15

Fresh random problems of 2 to 4 stages (those of policy_quality.py), under a schedule. What plans: compiled tables for
the length L, whose plan with the shortest step counts; these with compiled moves (planners.staged.step_plans), as the
search has them; the networks, by one or several first cuts; compiled moves from their plans; and moves from both,
which is shipped where numba is installed. The search (planners.staged.search, what `automap-infer --schedule` uses)
sets out from the plan by tables and moves. The shortest step known is that of a search of `--search` seconds, of
`--long` seconds for the first `--long-problems` ones, and all plans here; on most small problems the search ends
before that, with a proof. The claim: ≤ 1.01 of the best of 60 s. All times are of processor time, one problem after
the other. `--real` takes the profiles of `examples/` and of a further folder on A, B and C, with S = nodes and M = 16,
not random problems; `--large` draws problems of 8 to 16 stages on 64 to 128 devices. A network plans where
it was trained for all of the problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from common import add_profiles, drawn, fresh_problems, processor_time, profile_files, timed
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.staged.policy import SHIPPED, SHIPPED_FOR, PolicyConfig
from automap_models.planners.staged.policy_file import LENGTH, policy_of
from automap_models.planners.staged.policy_plans import shortest_step
from automap_models.planners.staged.search import anytime_search
from automap_models.planners.staged.step_plans import STARTS, moved_plan, step_plan
from automap_models.planners.staged.table_plans import table_plans
from automap_models.resources import zoo_dir
from automap_models.simulate.step import step_cost

LARGE = (
    "sizes=all",
    "problem.stages={values: [8, 10, 12, 16], weights: [1, 1, 1, 1]}",
    "problem.stages_match_nodes=0",
    "problem.cluster.nodes={values: [8, 16], weights: [1, 1]}",
    "problem.cluster.devices_per_node={values: [8], weights: [1]}",
    "problem.instructions=[128, 4096]",
)
FIRST_CUTS = (1, 4, 16)
BEAMS = (1, 4, 8, 16)
BEAM, REACH = PolicyConfig().beam, PolicyConfig().reach
BUDGETS_S = (0.02, 0.1, 0.3)

Plan = Callable[[], StagedPlan]


def step_s(problem: StagedProblem, plan: StagedPlan | None) -> float:
    """A plan's simulated step; infinite without one that fits."""
    cost = None if plan is None else step_cost(problem, plan)
    return cost.step_s if cost is not None and cost.feasible else float("inf")


def searched(problem: StagedProblem, start: StagedPlan, seconds: float) -> tuple[float, bool]:
    """The step that the search comes to from a plan, and whether it ended with a proof."""
    fits = step_s(problem, start) < float("inf")
    result = anytime_search(problem, processor_time(seconds), start=start if fits else None)
    return min(step_s(problem, start), step_s(problem, result.plan)), result.finished


def by_tables(problem: StagedProblem) -> StagedPlan:
    """The plan with the shortest step of those of compiled tables for the length L."""
    return shortest_step(problem, table_plans(problem, BEAM, REACH, "tables"))


def by_network(problem: StagedProblem, file: Path, beam: int) -> StagedPlan:
    """The plan of the shortest step of a policy file's, from as many first cuts."""
    return shortest_step(problem, policy_of(file).best_plans([problem], beam, file.stem)[0])


def moved_from_network(problem: StagedProblem, file: Path, beam: int) -> StagedPlan:
    """Where compiled moves lead from a network's plans."""
    return moved_plan(problem, policy_of(file).best_plans([problem], beam, file.stem)[0])


def by_both(problem: StagedProblem, file: Path, beam: int) -> StagedPlan:
    """Where compiled moves lead from plans of tables and those of a network, by as wide a beam."""
    return step_plan(problem, beam, REACH, "both", policy_of(file).best_plans([problem], beam, "both")[0])


def planners(problem: StagedProblem, files: Sequence[Path]) -> dict[str, Plan]:
    """What plans a problem, by name."""
    rows: dict[str, Plan] = {"compiled tables for L": partial(by_tables, problem)}
    for beam in BEAMS:
        rows[f"tables and moves, from {STARTS * beam} plans"] = partial(step_plan, problem, beam, REACH, "moves")
    for file in files:
        rows |= {f"{file.stem}, {cuts} first cut(s)": partial(by_network, problem, file, cuts) for cuts in FIRST_CUTS}
        if policy_of(file).objective == LENGTH:
            continue
        for cuts in FIRST_CUTS[:2]:
            rows[f"{file.stem}, {cuts} and moves"] = partial(moved_from_network, problem, file, cuts)
            rows[f"{file.stem}, {cuts}, and tables, {STARTS * cuts}, and moves"] = partial(by_both, problem, file, cuts)
    return rows


SEARCHED_ROW = f"tables and moves, from {STARTS * BEAM} plans"


def measure(
    problem: StagedProblem, rows: dict[str, Plan], search_s: float
) -> tuple[dict[str, tuple[float, float]], bool]:
    """Row → step and seconds, the shortest step known being row ''; and whether that is proven."""
    measured: dict[str, tuple[float, float]] = {}
    for name, planned in rows.items():
        plan, taken = timed(planned)
        measured[name] = step_s(problem, plan), taken
        if name == SEARCHED_ROW:
            start, start_taken = plan, taken
    for budget in BUDGETS_S:
        (shortest, _), more = timed(partial(searched, problem, start, budget))
        measured[f"{SEARCHED_ROW}, and a search of {1e3 * budget:g} ms"] = shortest, start_taken + more
    best, proven = searched(problem, start, search_s)
    measured[""] = min(best, *(step for step, _ in measured.values())), 0.0
    return measured, proven


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


def drawn_problems(arguments: argparse.Namespace) -> list[StagedProblem]:
    """The problems asked for, under the schedule."""
    if arguments.real:
        problems = real_problems(profile_files(arguments.profiles))
    elif arguments.large:
        problems = drawn(arguments.problems, arguments.seed, *LARGE)[0]
    else:
        problems = fresh_problems(arguments.problems, arguments.seed)[0]
    return [replace(problem, schedule=arguments.schedule) for problem in problems]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files beside the shipped ones")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--real", action="store_true", help="real profiles in place of random problems")
    parser.add_argument("--large", action="store_true", help="8 to 16 stages on 64 to 128 devices")
    add_profiles(parser)
    parser.add_argument("--search", type=float, default=6.0, help="seconds of the long search")
    parser.add_argument("--long", type=float, default=60.0, help="seconds of the longest searches")
    parser.add_argument("--long-problems", type=int, default=0, help="problems that these are made on")
    arguments = parser.parse_args()
    problems = drawn_problems(arguments)
    files = [zoo_dir() / SHIPPED, *(zoo_dir() / name for name in SHIPPED_FOR.values()), *arguments.policy]
    files = [file for file in files if not any(policy_of(file).out_of_range(problem) for problem in problems)]
    measured, proofs = [], 0
    for n, problem in enumerate(track(problems, "planning", console=Console(stderr=True))):
        rows = planners(problem, files)
        if n == 0:
            measure(problem, rows, 0.01)  # files are read and loops compiled
        of_problem, proven = measure(problem, rows, arguments.long if n < arguments.long_problems else arguments.search)
        if np.isfinite(of_problem[""][0]):
            measured.append(of_problem)
            proofs += proven
    Console(width=150).print(report(measured))
    print(f"proven to be the shortest on the grid: {proofs} of {len(measured)}")


if __name__ == "__main__":
    main()
