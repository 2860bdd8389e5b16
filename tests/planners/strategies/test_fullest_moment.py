"""Gradients that replace activations, and updates that copy moments: what fits is found, and nothing else proven."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from draw_counts import parts
from strategy_problems import DEVICE, assert_least, small_work, strategies

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.cost.runtime import Runtime
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

FAST, ALL, PARTS = 20, 500, 10


def _problem(seed: int) -> StrategyProblem:
    """Of one to four devices, with a pipeline, one micro-batch or several, as it comes, and memory for some of it."""
    draw = np.random.default_rng([seed, 46])
    devices, batch = int(draw.choice([1, 2, 4])), int(draw.choice([2, 4]))
    fixed = {"cp": 1, "vp": 1, "sequence_parallel": False, "schedule": "1f1b"}
    fixed |= {"tp": 1} if draw.integers(2) and devices < 4 else {"pp": 1}
    problem = StrategyProblem(
        work=small_work(int(draw.integers(2, 4)), int(draw.choice([32, 128])), 2, int(draw.choice([8, 64]))),
        cluster=Cluster(1, devices, 1e10, 1e10, 1e15),
        device=replace(DEVICE, step=replace(USUAL, launch_s=0.0)),
        global_batch=batch * devices,
        fixed=fixed,
        runtime=Runtime(frees_gradients=True, copies_moments=bool(draw.integers(2))),
    )
    bytes_of = sorted(estimate.fullest[0] for estimate in _estimates(problem))
    room = float(np.quantile(bytes_of, 0.5 * draw.uniform())) * (1 + 1e-9)
    return replace(problem, cluster=replace(problem.cluster, memory=room))


def _estimates(problem: StrategyProblem) -> list[Estimate]:
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    return [pricing.estimate(strategy) for strategy in strategies(problem)]


def _agrees(seed: int) -> Counter[str]:
    """Of which sort the best strategy is; fails where the search's plan or bound is another one's."""
    problem = _problem(seed)
    fitting = [estimate for estimate in _estimates(problem) if problem.fits(estimate)]
    best = min(fitting, key=lambda estimate: estimate.step_s)
    assert_least(problem, best.step_s, f"problem {seed}: {best.strategy}")
    pricing, stays = problem.costs.pricing, replace(problem.runtime, frees_gradients=False)
    pricing = StrategyPricing(pricing.work, pricing.cluster, problem.device, stays)
    freed = not problem.fits(pricing.estimate(best.strategy))
    updating = best.memory[0].activations == 0
    return Counter({"freed": freed, "updating": updating, "pipeline": best.strategy.pp > 1})


def test_plans_and_bounds_are_those_of_all_strategies() -> None:
    sorts = sum((_agrees(seed) for seed in range(FAST)), Counter[str]())
    assert all(sorts[sort] for sort in ("freed", "updating", "pipeline"))


@pytest.mark.parametrize("part", parts(1, of=PARTS))
def test_plans_and_bounds_are_those_of_all_strategies_of_five_hundred_problems(part: int) -> None:
    sorts = sum((_agrees(seed) for seed in range(FAST + part, FAST + ALL, PARTS)), Counter[str]())
    assert all(sorts[sort] for sort in ("freed", "updating", "pipeline"))
