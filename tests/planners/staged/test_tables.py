"""The planner `tables`: near the optimum on clusters of every size, and sentences on what it is not for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.search import ExactPlanner, TablesPlanner


def problem(nodes: int, per_node: int, stages: int = 4, **changes: Any) -> StagedProblem:
    rng = np.random.default_rng(7)
    arrays = [rng.random(64) * scale for scale in (1e-2, 1e6, 1e6)]
    profile = Profile.create(*arrays, stash=rng.random(64) * 1e7)
    cluster = Cluster(nodes, per_node, 130e9, 3.125e9, 32e9, "large")
    return StagedProblem(profile, cluster, stages=stages, micro_batches=32, **changes)


@pytest.mark.parametrize(("nodes", "per_node"), [(17, 8), (16, 16), (40, 8)])
def test_clusters_of_every_size_are_planned_device_by_device(nodes: int, per_node: int) -> None:
    staged_problem, planner = problem(nodes, per_node, stages=8), TablesPlanner()
    plan = planner.plan(staged_problem)
    assert plan.check_valid(staged_problem) == (True, "")
    even = UniformPlanner().plan(staged_problem)
    assert plan_cost(staged_problem, plan).length_s < plan_cost(staged_problem, even).length_s


def test_a_plan_of_tables_is_near_the_optimum() -> None:
    staged_problem = problem(4, 8)
    best = ExactPlanner().solve(staged_problem)
    assert TablesPlanner().solve(staged_problem).cost.length_s <= 1.02 * best.cost.length_s


def test_one_stage_needs_no_decision_and_a_plan_that_does_not_fit_is_no_result() -> None:
    (one,) = TablesPlanner().solve_batch([problem(2, 8, stages=1)])
    assert one.plan is not None and (one.plan.cuts, one.plan.device_cuts) == ((), ())
    staged_problem = problem(2, 8)
    tight = replace(staged_problem, cluster=replace(staged_problem.cluster, memory=1.0, name="tiny"))
    with pytest.raises(Infeasible, match="fits the 1e-09 GB of cluster tiny"):
        TablesPlanner().plan(tight)
