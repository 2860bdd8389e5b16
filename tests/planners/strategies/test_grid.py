"""What the grid leaves out, against the prices of its strategies, and costs that searches share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategy_problems import random_problem

from automap_models.core.cluster import Cluster
from automap_models.core.framework import Degrees
from automap_models.planners.strategies.grid import Grid, Subspace
from automap_models.planners.strategies.problem import UNEQUAL, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing


def _problem(seed: int, global_batch: int = 8) -> StrategyProblem:
    cluster = Cluster(2, 4, 1e11, 1e10, 1e12)
    return replace(random_problem(seed), fixed={}, global_batch=global_batch, cluster=cluster)


@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_split_in_vain_are_no_shorter_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """cp 4, dp 1, micro-batch 2 has a counterpart cp 2, dp 2, micro-batch 1, which the grid has."""
    problem = _problem(seed, 16)
    grid = Grid(problem)
    inside = set(grid.degree_sets())
    monkeypatch.setattr(Grid, "_splits_in_vain", lambda _grid, _degrees: False)
    outside = [degrees for degrees in Grid(problem).degree_sets() if degrees not in inside]
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    compared = 0
    for split in outside:
        whole = _least_split(split, inside)
        for choice in grid.schedules(split)[:6]:
            for zero in grid.zeros(split):
                if problem.work.shape.layers % (split.pp * choice.vp):
                    continue
                one, two = (
                    pricing.estimate(grid.strategy(Subspace(degrees, zero, choice), recompute="selective"))
                    for degrees in (whole, split)
                )
                assert one.step_s <= two.step_s * 1.002, f"{split}, {choice}, ZeRO-{zero}"
                assert all(a.total <= b.total * 1.001 for a, b in zip(one.memory, two.memory, strict=True))
                compared += 1
    assert compared >= 10


def _least_split(split: Degrees, inside: set[Degrees]) -> Degrees:
    """The counterpart in the grid whose sequences fewest devices share."""
    counterparts = [
        split._replace(cp=split.cp // n, dp=split.dp * n, micro_batch=split.micro_batch // n)
        for n in range(2, split.cp + 1)
        if split.cp % n == split.micro_batch % n == 0
    ]
    return min((degrees for degrees in counterparts if degrees in inside), key=lambda degrees: degrees.cp)


def test_cp_and_micro_batch_that_are_given_stay() -> None:
    fixed = {"cp": 2, "micro_batch": 2}
    assert any(True for _ in Grid(replace(_problem(0), fixed=fixed)).degree_sets())


def test_searches_that_go_on_share_the_costs_of_ranks_and_no_others() -> None:
    """Of the same global batch and precision they are the same object, of another one they are not."""
    problem = _problem(2)
    shared = problem.costs
    grid = Grid(problem)
    division = next(division for division in grid.degree_sets() if grid.schedules(division))
    first = grid.costs(shared, division, 0)
    assert Grid(replace(problem, without=frozenset({UNEQUAL}))).costs(shared, division, 0) is first
    assert Grid(replace(problem, reserve_bytes=1e9)).costs(shared, division, 0) is first
    more = Grid(replace(problem, global_batch=16)).costs(shared, division, 0)
    assert more.strategy.micro_batches == 2 * first.strategy.micro_batches
