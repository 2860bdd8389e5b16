"""The search of strategies of models trained in part, on pairs, or updated by hosts, against all strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategy_problems import DEVICE, strategies
from whole_space import estimates

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.core.tuning import Training
from automap_models.cost.runtime import Runtime
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

CONFIG = DecoderConfig(width=64, heads=4, layers=3, vocabulary=512, positions=None)
TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=50_000, budget_s=60.0)
FIXED: dict[str, dict[str, Any]] = {
    "a pipeline": {"pp": 2, "vp": 1, "schedule": "1f1b", "micro_batch": 1, "cp": 1, "recompute": "none"},
    "data and tensors": {"pp": 1, "vp": 1, "schedule": "1f1b", "cp": 1, "micro_batch": 2},
    "virtual stages": {"pp": 2, "vp": 2, "tp": 1, "cp": 1, "micro_batch": 1, "recompute": "none", "zero": 3},
}


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize(
    "training",
    [
        Training(rank=4),
        Training(rank=4, targets=("q", "v"), quantize=True, optimizer="adamw-8bit", states="bf16"),
        Training(freeze=("embedding", "head", "block_0")),
        Training(optimizer="lion"),
        Training(loss="dpo"),
        Training(loss="dpo", rank=4),
        Training(packed=8),
    ],
    ids=str,
)
def test_it_finds_the_shortest_of_all_strategies_under_any_memory(training: Training, kind: str) -> None:
    work = model_work(CONFIG, "m", 32, "bfloat16", training)
    cluster = Cluster(2, 2, 1e10, 1e9, 1e12)
    require_shortest(StrategyProblem(work=work, cluster=cluster, device=DEVICE, global_batch=8, fixed=FIXED[kind]))


@pytest.mark.parametrize("offloads_gradients", [False, True])
@pytest.mark.parametrize("kind", FIXED)
def test_it_does_where_hosts_update_the_weights(kind: str, offloads_gradients: bool) -> None:
    """Their memory is enough for half of the strategies."""
    device = replace(DEVICE, host_memory=HostMemory(memory=1e12, bandwidth=1e9, link=1e9))
    problem = StrategyProblem(
        work=model_work(CONFIG, "m", 32, "bfloat16"),
        cluster=Cluster(2, 2, 1e10, 1e9, 1e12),
        device=device,
        global_batch=8,
        fixed={**FIXED[kind], "offload": "optimizer"},
        runtime=Runtime(offloads_gradients=offloads_gradients),
    )
    pricing = StrategyPricing(problem.work, problem.cluster, device, problem.runtime)
    shares = [pricing.estimate(strategy).host[0] for strategy in strategies(problem)]
    enough = problem.cluster.devices_per_node * float(np.median(shares)) * (1 + 1e-9)
    require_shortest(replace(problem, device=replace(device, host_memory=HostMemory(enough, 1e9, 1e9))))


def require_shortest(problem: StrategyProblem) -> None:
    """The search finds the shortest strategy that fits, and its bound is no more, whatever the memory."""
    work = problem.work
    pricing = StrategyPricing(work, problem.cluster, problem.device, problem.runtime)
    every = [pricing.estimate(strategy) for strategy in strategies(problem)]
    peaks = [estimate.peak_memory for estimate in every if estimate.host[0] <= estimate.host[1]]
    for share in (0.0, 0.3, 1.0):
        memory = float(np.quantile(peaks, share)) * (1 + 1e-9)
        limited = replace(problem, cluster=replace(problem.cluster, memory=memory))
        least_s = min(estimate.step_s for _, estimate in estimates(limited))
        result = StrategiesPlanner(TO_THE_END).solve(limited)
        assert result.cost.step_s == pytest.approx(least_s, rel=1e-6), share
        assert result.bound is not None
        assert least_s * (1 - 1e-5) <= result.bound.value <= least_s * (1 + 1e-9)
