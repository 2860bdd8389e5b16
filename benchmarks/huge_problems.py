"""How good plans of 32 stages on 1,024 devices are, against the best that a long search knows.

    OMP_NUM_THREADS=1 python benchmarks/huge_problems.py [--policy FILE ...] [--problems 5] [--seed 2026] [--search 60]

Random problems of the training mix with 32 stages on 128 nodes of 8 devices. The compiled tables that are shipped plan
them device by device; networks that know so many stages can be given. Local searches know 512 devices at most: they
plan for groups of neighbouring devices that always work together (planners.staged.policy_plans.grouped). The best known
plan is the shortest of all made here, among them those of searches of `--search` seconds over pairs of devices, from
even stages and other plans, and of what is shipped with more reach, before and after them. The claim: greedily ≤ 1.05
of it in ≤ 100 ms. All times are of processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from common import drawn, processor_time, timed
from large_problems import length_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.beam_search import route_of
from automap_models.planners.staged.local_search import even_route, local_search
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.policy_plans import Grouped, grouped
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.planners.staged.table_plans import shortened

HUGE = (
    "sizes=all",
    "problem.stages={values: [32], weights: [1]}",
    "problem.stages_match_nodes=0",
    "problem.cluster.nodes={values: [128], weights: [1]}",
    "problem.cluster.devices_per_node={values: [8], weights: [1]}",
    "problem.instructions=[512, 4096]",
)
ASKED = ((1, 0), (1, 4), (4, 4))
"""First cuts that a network follows, and how far beside its best plan stages may begin in the end."""
SHIPPED = ((1, 0), *((PolicyConfig().beam, reach) for reach in (PolicyConfig().reach, 16, 32)))
"""The same of what is shipped; more reach takes longer."""
BUDGETS_S = (0.1, 1.0)
"""Of the local search over few groups, its tables included."""
FEW, MANY = (16, 8), (128, 4)
"""Most nodes and devices in each as which searches see the cluster: 128 groups of eight, or 512 pairs."""


def searched(group: Grouped, starts: Sequence[StagedPlan], seconds: float) -> StagedPlan:
    """What local searches come to from each of some plans of the whole problem, or from even stages, in turns."""
    deadline, problem = processor_time(seconds), group.problem
    tables = stage_tables(problem)
    routes = [even_route(tables)]
    for plan in starts:
        inside = StagedPlan(
            plan.cuts, tuple(c // group.size for c in plan.device_cuts), plan.micro_batches, plan.planner
        )
        if inside.check_valid(problem)[0]:
            routes.append(route_of(tables, inside, length_of(problem, inside)))
    best, turn = routes[0], 0
    while turn == 0 or not deadline.passed:
        part = processor_time(seconds / (2 * len(routes)))
        start = routes[turn % len(routes)] if turn < len(routes) or turn % 2 else best
        route = local_search(tables, problem.cluster, start, part if turn < len(routes) else deadline, turn)
        best, turn = min(best, route, key=lambda r: r.length_s), turn + 1
    cuts, device_cuts = best.cuts(tables)
    plan = StagedPlan(cuts, device_cuts, problem.micro_batches, "local search", problem.grid.to_points(cuts))
    return group.ungrouped(plan)


def measure(problem: StagedProblem, policies: Sequence[Path], search_s: float) -> dict[str, tuple[float, float]]:
    """Row → L and seconds; the shortest L known is row ''."""
    makers: dict[str, Callable[[], StagedPlan | None]] = {"uniform": lambda: UniformPlanner().solve(problem).plan}
    for file, beams in ((None, SHIPPED), *((file, ASKED) for file in policies)):
        for beam, reach in beams:
            planner = PolicyPlanner(PolicyConfig(file, beam, reach))
            planner.raw_plans([problem])  # opens the file, or has the loops compiled
            name = f"{file.stem if file else 'as shipped'}, {beam} first cut(s), reach {reach}"
            makers[name] = lambda planner=planner: planner.raw_plans([problem])[0]  # type: ignore[misc]
    few = grouped(problem, *FEW)
    for budget in BUDGETS_S:
        makers[f"local search from even stages, {1e3 * budget:g} ms"] = partial(searched, few, (), budget)
    rows, plans = {}, []
    for name, make in makers.items():
        plan, taken_s = timed(make)
        rows[name] = length_of(problem, plan), taken_s
        if plan is not None and np.isfinite(rows[name][0]):
            plans.append(plan)
    plans.sort(key=lambda plan: length_of(problem, plan))
    long = searched(grouped(problem, *MANY), plans[:3], search_s)
    best = [length_of(problem, plan) for plan in (long, shortened(problem, long, SHIPPED[-1][1]))]
    return rows | {"": (min([*best, *(length for length, _ in rows.values())]), 0.0)}


def report(measured: Sequence[dict[str, tuple[float, float]]]) -> Table:
    """Lengths over the shortest known."""
    table = Table("planner", "problems", "mean", "median", "max", "do not fit", "ms of processor time, median")
    for name in (name for name in measured[0] if name):
        ratios = np.array([rows[name][0] / rows[""][0] for rows in measured])
        fits = ratios[np.isfinite(ratios)]
        cells = (fits.mean(), np.median(fits), fits.max()) if fits.size else ()
        ms = f"{1e3 * np.median([rows[name][1] for rows in measured]):.0f}"
        shown = [f"{cell:.4f}" for cell in cells] or ["", "", ""]
        table.add_row(name, str(len(ratios)), *shown, str(len(ratios) - len(fits)), ms)
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="policy files that know 32 stages")
    parser.add_argument("--problems", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--search", type=float, default=60.0, help="seconds of the long search")
    arguments = parser.parse_args()
    problems = drawn(arguments.problems, arguments.seed, *HUGE)[0]
    console = Console(stderr=True)
    measured = [measure(p, arguments.policy, arguments.search) for p in track(problems, "planning", console=console)]
    Console(width=130).print(report([rows for rows in measured if np.isfinite(rows[""][0])]))


if __name__ == "__main__":
    main()
