"""Sets of degrees that others are as good as, against the prices of their strategies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategy_problems import random_problem

from automap_models.core.cluster import Cluster
from automap_models.planners.strategies.dominance import DegreeCosts, with_whole_sequences
from automap_models.planners.strategies.grid import Grid, Subspace
from automap_models.planners.strategies.problem import UNEQUAL, SharedCosts
from automap_models.simulate.strategy import StrategyPricing


@pytest.mark.parametrize("seed", range(4))
def test_a_dominated_division_has_no_shorter_and_no_emptier_strategy(seed: int) -> None:
    problem = replace(random_problem(seed), fixed={}, global_batch=8, cluster=Cluster(2, 4, 1e11, 1e10, 1e12))
    grid = Grid(problem)
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    divided = DegreeCosts(grid, SharedCosts(pricing, {}))
    divisions = [division for division in grid.degree_sets() if grid.schedules(division)]
    compared = 0
    for division in divisions:
        for other in with_whole_sequences(division):
            shorter_s = divided.dominated_by(division, {other})
            if shorter_s == float("inf"):
                continue
            for way in grid.schedules(division)[:6]:
                for zero in grid.zeros(division):
                    if problem.work.shape.layers % (division.pp * way.vp):
                        continue
                    theirs, own = (
                        pricing.estimate(grid.strategy(Subspace(of, zero, way), recompute="selective"))
                        for of in (other, division)
                    )
                    assert theirs.step_s <= (own.step_s + shorter_s) * (1 + 1e-6), f"{division}, {way}, ZeRO-{zero}"
                    assert all(a.total <= b.total * (1 + 1e-6) for a, b in zip(theirs.memory, own.memory, strict=True))
                    compared += 1
    assert compared >= 10


def test_searches_that_go_on_share_the_costs_of_ranks_and_no_others() -> None:
    """Of the same global batch and precision they are the same object, of another one they are not."""
    problem = replace(random_problem(2), fixed={}, global_batch=8, cluster=Cluster(2, 4, 1e11, 1e10, 1e12))
    shared = problem.costs
    grid = Grid(problem)
    division = next(division for division in grid.degree_sets() if grid.schedules(division))
    first = DegreeCosts(grid, shared).costs(division, 0)
    assert DegreeCosts(Grid(replace(problem, without=frozenset({UNEQUAL}))), shared).costs(division, 0) is first
    assert DegreeCosts(Grid(replace(problem, reserve_bytes=1e9)), shared).costs(division, 0) is first
    more = DegreeCosts(Grid(replace(problem, global_batch=16)), shared).costs(division, 0)
    assert more.strategy.micro_batches == 2 * first.strategy.micro_batches
