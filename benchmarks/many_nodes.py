"""How long `automap-infer` takes on many nodes where it chooses the number of stages, and what its choice is worth.

For each example and each number of nodes of cluster C's kind (8 V100 of 32 GB, 25 Gb/s between nodes): the default
plan under 1F1B, its cuts on the grid; the step of data parallelism and that of the best uniform cuts in any number of
stages; and with --all what comes out where every number of stages up to two a node is gone through, as on few nodes.
Processor time.

    python benchmarks/many_nodes.py --all
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from common import EXAMPLES, timed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.planners.portfolio import descent
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.space import PlanningSpace, planning_problem
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner
from automap_models.planners.staged.costs import StagedResult
from automap_models.simulate.step import step_cost

MODELS = ("vgg19", "t5_base", "bert48", "t5_3b")
NODES = (16, 32, 64)
ALL_FEW = 10**6


def cluster_of(nodes: int) -> Cluster:
    """So many nodes of the clusters A, B and C."""
    return Cluster(nodes, 8, 130e9, 3.125e9, 32e9, f"{nodes} nodes")


def planned(space: PlanningSpace, few: int) -> tuple[StagedResult, float]:
    """The default plan without refinement where so many stages are few, and its processor time."""
    usual = descent.FEW
    descent.FEW = few
    try:
        return timed(lambda: AutoPlanner(AutoConfig(refine_s=0.0)).solve(space))
    finally:
        descent.FEW = usual


def step_s(problem: StagedProblem, plan: StagedPlan | None) -> float:
    """Its simulated step; inf without a plan, or where it does not fit."""
    cost = None if plan is None else step_cost(problem, plan)
    return cost.step_s if cost is not None and cost.feasible else np.inf


def uniform_s(space: PlanningSpace) -> float:
    """The shortest step of uniform cuts in any number of stages that competes."""
    problems = [problem for problem in space.pipelines().problems if problem.stages > 1]
    return min(step_s(problem, UniformPlanner().solve(problem).plan) for problem in problems)


def seconds(step: float) -> str:
    """As the tables show it."""
    return f"{step:.4g}" if np.isfinite(step) else "–"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES, help="default: 16 32 64")
    parser.add_argument("--all", action="store_true", help="go through every number of stages, too")
    arguments = parser.parse_args()
    table = Table("model", "devices", "S", "step, s", "data parallel", "uniform cuts", "bound", "planned in, s")
    if arguments.all:
        table.add_column("every S: step, s")
        table.add_column("planned in, s")
    cases = [(model, nodes) for nodes in arguments.nodes for model in arguments.models]
    warm = planning_problem(read_profile(EXAMPLES / "vgg19_v100.npz"), cluster_of(2), schedule="1f1b").space
    planned(warm, descent.FEW)  # has the loops compiled
    for model, nodes in track(cases, "planning", console=Console(stderr=True)):
        profile = read_profile(EXAMPLES / f"{model}_v100.npz")
        space = planning_problem(profile, cluster_of(nodes), schedule="1f1b").space
        result, taken_s = planned(space, descent.FEW)
        assert result.plan is not None and result.bound is not None
        one = replace(result.problem, stages=1)
        row = [
            model,
            str(8 * nodes),
            str(result.plan.stages),
            seconds(result.cost.step_s),
            seconds(step_s(one, DataParallelPlanner().solve(one).plan)),
            seconds(uniform_s(space)),
            seconds(result.bound.value),
            f"{taken_s:.0f}",
        ]
        if arguments.all:
            every, every_s = planned(space, ALL_FEW)
            row += [seconds(every.cost.step_s), f"{every_s:.0f}"]
        table.add_row(*row)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
