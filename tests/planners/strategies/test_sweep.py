"""The strategies of equal stages that are priced first, against all of them priced one by one."""

from __future__ import annotations

from itertools import product

import pytest
from strategy_problems import divisors, random_problem

from automap_models.core.cluster import Cluster
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.planners.strategies.bounds import division_bound
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.divisions import DividedModel
from automap_models.planners.strategies.grid import Grid
from automap_models.planners.strategies.incumbent import Incumbent
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import KnownCosts, StrategyProblem
from automap_models.planners.strategies.sweep import Sweep
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work


def swept(problem: StrategyProblem, prices: int = 1_000_000) -> Sweep:
    """The sweep of a problem alone."""
    pricing, grid = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime), Grid(problem)
    (recompute,) = problem.recompute_sets
    divided = DividedModel(grid, KnownCosts(pricing, {}))
    divisions = [division for division in grid.divisions() if grid.ways(division)]
    bounds = [division_bound(divided.costs(of, grid.zeros(of)[0]), recompute) for of in divisions]
    sweep = Sweep(problem, divided, Incumbent(gap=0.0))
    sweep.run(zip(bounds, divisions, strict=True), prices, passes=10_000_000)
    return sweep


def best_of_equal_stages(problem: StrategyProblem) -> float | None:
    """The shortest step of any strategy of equal stages that fits, by the rules of `Strategy` alone."""
    devices, batch, shape, fixed = problem.cluster.devices, problem.global_batch, problem.work.shape, problem.fixed
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    some, steps = divisors(devices), []
    values = {
        "tp": some,
        "cp": some,
        "pp": some,
        "dp": some,
        "micro_batch": divisors(batch),
        "schedule": list(SCHEDULES),
        "vp": [1, 2, 3, 4],
        "zero": [0, 1, 2, 3],
        "sequence_parallel": [False, True],
        "recompute": ["none", "selective", "full"],
    }
    for fields in product(*([fixed[name]] if name in fixed else of for name, of in values.items())):
        try:
            strategy = Strategy(global_batch=batch, **dict(zip(values, fields, strict=True)))
            strategy.require_model(shape)
            estimate = pricing.estimate(strategy)
        except BadInput:
            continue
        if problem.fits(estimate):
            steps.append(estimate.step_s)
    return min(steps, default=None)


def test_the_sweep_is_never_behind_any_strategy_of_equal_stages() -> None:
    compared = 0
    for seed in range(1000, 1024):
        problem = random_problem(seed)
        best, sweep = best_of_equal_stages(problem), swept(problem)
        if best is not None:
            assert sweep.incumbent.best is not None, f"problem {seed}"
            assert sweep.incumbent.best.step_s <= best * (1 + 1e-9), f"problem {seed}"
            compared += 1
    assert compared >= 6


def test_what_the_sweep_comes_to_depends_on_prices_and_not_on_time() -> None:
    problem = random_problem(3)
    first, again = swept(problem, prices=4), swept(problem, prices=4)
    assert first.prices == again.prices <= 4
    assert first.incumbent == again.incumbent


@pytest.mark.slow
def test_a_plan_that_a_person_would_try_first_is_not_better_than_a_search_that_its_budget_ended() -> None:
    """ZeRO-3 alone with full recomputation was 2 % shorter than what the search of 20 s had come to before it swept."""
    cluster = Cluster(8, 8, 450e9, 400e9, 80e9, name="8 × 8 H100")
    device, work = read_device("h100"), read_model_work("llama3-70b", dtype="bfloat16")
    problem = StrategyProblem(work=work, cluster=cluster, device=device, global_batch=128)
    person = Strategy(micro_batch=2, global_batch=128, dp=64, recompute="full", zero=3)
    price = StrategyPricing(work, cluster, device).estimate(person)
    assert problem.fits(price)
    result = StrategiesPlanner(StrategiesConfig(budget_s=6.0)).solve(problem)
    assert result.cost.step_s <= price.step_s
