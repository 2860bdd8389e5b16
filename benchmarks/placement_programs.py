"""Integer programs for placements: value, bound and seconds of each solver alone, and of the planners' turns.

    python benchmarks/placement_programs.py FOLDER [--time-limit S] [--turns-only] [--only TEXT]

FOLDER holds device-placement JSON files `{throughput,latency}-inputs_*.json` of dnn-partitioning. A solver alone gets
the same start as the planner; its seconds are those of the solver.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from common import PLACEMENT_GRAPHS, files_of

from automap_models.core.placement import PlacementProblem
from automap_models.formats.placement_json import read_placement
from automap_models.planners.base import SILENT, Deadline
from automap_models.planners.placement.milp import (
    OPTIMAL_GAP,
    MilpContiguousPlanner,
    MilpOrderedPlanner,
    MilpPlanner,
    ProgramPlanner,
    Turn,
    solve_in_turns,
)
from automap_models.planners.placement.program import Solver

PLANNERS: dict[str, type[ProgramPlanner]] = {
    planner.name: planner for planner in (MilpPlanner, MilpContiguousPlanner, MilpOrderedPlanner)
}
SOLVERS: tuple[Solver, ...] = ("cp-sat", "scip")


def main() -> None:
    """Print a row for each graph, program and solver."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--turns-only", action="store_true", help="leave out the solvers alone")
    parser.add_argument("--only", default="", help="part of the file names to take")
    arguments = parser.parse_args()
    paths = files_of(arguments.folder, "FOLDER", PLACEMENT_GRAPHS, ("*-inputs_*.json",))
    print("| graph | program | solver | value ms | bound ms | gap | s |\n|---|---|---|---|---|---|---|")
    for path in (path for path in paths if arguments.only in path.name):
        problem = _problem(path)
        for kind in PLANNERS if problem.objective == "throughput" else [MilpPlanner.name]:
            for solver, value_s, bound_s, taken_s in _answers(
                problem, kind, arguments.time_limit, turns_only=arguments.turns_only
            ):
                gap = 1 - bound_s / value_s
                shown = "proven" if gap <= OPTIMAL_GAP else f"{100 * gap:.2f} %"
                numbers = f"{1e3 * value_s:.3f} | {1e3 * bound_s:.3f} | {shown} | {taken_s:.1f}"
                print(f"| {path.stem} | {kind} | {solver} | {numbers} |", flush=True)


def _problem(path: Path) -> PlacementProblem:
    objective = "latency" if path.stem.startswith("latency") else "throughput"
    return PlacementProblem.of(read_placement(path), objective=objective)


def _answers(
    problem: PlacementProblem, kind: str, limit_s: float, *, turns_only: bool
) -> Iterator[tuple[str, float, float, float]]:
    """Solver, value, bound and seconds; the planner's seconds include those of the start."""
    planner = PLANNERS[kind]()
    for solver in () if turns_only else SOLVERS:
        starts, state = planner.starting_plans(problem, Deadline(limit_s), SILENT), planner.state(problem)
        begin_s = time.perf_counter()
        known = solve_in_turns(
            problem, state, starts, [Turn(solver, 1.0)], deadline=Deadline(limit_s), watch=SILENT, seed=0
        )
        yield f"{solver} alone", known.value_s, known.bound_s, time.perf_counter() - begin_s
    result = planner.solve(problem, deadline=Deadline(limit_s))
    bound_s = 0.0 if result.bound is None else result.bound.value
    yield "in turns", result.cost.value_s, bound_s, result.taken_s


if __name__ == "__main__":
    main()
