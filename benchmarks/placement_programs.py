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

from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.cost.placement import placement_cost
from automap_models.formats.placement_json import read_placement
from automap_models.planners.base import PlannerOptions
from automap_models.planners.placement.milp import (
    DEFAULT_TIME_LIMIT_S,
    MilpContiguousPlanner,
    MilpOrderedPlanner,
    MilpPlanner,
    ProgramPlanner,
)
from automap_models.planners.placement.program_search import OPTIMAL_GAP, Solver, Turn, search

PLANNERS: dict[str, type[ProgramPlanner]] = {
    each.name: each for each in (MilpPlanner, MilpContiguousPlanner, MilpOrderedPlanner)
}
SOLVERS: tuple[Solver, ...] = ("cp-sat", "highs")


def main() -> None:
    """Print a row for each graph, program and solver."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time-limit", type=float, default=DEFAULT_TIME_LIMIT_S)
    parser.add_argument("--turns-only", action="store_true", help="leave out the solvers alone")
    parser.add_argument("--only", default="", help="part of the file names to take")
    asked = parser.parse_args()
    print("| graph | program | solver | value ms | bound ms | gap | s |\n|---|---|---|---|---|---|---|")
    for path in sorted(p for p in asked.folder.glob("*-inputs_*.json") if asked.only in p.name):
        problem = _problem(path)
        for kind in PLANNERS if problem.objective == "throughput" else [MilpPlanner.name]:
            for solver, plan, seconds in _answers(problem, kind, asked.time_limit, turns_only=asked.turns_only):
                value_s, bound_s = placement_cost(problem, plan).value_s, plan.bound_s or 0.0
                gap = 1 - bound_s / value_s
                shown = "proven" if gap <= OPTIMAL_GAP else f"{100 * gap:.2f} %"
                numbers = f"{1e3 * value_s:.3f} | {1e3 * bound_s:.3f} | {shown} | {seconds:.1f}"
                print(f"| {path.stem} | {kind} | {solver} | {numbers} |", flush=True)


def _problem(path: Path) -> PlacementProblem:
    objective = "latency" if path.stem.startswith("latency") else "throughput"
    return PlacementProblem.of(read_placement(path), objective=objective)


def _answers(
    problem: PlacementProblem, kind: str, limit_s: float, *, turns_only: bool
) -> Iterator[tuple[str, PlacementPlan, float]]:
    """Solver, its plan and its seconds; the planner's include those of the start."""
    planner = PLANNERS[kind](PlannerOptions(time_limit_s=limit_s))
    for solver in () if turns_only else SOLVERS:
        starts, state = planner.starting_plans(problem), planner.state(problem)
        begun = time.perf_counter()
        plan = search(problem, state, starts, [Turn(solver, 1.0)], time_limit_s=limit_s, seed=0)
        yield f"{solver} alone", plan, time.perf_counter() - begun
    begun = time.perf_counter()
    plan = planner.plan(problem)
    yield "in turns", plan, time.perf_counter() - begun


if __name__ == "__main__":
    main()
