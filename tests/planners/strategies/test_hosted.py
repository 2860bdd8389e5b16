"""Activations on hosts: what the search finds is the best of all, and where it tries them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from draw_counts import parts
from strategy_problems import DEVICE, assert_least, small_work, strategies

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.core.estimate import Estimate
from automap_models.cost.runtime import Runtime
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

FAST, ALL, PARTS = 12, 500, 10


def hosted_problem(seed: int) -> tuple[StrategyProblem, list[tuple[float, str]]]:
    """Of one to four devices whose hosts may save for blocks, over a link and in a memory that are often too small; and
    the seconds of all its strategies that fit, with what they recompute."""
    draw = np.random.default_rng([seed, 380])
    devices = int(draw.choice([1, 2, 4]))
    fixed = {
        "tp": 1,
        "cp": 1,
        "pp": int(draw.choice([n for n in (1, 2) if devices % n == 0])),
        "vp": int(draw.choice([1, 1, 1, 2])),
        "schedule": str(draw.choice(["1f1b", "zb-h1", "gpipe", "gpipe"])),
        "micro_batch": int(draw.choice([1, 2])),
        "sequence_parallel": False,
        "zero": int(draw.choice([1, 3])),
        "offload": str(draw.choice(["none", "optimizer"])),
    }
    fixed["schedule"] = "interleaved" if fixed["vp"] > 1 else fixed["schedule"]
    host = HostMemory(1e15, 1e13, float(10.0 ** draw.uniform(11, 14)))
    problem = StrategyProblem(
        work=small_work(4 if fixed["vp"] > 1 else int(draw.integers(4, 7)), 64, 2, 128),
        cluster=Cluster(1, devices, 1e10, 1e10, 1e15),
        device=replace(DEVICE, step=replace(USUAL, launch_s=0.0), host_memory=host),
        global_batch=8,
        fixed=fixed,
        runtime=Runtime(flash=bool(draw.integers(2))),
        hosted=True,
    )
    every = _estimates(problem)
    held, of_hosts = (np.array(rows) for rows in zip(*((e.fullest[0], e.host[0]) for e in every), strict=True))
    room = float(np.quantile(held, 0.6 * draw.uniform())) * (1 + 1e-9)
    share = float(np.quantile(of_hosts, draw.uniform(0.3, 1.0)))
    hosts = replace(host, memory=max(1.0, share) * devices * (1 + 1e-9))
    problem = replace(
        problem,
        cluster=replace(problem.cluster, memory=room),
        device=replace(problem.device, host_memory=hosts),
    )
    return problem, [(e.step_s, str(e.strategy.recompute)) for e in _estimates(problem) if problem.fits(e)]


def _estimates(problem: StrategyProblem) -> list[Estimate]:
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    return [pricing.estimate(strategy) for strategy in strategies(problem)]


def _agrees(seed: int) -> str:
    """What the best of all strategies recomputes; fails where the search's plan or bound is another one's."""
    problem, fitting = hosted_problem(seed)
    if not fitting:
        return "nothing"
    least_s, best = min(fitting)
    assert_least(problem, least_s, f"problem {seed}: {best}")
    return "offload" if "offload" in best else "devices"


def test_plans_with_activations_on_hosts_are_the_best_of_all() -> None:
    assert {"offload", "devices"} <= {_agrees(seed) for seed in range(FAST)}


@pytest.mark.parametrize("part", parts(1, of=PARTS))
def test_plans_with_activations_on_hosts_are_the_best_of_all_in_five_hundred_problems(part: int) -> None:
    best = Counter(_agrees(seed) for seed in range(FAST + part, FAST + ALL, PARTS))
    assert best["offload"] and best["devices"]
