"""When the optimizer goes to hosts: where nothing fits without, or where that saves a fifth of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from strategy_problems import DEVICE

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.planners.strategies.remedies import with_hosts
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

CONFIG = DecoderConfig(width=256, heads=4, layers=4, vocabulary=1000, positions=None)
WORK = model_work(CONFIG, "m", 64, "bfloat16")
PARAMETERS = 4 * (12 * 256**2 + 13 * 256) + 1000 * 256 + 2 * 256
TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=50_000, budget_s=20.0)


def problem(memory: float, host_bandwidth: float, **fixed: Any) -> StrategyProblem:
    """On two devices with a slow link between them."""
    device = replace(DEVICE, host_memory=HostMemory(1e12, host_bandwidth, 1e11))
    cluster = Cluster(1, 2, 1e8, 1e8, memory)
    fixed = {"pp": 1, "cp": 1, "micro_batch": 1, **fixed}
    return StrategyProblem(work=WORK, cluster=cluster, device=device, global_batch=64, fixed=fixed)


def room(offload: str, **fixed: Any) -> float:
    """Bytes that the strategy of one grid holds."""
    answer = StrategiesPlanner(TO_THE_END).solve(problem(1e12, 1e12, offload=offload, recompute="full", **fixed))
    return float(answer.cost.peak_memory)


def test_it_goes_there_where_nothing_fits_without() -> None:
    """Of 18 bytes a parameter 6 are left on a device, the state of the optimizer is not."""
    memory = room("none", tp=1, dp=2, zero=1)
    assert room("optimizer", tp=1, dp=2, zero=1) == pytest.approx(memory - 6.0 * PARAMETERS)
    tight = problem(0.99 * memory, 1e9, tp=1, dp=2, zero=1)
    without = StrategiesPlanner(TO_THE_END).solve(tight)
    assert without.plan is None
    result = with_hosts(without, TO_THE_END)
    assert result.plan is not None
    assert result.plan.offload == result.problem.fixed["offload"] == "optimizer"


@pytest.mark.parametrize(("host_bandwidth", "offload"), [(1e12, "optimizer"), (1e6, "none")])
def test_it_goes_there_where_hosts_save_a_fifth(host_bandwidth: float, offload: str) -> None:
    """Whole models, which only hosts leave room for, send little over the slow link; hosts may be slower than that."""
    memory = 1.01 * room("optimizer", tp=1, dp=2, zero=1)
    result = StrategiesPlanner(TO_THE_END).solve(problem(memory, host_bandwidth, recompute="full", zero=1))
    assert result.plan is not None
    assert result.plan.tp > 1
    answer = with_hosts(result, TO_THE_END)
    assert answer.plan is not None
    assert answer.plan.offload == offload
    assert (answer.cost.step_s <= 0.8 * result.cost.step_s) is (offload == "optimizer")
    assert answer.bound is not None
    assert answer.bound.value <= min(answer.cost.step_s, result.cost.step_s) * (1 + 1e-9)


@pytest.mark.parametrize("fixed", [{"offload": "none", "recompute": "full"}, {"recompute": "none"}])
def test_it_stays_where_somebody_says_so_or_nothing_is_recomputed(fixed: dict[str, Any]) -> None:
    result = StrategiesPlanner(TO_THE_END).solve(problem(1e12, 1e12, tp=2, **fixed))
    assert with_hosts(result, TO_THE_END) is result
