"""Small random problems of the search of strategies, and all strategies of them, priced one by one."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Strategy
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

DEVICE = Device("device", {"float32": 20e12, "bfloat16": 300e12}, 20e12, 2e12, step=USUAL)


def estimated(work: ModelWork, strategy: Strategy, cluster: Cluster, *others: Any, **named: Any) -> Estimate:
    """The price of one strategy; others are further arguments of StrategyPricing."""
    return StrategyPricing(work, cluster, *others, **named).estimate(strategy)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All numbers of layers of stages of which none between the ends is empty."""
    for head in product(range(layers + 1), repeat=stages - 1):
        counts = (*head, layers - sum(head))
        if counts[-1] >= 0 and all(counts[1:-1]):
            yield counts


def recomputations(counts: tuple[int, ...], hosted: bool = False) -> Iterator[tuple[tuple[str, int], ...]]:
    """All of what virtual stages of so many layers may recompute, or save on hosts."""
    some = ("selective", "full", "offload") if hosted else ("selective", "full")
    kinds = [[("none", 0), *((kind, n) for kind in some for n in range(1, c + 1))] for c in counts]
    yield from product(*kinds)


def strategies(problem: StrategyProblem) -> Iterator[Strategy]:
    """All strategies there are, by the rules of `Strategy` alone, with the fields that are fixed."""
    devices, batch, shape = problem.cluster.devices, problem.global_batch, problem.work.shape

    def values(name: str, free: list[Any]) -> list[Any]:
        return [problem.fixed[name]] if name in problem.fixed else free

    some, groups = divisors(devices), problem.fixed.get("dp_replicate", 1)
    for tp, cp, pp, dp in product(*(values(name, some) for name in ("tp", "cp", "pp", "dp"))):
        if tp * cp * pp * dp != devices or batch % dp:
            continue
        for ep, b, schedule, vp, zero, shared, tower_tp in product(
            values("ep", divisors(tp * cp * dp)),
            values("micro_batch", divisors(batch // dp)),
            values("schedule", list(SCHEDULES)),
            values("vp", [1, 2, 3]),
            values("zero", [0, 1, 2, 3]),
            values("sequence_parallel", [False, True]),
            values("tower_tp", [None, *divisors(tp)] if shape.images else [None]),
        ):
            if groups > 1 and not zero:
                continue
            if pp * vp > shape.layers + 2 or (problem.offload != "none" and not zero and dp * cp > 1):
                continue
            for layers in [problem.fixed["layers"]] if "layers" in problem.fixed else cuts(shape.layers, pp * vp):
                try:
                    uniform = Strategy(
                        micro_batch=b,
                        global_batch=batch,
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        dp_replicate=groups,
                        vp=vp,
                        cp=cp,
                        ep=ep,
                        schedule=schedule,
                        zero=zero,
                        sequence_parallel=shared,
                        tower_tp=tower_tp,
                        dispatcher=problem.dispatcher,
                        offload=problem.offload,
                        layers=layers,
                    )
                    uniform.require_model(shape)
                except BadInput:
                    continue
                if "recompute" in problem.fixed:
                    yield replace(uniform, recompute=problem.fixed["recompute"])
                    continue
                for choices in recomputations(layers, problem.hosted):
                    kinds, blocks = zip(*choices, strict=True)
                    yield replace(uniform, recompute=kinds, recompute_blocks=blocks)


@cache
def small_work(layers: int, hidden: int, heads: int, sequence: int) -> ModelWork:
    return gpt_work(layers, hidden, heads, sequence=sequence, vocabulary=512)


def random_problem(seed: int) -> StrategyProblem:
    """Few layers and devices, memory that is often too small for much, and some fields given."""
    draw = np.random.default_rng(seed)
    work = small_work(int(draw.integers(1, 5)), int(draw.choice([64, 256])), 2, int(draw.choice([32, 128])))
    devices = int(draw.choice([1, 2, 2, 3, 4, 4]))
    per_node = int(draw.choice(divisors(devices)))
    links = draw.choice([1e9, 1e10, 1e11], 2)
    cluster = Cluster(devices // per_node, per_node, float(links[0]), float(links[1]), 1.0e12)
    batch = int(draw.choice([2, 4, 6, 8]))
    fixed: dict[str, Any] = {}
    free = {
        "tp": [1, 2],
        "cp": [1, 1, 2],
        "pp": [1, 2, 2, 3, 4],
        "micro_batch": [1, 2],
        "schedule": list(SCHEDULES),
        "zero": [0, 1, 2, 3],
        "sequence_parallel": [False, True],
        "recompute": ["none", "selective", "full"],
        "vp": [1, 2],
    }
    for name in draw.permutation(list(free))[: int(draw.integers(4, 7))].tolist():
        fixed[name] = free[name][int(draw.integers(len(free[name])))]
    fixed["dp_replicate"] = int(np.random.default_rng([seed, 1]).choice([1, 1, 2]))
    launch_s = float(draw.choice([0.0, 6e-6]))
    device = replace(DEVICE, step=replace(USUAL, launch_s=launch_s, overlap=float(draw.choice([0.0, 0.3, 1.0]))))
    problem = StrategyProblem(
        work=work,
        cluster=cluster,
        device=device,
        global_batch=batch,
        fixed=fixed,
        runtime=drawn_runtime(draw),
    )
    held = sorted(
        StrategyPricing(work, cluster, device, problem.runtime).estimate(strategy).fullest[0]
        for strategy in _some(problem, draw)
    )
    if not held:
        return problem
    room = float(np.quantile(held, draw.uniform())) * (1 + 1e-9)
    return replace(problem, cluster=replace(cluster, memory=room))


def drawn_runtime(draw: np.random.Generator) -> Runtime:
    """Of programs in general, or one that hides, exposes and launches otherwise; later draws stay as they are."""
    flash, other = bool(draw.integers(2)), deepcopy(draw)
    if other.uniform() < 0.5:
        return Runtime(flash=flash)
    return Runtime(
        flash=flash,
        compute=float(other.choice([1.0, 1.3])),
        tensor_overlap=float(other.choice([0.0, 0.7])),
        gradient_overlap=float(other.choice([0.0, 0.5, 1.0])),
        exposes_gathers=bool(other.integers(2)),
        gathers_a_layer=int(other.choice([1, 7])),
        saves_gathered=bool(other.integers(2)),
        dispatcher="deepep" if other.integers(2) else "alltoall",
        exchange_shares=(0.6, 0.7),
        expert_overlap=float(other.choice([0.0, 0.6])),
        routing=float(other.choice([0.2, 1.0])),
        host_s=float(other.choice([0.0, 1e-5, 1e-3])),
        mixture_host_s=float(other.choice([0.0, 1e-5, 1e-3])),
        graphed=float(other.choice([0.0, 0.5])),
        sum_host_s=float(other.choice([0.0, 1e-3])),
        bucket_bytes=float(other.choice([0.0, 1e5])),
        eager=bool(other.integers(2)),
    )


def _some(problem: StrategyProblem, draw: np.random.Generator) -> list[Strategy]:
    everything = list(strategies(problem))
    return [everything[i] for i in draw.choice(len(everything), 3)] if everything else []


def on_grid(problem: StrategyProblem, strategy: Strategy) -> bool:
    """Whether the grid has it: one rank runs 1F1B without virtual stages, unless other ones are asked for.

    Virtual stages of one rank would let it recompute in two ways, or other blocks first where there are several kinds.
    Images are divided among cp where there are several, and among tp, too, or not; or tp does not divide the tower.
    """
    usual = strategy.schedule == "1f1b" and strategy.vp == 1
    shape, tp = problem.work.shape, strategy.tp
    several, uneven = strategy.micro_batch * (shape.images or 0) > 1, bool((shape.tower_heads or 0) % tp)
    divisions = {tp if several and strategy.cp > 1 else None, *([1] if tp > 1 and (several or uneven) else [])}
    if "tower_tp" not in problem.fixed and strategy.tower_tp not in divisions:
        return False
    return strategy.pp > 1 or usual or any(name in problem.fixed for name in ("schedule", "vp", "layers"))


def best_of_all(problem: StrategyProblem) -> float | None:
    """The shortest step of any strategy of the grid that fits; None where none does."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    estimates = map(pricing.estimate, (of for of in strategies(problem) if on_grid(problem, of)))
    return min((estimate.step_s for estimate in estimates if problem.fits(estimate)), default=None)


TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=50_000, budget_s=60.0)
EARLY = StrategiesConfig(gap=0.2, exhaustive=0, nodes=0)
"""A search that leaves most to its bounds."""


def assert_least(problem: StrategyProblem, least_s: float, about: str) -> None:
    """Fail where a search to the end finds or proves another step than the least of all strategies, or where the bound
    of a short search is above it."""
    patient = replace(TO_THE_END, patience=1000)  # where no kind of devices is always slowest bounds rise late
    result, early = (StrategiesPlanner(config).solve(problem) for config in (patient, EARLY))
    assert result.plan is not None, about
    assert problem.fits(result.cost), about
    assert abs(result.cost.step_s / least_s - 1.0) <= 1e-6, about
    assert result.bound is not None, about
    assert least_s * (1 - 1e-5) <= result.bound.value <= least_s * (1 + 1e-9), about
    assert early.bound is None or early.bound.value <= least_s * (1 + 1e-9), about
