"""Searches within what a framework can express, against all strategies that its exporter writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn_plans import strategy_source
from strategy_problems import DEVICE, random_problem, small_work, strategies

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.core.estimate import Estimate
from automap_models.errors import BadInput
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.targets import target_by_name
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing

TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=5000, budget_s=60.0)
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "galvatron")
HOSTED = replace(DEVICE, host_memory=HostMemory(1e12, 1e12, 1e12))


def written(problem: StrategyProblem, target: str) -> Iterator[Estimate]:
    """Prices of all strategies that the target's exporter does not refuse and that fit."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    for strategy in strategies(problem):
        cut = replace(strategy, layers=strategy.stage_layers(problem.work.shape))
        try:
            target_by_name(target).write(strategy_source(cut, problem.work.facts), Path("out"))
        except Inexpressible:
            continue
        estimate = pricing.estimate(cut)
        if problem.fits(estimate):
            yield estimate


def compared(seed: int, target: str) -> bool:
    """Whether there was a best strategy to compare with: the search has found it, and its exporter writes it."""
    problem = random_problem(seed)
    fixed = {name: value for name, value in problem.fixed.items() if name not in ("zero", "recompute", "schedule")}
    fixed |= {"pp": 2} if len(fixed) < 4 else {}
    limits = target_by_name(target).limits
    fixed |= {} if limits is not None and limits.replicates else {"dp_replicate": 1}
    problem = replace(problem, fixed=fixed)
    if sum(1 for _ in zip(strategies(problem), range(3000), strict=False)) == 3000:
        return False
    best = min((estimate.step_s for estimate in written(problem, target)), default=None)
    try:
        result = StrategiesPlanner(TO_THE_END).solve(replace(problem, within=limits))
    except BadInput:
        assert best is None, f"problem {seed}"
        return False
    if best is None:
        assert result.status == "infeasible", f"problem {seed}"
        return False
    assert result.cost.step_s == pytest.approx(best, rel=1e-6), f"problem {seed}"
    assert result.bound is not None and result.bound.value <= best * (1 + 1e-9)
    strategy = replace(result.required_plan(), layers=result.cost.stage_layers)
    assert target_by_name(target).write(strategy_source(strategy, problem.work.facts), Path("out")).text
    return True


@pytest.mark.parametrize("target", FRAMEWORKS)
def test_the_best_strategy_that_a_framework_can_express_is_found(target: str) -> None:
    seeds = np.arange(3000, 3018) + 100 * FRAMEWORKS.index(target)
    assert sum(compared(seed, target) for seed in seeds.tolist()) >= 1


@pytest.mark.parametrize("target", [pytest.param(target, marks=pytest.mark.thorough) for target in FRAMEWORKS])
def test_the_best_strategies_that_frameworks_can_express_are_found(target: str) -> None:
    assert sum(compared(seed, target) for seed in range(3500, 3580)) >= 7


@pytest.mark.parametrize(
    ("target", "fixed", "sentence"),
    [
        ("megatron", {"zero": 3}, "`zero`: megatron has no ZeRO-3; take zero 0 or 1, or leave `target` out"),
        ("torchtitan", {"zero": 1}, "torchtitan has no ZeRO-1"),
        ("deepspeed", {"cp": 2}, "deepspeed has no context parallelism"),
        ("torchtitan", {"recompute": "offload"}, "torchtitan has no activations on hosts; take recompute none or"),
        ("megatron", {"recompute": "offload"}, "megatron has activations on hosts of all blocks but one at most"),
        ("deepspeed", {"recompute": "selective"}, "deepspeed has no selective recomputation; take recompute none or"),
        ("galvatron", {"pp": 3}, "1, 2, 4, 8, … stages, not 3"),
        ("megatron", {"recompute": ("full", "none"), "pp": 2}, "megatron recomputes alike in all stages"),
        ("deepspeed", {"pp": 2, "zero": 2}, "has pp 2 and zero 2 and words in deepspeed; change one"),
        ("megatron", {"dp": 2, "vp": 2, "micro_batch": 8}, "has .*words in megatron; change one"),
    ],
)
def test_what_a_framework_and_a_field_contradict_is_said(target: str, fixed: dict[str, object], sentence: str) -> None:
    cluster = Cluster(1, 4, 1e9, 1e9, 1e12)
    problem = StrategyProblem(work=small_work(4, 64, 2, 32), cluster=cluster, device=HOSTED, global_batch=16)
    limits = target_by_name(target).limits
    with pytest.raises(BadInput, match=sentence):
        StrategiesPlanner().solve(replace(problem, fixed=fixed, within=limits))
