"""Even stages and plain data parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner


def problem_of(n: int, stages: int, *, nodes: int = 4, size: int = 8, granularity: int = 128) -> StagedProblem:
    profile = Profile.create(C=np.ones(n), A=np.ones(n), W=np.ones(n))
    return StagedProblem(profile, Cluster(nodes, size, 130e9, 3.125e9, 32e9), stages, granularity=granularity)


def test_uniform_stages_hold_equally_many_instructions_and_one_node_each():
    plan = UniformPlanner().plan(problem_of(n=128, stages=4))
    assert plan.cuts == plan.coarse_cuts == (31, 63, 95)
    assert plan.device_cuts == (8, 16, 24)
    assert plan.planner == "uniform"


def test_uniform_cuts_at_the_nearest_point_of_a_coarse_grid():
    """10 instructions on 5 points end after 2, 4, 6, 8; thirds are 3.33 and 6.67."""
    plan = UniformPlanner().plan(problem_of(n=10, stages=3, granularity=5))
    assert plan.cuts == (3, 5)


@pytest.mark.parametrize(("n", "stages"), [(5, 5), (5, 4), (7, 3), (128, 7), (129, 32), (3000, 6), (33, 32)])
def test_uniform_plans_are_valid_whatever_the_sizes(n, stages):
    problem = problem_of(n, stages)
    plan = UniformPlanner().plan(problem)
    assert plan.check_valid(problem) == (True, "")
    sizes = [last - first + 1 for first, last in plan.stage_instructions(n)]
    grid_step = max(n // 128 + 1, 1)
    assert max(abs(size - n / stages) for size in sizes) <= 2 * grid_step


def test_devices_that_do_not_divide_are_cut_as_evenly_as_they_can():
    plan = UniformPlanner().plan(problem_of(n=128, stages=3, nodes=1, size=8))
    assert plan.device_cuts == (2, 5)


def test_data_parallelism_answers_problems_of_one_stage_only():
    """It once answered a problem of four stages with a plan of one, which solves another problem."""
    problem = problem_of(n=10, stages=4)
    with pytest.raises(BadInput, match="4 stages, but data parallelism has one"):
        DataParallelPlanner().plan(problem)
    one = replace(problem, stages=1)
    plan = DataParallelPlanner().plan(one)
    assert (plan.stages, plan.planner) == (1, "data-parallel")
    assert plan.check_valid(one) == (True, "")
    assert plan_cost(one, plan).forward_s.tolist() == pytest.approx([10 / 3 / 32])


@pytest.mark.parametrize("planner", [UniformPlanner, DataParallelPlanner])
def test_plans_that_do_not_fit_are_refused(planner):
    profile = Profile.create(C=np.ones(10), A=np.ones(10), W=np.full(10, 1e10))
    stages = 1 if planner is DataParallelPlanner else 2
    problem = StagedProblem(profile, Cluster(1, 2, 130e9, 3.125e9, 32e9), stages)
    with pytest.raises(Infeasible, match=f"planner {planner.name}.*GB"):
        planner().plan(problem)
