"""The simulated jobs of the benchmark of re-planning: who knows more does better; devices straggle as they shall."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from optima import exact_search

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "replanning.py"
CLUSTER = Cluster(2, 4, 130e9, 3.125e9, 32e9)


def test_nobody_does_better_than_the_job_that_knows_everything(benchmark: ModuleType) -> None:
    n = 24
    profile = Profile.create(C=np.full(n, 3e-3), A=np.full(n, 1e4), W=np.full(n, 1e6), C_fwd=np.full(n, 1e-3))
    problem = StagedProblem(profile, CLUSTER, stages=2, micro_batches=8)
    plan = exact_search(problem)
    world = benchmark.World(windows=4, steps=50, device_straggles=0.1, restart_s=0.0, worth=0.0)
    first, second = (benchmark.simulate_job(problem, plan, world, 7) for _ in range(2))
    assert (first.perfect_s <= first.static_s).all()
    assert (first.perfect_s <= first.replanned_s).all()
    assert first.static_s[0] == pytest.approx(first.healthy_s)
    np.testing.assert_array_equal(first.replanned_s, second.replanned_s)
    static, replanned, perfect = first.totals(world.steps)
    assert perfect <= min(static, replanned)


def test_devices_are_healthy_at_first_and_straggle_only_in_a_world_where_devices_do(benchmark: ModuleType) -> None:
    calm = benchmark.World(windows=20, drift=0.0, device_straggles=0.0, node_straggles=0.0)
    path = benchmark.slowdown_path(CLUSTER, calm, np.random.default_rng(0))
    np.testing.assert_array_equal(path, np.ones((20, 8)))
    wild = replace(calm, node_straggles=1.0, recovers=0.0)
    path = benchmark.slowdown_path(CLUSTER, wild, np.random.default_rng(0))
    assert (path[0] == 1.0).all()
    assert (path[1:] > 1.0).all()
    assert (path[1] == path[-1]).all()
    assert (path[1, :4] == path[1, 0]).all()
