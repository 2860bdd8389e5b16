"""Recomputation by module: what the search finds, with the optimizer on hosts and without, is the best of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from draw_counts import parts
from strategy_problems import DEVICE, assert_least, strategies

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy, modules_of
from automap_models.core.sublayer_sizes import Latent, Mixture, Rotary
from automap_models.cost.runtime import Runtime
from automap_models.export.megatron import LIMITS
from automap_models.planners.strategies.problem import SEARCHED, StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

FAST, ALL, PARTS = 12, 500, 10


@cache
def mixture_work(layers: int, latent: bool, shared: bool) -> ModelWork:
    """Blocks of a mixture, after one without it where there are more than two; see `modules_problem`."""
    sizes = DecoderConfig(
        width=128,
        heads=4,
        layers=layers,
        vocabulary=512,
        feed_forward=256,
        gated=True,
        activation="silu",
        root_mean_square=True,
        mixture=Mixture(4, 2, 128, shared_width=64 if shared else 0),
        latent=Latent(32, 48, 16, Rotary(8), 16) if latent else None,
        blocks=("*-", *["*E"] * (layers - 1)) if layers > 2 else ("*E",) * layers,
    )
    return model_work(sizes, "mixture", 64, "bfloat16")


def modules_problem(seed: int) -> StrategyProblem:
    """A mixture on one to four devices under Megatron, with memory for some of its strategies."""
    draw = np.random.default_rng([seed, 38])
    work = mixture_work(int(draw.integers(1, 5)), bool(draw.integers(2)), bool(draw.integers(2)))
    devices = int(draw.choice([1, 2, 4]))
    pp = int(draw.choice([n for n in (1, 2) if devices % n == 0]))
    inside, across = draw.choice([1e9, 1e10, 1e11], 2).tolist()
    fixed = {
        "tp": 1,
        "cp": 1,
        "pp": pp,
        "vp": 1,
        "ep": int(draw.choice([n for n in (1, 2) if devices // pp % n == 0])),
        "micro_batch": int(draw.choice([1, 2])),
        "offload": str(draw.choice(["none", "optimizer"])),
    }
    problem = StrategyProblem(
        work=work,
        cluster=Cluster(1, devices, inside, across, 1e12),
        device=replace(DEVICE, step=USUAL, host_memory=HostMemory(1e12, 5e10, 2e10)),
        global_batch=8,
        fixed=fixed,
        runtime=Runtime(selects="attention", flash=bool(draw.integers(2))),
        within=LIMITS,
    )
    held = [estimate.fullest[0] for _, estimate in estimates(problem)]
    room = float(np.quantile(held, 0.6 * draw.uniform())) * (1 + 1e-9)
    return replace(problem, cluster=replace(problem.cluster, memory=room))


def estimates(problem: StrategyProblem) -> Iterator[tuple[Strategy, Estimate]]:
    """All strategies that Megatron runs, with each kind of recomputation that is searched in all blocks."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    for kind in problem.work.kinds:
        if SEARCHED.issuperset(modules_of(kind)):
            for strategy in strategies(replace(problem, fixed={**problem.fixed, "recompute": kind})):
                if LIMITS.objection(strategy, problem.work.facts) is None:
                    yield strategy, pricing.estimate(strategy)


def _agrees(seed: int) -> Counter[str]:
    """What the best of all strategies recomputes; fails where the search's plan or bound is another one's."""
    problem = modules_problem(seed)
    fitting = [(estimate.step_s, of) for of, estimate in estimates(problem) if problem.fits(estimate)]
    least_s, best = min(fitting, key=lambda entry: entry[0])
    assert_least(problem, least_s, f"problem {seed}: {best}")
    return Counter([*modules_of(str(best.recompute)), best.offload])


def test_plans_with_modules_are_the_best_of_all() -> None:
    assert set(sum((_agrees(seed) for seed in range(FAST)), Counter[str]())) >= {"none", "optimizer"}


@pytest.mark.parametrize("part", parts(1, of=PARTS))
def test_plans_with_modules_are_the_best_of_all_in_five_hundred_problems(part: int) -> None:
    seen = sum((_agrees(seed) for seed in range(FAST + part, FAST + ALL, PARTS)), Counter[str]())
    assert {"layernorm", "moe_act", "mla_up_proj", "moe", "none", "optimizer"} <= set(seen)
