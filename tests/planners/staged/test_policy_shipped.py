"""What is shipped plans clusters of every size: tables device by device, networks by groups of devices."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.policy import (
    SHIPPED,
    TABLE_RANGES,
    PolicyConfig,
    PolicyPlanner,
)
from automap_models.planners.staged.policy_file import Policy
from automap_models.planners.staged.policy_plans import grouped
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.resources import zoo_dir


def problem(nodes: int, per_node: int, stages: int = 4, **changes: Any) -> StagedProblem:
    rng = np.random.default_rng(7)
    arrays = [rng.random(64) * scale for scale in (1e-2, 1e6, 1e6)]
    profile = Profile.create(*arrays, stash=rng.random(64) * 1e7)
    cluster = Cluster(nodes, per_node, 130e9, 3.125e9, 32e9, "large")
    return StagedProblem(profile, cluster, stages=stages, micro_batches=32, **changes)


@pytest.mark.parametrize(
    ("nodes", "per_node", "size"),
    [(16, 8, 1), (4, 16, 2), (32, 8, 2), (32, 16, 4), (48, 8, 3), (17, 8, 1), (1, 24, 3), (2, 11, 1)],
)
def test_groups_are_the_smallest_equal_ones_that_are_few_enough(nodes: int, per_node: int, size: int) -> None:
    """17 nodes and 11 devices divide by nothing that leaves more than one."""
    grouping = grouped(problem(nodes, per_node), 16, 8)
    assert grouping.size == size
    assert grouping.problem.cluster.devices * size == nodes * per_node
    if size > 1:
        assert grouping.problem.cluster.nodes <= 16
        assert grouping.problem.cluster.devices_per_node <= 8


def test_stages_that_need_every_device_are_not_grouped() -> None:
    assert grouped(problem(1, 16, stages=12), 16, 8).size == 1


def test_without_communication_a_grouped_plan_costs_what_it_costs_on_the_devices() -> None:
    """A group is as fast as its devices together, and each of them keeps its share of the activations."""
    staged_problem = problem(4, 16)
    p = staged_problem.profile
    nothing = np.zeros(len(p))
    silent = StagedProblem(
        Profile.create(p.C, nothing, nothing, p.C_fwd, p.stash), staged_problem.cluster, stages=4, micro_batches=32
    )
    few = grouped(silent, 16, 8)
    plan = UniformPlanner().plan(few.problem)
    cost, whole = plan_cost(few.problem, plan), plan_cost(silent, few.ungrouped(plan))
    assert cost.length_s == pytest.approx(whole.length_s, rel=1e-12)
    np.testing.assert_allclose(cost.memory_bytes, whole.memory_bytes, rtol=1e-12)


@pytest.mark.parametrize(("nodes", "per_node"), [(32, 8), (16, 16), (64, 8)])
def test_clusters_beyond_the_policys_are_planned_by_groups(nodes: int, per_node: int) -> None:
    staged_problem, planner = problem(nodes, per_node, stages=8), PolicyPlanner()
    assert planner.out_of_range(staged_problem) is None
    plan = planner.plan(staged_problem)
    assert plan.check_valid(staged_problem) == (True, "")
    assert (
        plan_cost(staged_problem, plan).length_s
        < plan_cost(staged_problem, UniformPlanner().plan(staged_problem)).length_s
    )


def test_a_cluster_that_cannot_be_grouped_is_out_of_range_of_the_network() -> None:
    """The tables plan its devices one by one."""
    assert PolicyPlanner().out_of_range(problem(17, 8)) is None
    sentence = PolicyPlanner(PolicyConfig(policy=zoo_dir() / SHIPPED)).out_of_range(problem(17, 8))
    assert sentence is not None
    assert "nodes 17 is outside 1 … 16" in sentence


@pytest.mark.parametrize("file", [None, SHIPPED])
def test_what_is_shipped_plans_what_it_is_made_for(file: str | None) -> None:
    """By tables and by the network: both near the optimum, and their ranges agree but in devices."""
    config = PolicyConfig(policy=None if file is None else zoo_dir() / file)
    by_policy, staged_problem = PolicyPlanner(config), problem(4, 8, granularity=128)
    best = ExactPlanner().solve(staged_problem)
    assert best.plan is not None
    assert by_policy.solve(staged_problem).cost.length_s <= 1.02 * best.cost.length_s
    for outside in ({"stages": 17}, {"micro_batches": 257}):
        assert by_policy.out_of_range(replace(staged_problem, **outside)) is not None
    shipped = Policy(zoo_dir() / SHIPPED).ranges
    assert all(low <= shipped[name][0] and shipped[name][1] <= high for name, (low, high) in TABLE_RANGES.items())


@pytest.mark.parametrize(
    "options", [["policy", "--objective", "length"], ["policy", "--beam", "1"], ["auto", "--stages", "2"]]
)
def test_planning_by_tables_and_moves_imports_neither_torch_nor_onnxruntime(options: list[str]) -> None:
    """Only under 1F1B, with a beam and no search that follows, a network is asked as well."""
    profile = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.npz"))[0]
    code = f"""
import sys
from automap_models.infer.app import infer as main
assert main({[str(profile), "--topo", "A", "--json", "--planner", *options]!r}) == 0
print(sorted({{"torch", "lightning", "onnx", "onnxruntime", "hydra"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_tables_of_thousands_of_devices_are_refused_before_they_are_made() -> None:
    with pytest.raises(
        BadInput, match="cluster large: has 4,096 devices, plans are searched and proven for at most 512"
    ):
        stage_tables(problem(512, 8))
