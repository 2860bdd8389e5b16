"""AMP's trials on V100 and T4, priced: what the benchmark on mixed clusters says of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from automap_models.formats.hardware_yaml import read_cluster, read_device, read_kinds
from automap_models.planners.strategies.planner import node_orders
from automap_models.simulate.strategy import StrategyPricing

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "mixed_cluster.py"

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mixed_cluster", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mixed_cluster"] = module
    spec.loader.exec_module(module)
    return module


def test_the_trials_rank_amp_s_own_model_as_published(benchmark: ModuleType) -> None:
    """τ 0.31, and its choice 14.8 % behind the best trial, 1.28 s."""
    trials = [*benchmark.trials()]
    steps, of_amp = [trial.step_s for trial in trials], [trial.amp_s for trial in trials]
    assert all(sum(trial.strategy.layers) == 24 and trial.strategy.devices == 16 for trial in trials)
    assert benchmark.tau(of_amp, steps) == pytest.approx(0.31, abs=0.005)
    assert benchmark.loss(of_amp, steps) == pytest.approx(0.148, abs=0.0005)


def test_trials_of_a_cluster_of_v100_and_t4_are_ranked_better_than_by_amp_s_model(benchmark: ModuleType) -> None:
    cluster, trials = read_cluster("p3-g4dn"), [*benchmark.trials()]
    pricing = StrategyPricing(benchmark.model(), cluster, read_device("v100"), benchmark.RUNTIME, read_kinds(cluster))
    prices, steps = [pricing.estimate(trial.strategy).step_s for trial in trials], [trial.step_s for trial in trials]
    assert benchmark.tau(prices, steps) > 0.4
    assert benchmark.loss(prices, steps) < 0.05
    assert [[group.device for group in order.groups] for order in node_orders(cluster)] == [
        ["v100", "t4"],
        ["t4", "v100"],
    ]
