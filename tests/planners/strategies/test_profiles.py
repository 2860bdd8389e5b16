"""The search of strategies of a profile, against all of its strategies priced one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategy_problems import DEVICE, strategies

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.strategy import Strategy
from automap_models.cost.profile_layers import ProfileWork
from automap_models.planners.portfolio.profile_strategy import gain_to_ask
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing

TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=50_000, budget_s=60.0)


def a_profile(draw: np.random.Generator) -> Profile:
    """A profile of two to four blocks, alike or not, some of which are not trained."""
    blocks = int(draw.integers(2, 5))
    layers = ("embed", *(f"blocks.{i}" for i in range(blocks)), "head")
    n, alike = len(layers), draw.random() < 0.5
    arrays = {name: draw.uniform(0.2, 1.0, n) for name in ("C", "A", "W", "stash", "frozen")}
    if alike:
        for values in arrays.values():
            values[1:-1] = values[1]
    arrays["frozen"] *= draw.random(n) < 0.3
    scales = {"C": 1e-2, "A": 1e7, "W": 1e8, "stash": 1e9, "frozen": 1e9}
    meta = {"microbatch_size": 2, "parameter_dtype": "float32", "model": "random"}
    sized = {name: scales[name] * values for name, values in arrays.items()}
    places = tuple(sorted(draw.choice(n, int(draw.integers(2, n)), replace=False).tolist()))
    shared = (SharedParameter("shared", float(sized["W"][places[0]]) / 2, places),) if draw.random() < 0.5 else ()
    return Profile.create(**sized, layers=layers, meta=meta, shared_parameters=shared)


def of_the_profile(strategy: Strategy, work: ProfileWork) -> bool:
    """Whether a profile tells what the strategy needs to be priced."""
    return strategy.schedule in work.schedules and set(strategy.recompute_kinds) <= set(work.recompute)


@pytest.mark.parametrize("seed", [0, 1, 4, 6])
def test_the_best_strategy_is_that_of_all_of_them(seed: int) -> None:
    draw = np.random.default_rng(seed)
    work = ProfileWork.from_profile(a_profile(draw))
    devices = int(draw.choice([2, 4]))
    cluster = Cluster(devices // 2, 2, 1e11, float(draw.choice([1e9, 1e10])), 1e12)
    fixed = {} if work.shape.layers == 2 else {"pp": int(draw.choice([1, 2]))}
    problem = StrategyProblem(work=work, cluster=cluster, device=DEVICE, global_batch=4, fixed=fixed)
    pricing = StrategyPricing(work, cluster, DEVICE)
    priced = [pricing.estimate(of) for of in strategies(problem) if of_the_profile(of, work)]
    held = sorted(of.peak_memory for of in priced)
    tight = replace(problem, cluster=replace(cluster, memory=held[len(held) // 3]))
    least_s = min(of.step_s for of in priced if of.peak_memory <= tight.cluster.memory)
    result = StrategiesPlanner(TO_THE_END).solve(tight)
    assert result.plan is not None and of_the_profile(result.plan, work)
    assert tight.fits(result.cost)
    assert result.cost.step_s == pytest.approx(least_s, rel=1e-6)
    assert result.bound is not None and result.bound.value <= least_s * (1 + 1e-9)


@pytest.mark.parametrize(("head_bytes", "layers"), [(1e8, (4, 0)), (0.0, (3, 1))])
def test_no_rank_of_a_pipeline_is_left_without_parameters(head_bytes: float, layers: tuple[int, int]) -> None:
    """A head that takes as long as all else has a rank of its own, unless it is a loss that holds nothing."""
    profile = Profile.create(
        C=[0.01, *[0.01] * 4, 0.06],
        A=[1e3] * 6,
        W=[1e8] * 5 + [head_bytes],
        layers=("embed", *(f"blocks.{i}" for i in range(4)), "head"),
        meta={"microbatch_size": 2, "parameter_dtype": "float32", "model": "heavy end"},
    )
    cluster = Cluster(1, 2, 1e11, 1e10, 1e12)
    work, fixed = ProfileWork.from_profile(profile), {"pp": 2, "vp": 1}
    problem = StrategyProblem(work=work, cluster=cluster, device=DEVICE, global_batch=16, fixed=fixed)
    assert StrategiesPlanner(TO_THE_END).solve(problem).required_plan().layers == layers


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"dp": 4, "zero": 3, "recompute": "full"}, 1),
        ({"dp": 2, "pp": 2, "layers": (4, 4)}, 1),
        ({"dp": 2, "pp": 2, "layers": (5, 3)}, 1),
        ({"dp": 2, "pp": 2, "vp": 2, "schedule": "interleaved", "layers": (3, 1, 2, 2)}, 2),
        ({"dp": 2, "pp": 2, "layers": (5, 3), "recompute": ("full", "none")}, 2),
        ({"dp": 4, "recompute": "full", "recompute_blocks": (3,)}, 1),
    ],
)
def test_a_strategy_has_to_gain_as_much_again_for_each_thing_that_has_to_be_told(
    fields: dict[str, Any], times: int
) -> None:
    strategy = Strategy(micro_batch=1, global_batch=16, **fields)
    assert gain_to_ask(strategy, 0.02) == pytest.approx(0.02 * times)
