"""The proven optimum against brute force, and as the plans that Auto-MAP published."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from automap_models.core.sharding import Kind, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.planners.base import PlannerOptions
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.milp import independent_set

Published = Callable[[str, int, Kind], tuple[ShardingProblem, ShardingPlan]]
Draw = Callable[[int], ShardingProblem]


def best_by_brute_force(problem: ShardingProblem) -> tuple[int, float]:
    """Candidates and bytes that the best of all legal sets of classes partitions, in this order."""
    live = np.flatnonzero(problem.live).tolist()
    conflicts = {tuple(pair) for pair in problem.classes.conflicts.tolist()}
    best = (0, 0.0)
    for count in range(len(live) + 1):
        for chosen in combinations(live, count):
            if not conflicts.intersection(combinations(chosen, 2)):
                picked = list(chosen)
                best = max(best, (int(problem.weights[picked].sum()), float(problem.weights_bytes[picked].sum())))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_no_legal_set_partitions_more_variables_nor_as_many_and_more_bytes(
    seed: int, random_sharding_problem: Draw
) -> None:
    problem = random_sharding_problem(seed)
    plan = make_planner("milp", None, "operator").plan(problem)
    assert plan.check_valid(problem) == (True, "")
    split = sum(variable.nbytes for variable, dim in plan.candidates.items() if dim >= 0)
    assert (plan.partitioned, split) == best_by_brute_force(problem)
    assert plan.optimality is not None
    assert (plan.optimality.bound, plan.optimality.proof) == (plan.partitioned, "exact")


def test_without_the_time_to_prove_it_the_bound_is_honest(random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(3)
    plan = make_planner("milp", PlannerOptions(time_limit_s=1e-9), "operator").plan(problem)
    assert plan.check_valid(problem) == (True, "")
    assert plan.optimality is not None
    assert plan.optimality.bound >= best_by_brute_force(problem)[0]


def test_what_must_be_reached_of_other_weights_is_reached(random_sharding_problem: Draw) -> None:
    problem = random_sharding_problem(5)
    fewest = independent_set(problem, np.ones(len(problem.classes)), least=(problem.weights, 1))
    assert problem.weights[fewest.chosen].sum() >= 1
    assert fewest.proven


@pytest.fixture(scope="session")
def published() -> Published:
    """The proven optimum under the paper's rules, of a workload, an axis of a cluster C and a kind of plan."""
    pytest.importorskip("jax")
    from automap_models import workloads
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.sharding_classes import sharding_classes
    from automap_models.hlo.shardy import sharding_rules

    known: dict[str, ShardingClasses] = {}

    def plan(model: str, axis_size: int, kind: Kind) -> tuple[ShardingProblem, ShardingPlan]:
        if model not in known:
            module = trace(workloads.build(model))
            known[model] = sharding_classes(module, sharding_rules(module), read_rule_set("paper")).classes
        problem = ShardingProblem(model, kind, known[model], read_cluster("C"), axis_size, "paper")
        return problem, make_planner("milp", None, kind).plan(problem)

    return plan


def partitioned(plan: ShardingPlan) -> dict[str, int]:
    return {v.name.removeprefix("params/"): dim for v, dim in plan.candidates.items() if dim >= 0}


def test_vgg19_on_8_is_table_4(published: Published) -> None:
    problem, plan = published("vgg19", 8, "operator")
    assert partitioned(plan) == {
        "fc1/kernel": 1,
        "fc1/bias": 0,
        "fc2/kernel": 0,
        "predictions/kernel": 1,
        "predictions/bias": 0,
    }
    assert plan.check_valid(problem) == (True, "")
    assert sum(problem.candidates) == 38  # hlo.md and Table 5


def test_vgg19_data_parallel_is_table_6(published: Published) -> None:
    assert partitioned(published("vgg19", 8, "data")[1]) == {"batch/images": 0, "batch/labels": 0}


def table_3(name: str) -> int:
    """The dimension that Table 3 of Auto-MAP partitions, by T5's published roles."""
    *_, parent, leaf = name.split("/")
    if leaf == "scale":
        return -1
    if leaf == "embedding":
        return 1 if parent == "relative_bias" else 0  # the table does not list the relative bias: its heads
    return {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0}[parent]


@pytest.mark.slow
def test_t5_base_is_table_3_and_table_6(published: Published) -> None:
    _, plan = published("t5_base", 4, "operator")
    assert {v.name: dim for v, dim in plan.candidates.items()} == {v.name: table_3(v.name) for v in plan.candidates}
    assert plan.partitioned == 195
    _, plan = published("t5_base", 8, "operator")  # 12 heads do not divide: wi, wo, embedding and relative biases
    assert plan.partitioned == 51
    batch = {"batch/ids": 0, "batch/decoder_ids": 0, "batch/labels": 0}
    assert partitioned(published("t5_base", 8, "data")[1]) == batch


@pytest.mark.slow
def test_t5_11b_on_32_is_table_3(published: Published) -> None:
    _, plan = published("t5_11b", 32, "operator")
    assert {v.name: dim for v, dim in plan.candidates.items()} == {v.name: table_3(v.name) for v in plan.candidates}
    assert plan.partitioned == 387


def test_every_moment_of_adam_follows_its_parameter(published: Published) -> None:
    _, plan = published("vgg19", 8, "operator")
    dims = {variable.name: dim for variable, dim in plan.by_variable.items()}
    moments = {name: dim for name, dim in dims.items() if "/mu/" in name or "/nu/" in name}
    assert len(moments) == 2 * 38
    for name, dim in moments.items():
        assert dim == dims["params/" + name.partition("/mu/" if "/mu/" in name else "/nu/")[2]]


def test_a_batch_that_the_axis_does_not_divide_is_refused(published: Published) -> None:
    with pytest.raises(BadInput, match=r"by 24 .* by a divisor of 32"):
        published("vgg19", 24, "data")
