"""Searches on clusters of two kinds of nodes with links of their own, against all strategies in both orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draw_counts import parts
from strategy_problems import DEVICE, small_work, strategies

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
from automap_models.planners.strategies.planner import StrategiesPlanner, node_orders
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing

TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=5000, budget_s=60.0)


def mixed_problem(seed: int) -> StrategyProblem:
    """Two nodes of one or two devices, of which one kind is slower and has less memory; of odd seeds in two zones."""
    draw = np.random.default_rng(seed)
    per_node = int(draw.choice([1, 2]))
    speeds, memory = draw.choice([0.4, 0.7, 1.0], 2, replace=False), draw.uniform(1.52e9, 1.6e9, 2)
    intra, inter = (draw.choice(links, 2) for links in ([2e10, 1e11], [1e9, 1e10]))
    numbers = np.stack([intra, inter, memory, speeds], axis=1).tolist()
    groups = [NodeGroup(1, per_node, *of_kind, speed=speed) for *of_kind, speed in numbers]
    fixed = {"pp": int(draw.choice([1, 2, 2])), "micro_batch": 1, "zero": 0, "vp": 1, "sequence_parallel": False}
    fixed["schedule"] = str(draw.choice(["1f1b", "zb-h1", "gpipe"]))
    between = [ZoneLink(("near", "far"), float(draw.choice([1e8, 1e9])), float(draw.choice([0.0, 1e-4])))]
    if seed % 2:
        groups = [replace(group, zone=zone) for group, zone in zip(groups, between[0].zones, strict=True)]
    cluster = Cluster.of_groups(groups, "two kinds", zone_links=between if seed % 2 else ())
    work = small_work(int(draw.integers(2, 5)), 256, 2, 128)
    return StrategyProblem(work=work, cluster=cluster, device=DEVICE, global_batch=8, fixed=fixed)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_strategy_of_both_orders_of_the_nodes_is_found(seed: int) -> None:
    _check_against_all_strategies(seed)


@pytest.mark.parametrize("part", parts(1, of=10))
def test_the_best_strategies_of_three_hundred_problems_are_found(part: int) -> None:
    for seed in range(6 + part, 306, 10):
        _check_against_all_strategies(seed)


def _check_against_all_strategies(seed: int) -> None:
    """Layers by speed and memory, on ranks of one kind or of both, in both orders of the nodes."""
    problem, steps = mixed_problem(seed), {}
    for order in node_orders(problem.cluster):
        of_order = replace(problem, cluster=order)
        pricing = StrategyPricing(problem.work, order, DEVICE)
        estimates = map(pricing.estimate, strategies(of_order))
        best = min((estimate.step_s for estimate in estimates if of_order.fits(estimate)), default=None)
        steps[order.groups] = np.inf if best is None else best
    assert len(steps) == 2
    result = StrategiesPlanner(TO_THE_END).solve(problem)
    if np.isinf(min(steps.values())):
        assert result.status == "infeasible"
        return
    assert result.cost.step_s == pytest.approx(min(steps.values()), rel=1e-6)
    assert result.cost.step_s == pytest.approx(steps[result.problem.cluster.groups], rel=1e-6)
    assert result.bound is not None and result.bound.value <= min(steps.values()) * (1 + 1e-9)


def test_the_nodes_of_one_kind_have_one_order() -> None:
    uniform = Cluster(2, 2, 1e11, 1e10, 1e12)
    assert node_orders(uniform) == [uniform]
    group = NodeGroup(1, 2, 1e11, 1e10, 1e12)
    assert len(node_orders(Cluster.of_groups([group, group]))) == 1
    assert len(node_orders(Cluster.of_groups([replace(group, speed=0.1 * n) for n in (1, 2, 3)]))) == 6
