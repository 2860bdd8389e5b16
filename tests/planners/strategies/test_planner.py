"""The search of strategies against all strategies of small problems, priced one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import Runtime
from automap_models.errors import BadInput
from automap_models.planners.strategies.planner import StrategiesConfig, StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem, usual_precision
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

DEVICE = Device("device", {"float32": 20e12, "bfloat16": 300e12}, 20e12, 2e12, 0.6, 0.75, step=USUAL)
TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=5000, budget_s=60.0)
SAMPLE, ALL = 12, 1000


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All numbers of layers of stages of which none between the ends is empty."""
    for head in product(range(layers + 1), repeat=stages - 1):
        counts = (*head, layers - sum(head))
        if counts[-1] >= 0 and all(counts[1:-1]):
            yield counts


def recomputations(counts: tuple[int, ...]) -> Iterator[tuple[tuple[str, int], ...]]:
    """All of what virtual stages of so many layers may recompute."""
    kinds = [[("none", 0), *((kind, n) for kind in ("selective", "full") for n in range(1, c + 1))] for c in counts]
    yield from product(*kinds)


def strategies(problem: StrategyProblem) -> Iterator[Strategy]:
    """All strategies there are, by the rules of `Strategy` alone, with the fields that are fixed."""
    devices, batch, shape = problem.cluster.devices, problem.global_batch, problem.work.shape

    def values(name: str, free: list[Any]) -> list[Any]:
        return [problem.fixed[name]] if name in problem.fixed else free

    some = divisors(devices)
    for tp, cp, pp, dp in product(*(values(name, some) for name in ("tp", "cp", "pp", "dp"))):
        if tp * cp * pp * dp != devices or batch % dp:
            continue
        for ep, b, schedule, vp, zero, shared in product(
            values("ep", divisors(dp)),
            values("micro_batch", divisors(batch // dp)),
            values("schedule", list(SCHEDULES)),
            values("vp", [1, 2, 3]),
            values("zero", [0, 1, 2, 3]),
            values("sequence_parallel", [False, True]),
        ):
            if pp * vp > shape.layers + 2:
                continue
            for layers in [problem.fixed["layers"]] if "layers" in problem.fixed else cuts(shape.layers, pp * vp):
                try:
                    uniform = Strategy(
                        micro_batch=b,
                        global_batch=batch,
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        vp=vp,
                        cp=cp,
                        ep=ep,
                        schedule=schedule,
                        zero=zero,
                        sequence_parallel=shared,
                        layers=layers,
                    )
                    uniform.require_model(shape)
                except BadInput:
                    continue
                if "recompute" in problem.fixed:
                    yield replace(uniform, recompute=problem.fixed["recompute"])
                    continue
                for choices in recomputations(layers):
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
    launch_s = float(draw.choice([0.0, 6e-6]))
    device = replace(DEVICE, step=replace(USUAL, launch_s=launch_s, overlap=float(draw.choice([0.0, 0.3, 1.0]))))
    problem = StrategyProblem(
        work=work,
        cluster=cluster,
        device=device,
        global_batch=batch,
        fixed=fixed,
        runtime=Runtime(flash=bool(draw.integers(2))),
    )
    held = sorted(
        StrategyPricing(work, cluster, device, problem.runtime).estimate(strategy).fullest[0]
        for strategy in _some(problem, draw)
    )
    if not held:
        return problem
    room = float(np.quantile(held, draw.uniform())) * (1 + 1e-9)
    return replace(problem, cluster=replace(cluster, memory=room))


def _some(problem: StrategyProblem, draw: np.random.Generator) -> list[Strategy]:
    everything = list(strategies(problem))
    return [everything[i] for i in draw.choice(len(everything), 3)] if everything else []


def best_of_all(problem: StrategyProblem) -> float | None:
    """The shortest step of any strategy that fits; None where none does."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    estimates = map(pricing.estimate, strategies(problem))
    return min((estimate.step_s for estimate in estimates if problem.fits(estimate)), default=None)


def _agrees(seed: int) -> bool:
    """Whether the search's result is what all strategies say; says otherwise which problem it is."""
    problem = random_problem(seed)
    best = best_of_all(problem)
    if not any(True for _ in strategies(problem)):
        with pytest.raises(BadInput, match="no strategy"):
            StrategiesPlanner(TO_THE_END).solve(problem)
        return True
    result = StrategiesPlanner(TO_THE_END).solve(problem)
    if best is None:
        assert result.status == "infeasible", f"problem {seed}"
        return True
    assert result.plan is not None, f"problem {seed}"
    assert problem.fits(result.cost)
    assert result.cost.step_s == pytest.approx(best, rel=1e-6), f"problem {seed}"
    assert result.bound is not None and result.bound.value <= best * (1 + 1e-9), f"problem {seed}"
    rough = StrategiesPlanner(StrategiesConfig(gap=0.2, exhaustive=0, whole_s=0.0)).solve(problem)
    assert rough.bound is None or rough.bound.value <= best * (1 + 1e-9), f"problem {seed}"
    return True


def test_plans_and_bounds_are_those_of_all_strategies_of_small_problems() -> None:
    assert all(_agrees(seed) for seed in range(SAMPLE))


def test_a_strategy_that_fills_the_memory_to_the_last_byte_is_found() -> None:
    """The linear program's solver once called this problem infeasible."""
    assert _agrees(755)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_plans_and_bounds_are_those_of_all_strategies_of_a_thousand_problems(part: int) -> None:
    assert all(_agrees(SAMPLE + seed) for seed in range(part, ALL - SAMPLE, 10))


def test_a_field_that_no_strategy_has_is_refused() -> None:
    with pytest.raises(BadInput, match="`speed`: no strategy has such a field; they have micro_batch, tp, "):
        replace(random_problem(0), fixed={"speed": 2})


def test_what_fixed_fields_contradict_is_said() -> None:
    problem = replace(random_problem(0), cluster=Cluster(1, 4, 1e9, 1e9, 1e12), fixed={"pp": 4, "tp": 2})
    with pytest.raises(BadInput, match=r"\(4 devices\) has pp 4 and tp 2; change one of them"):
        StrategiesPlanner().solve(problem)


def test_the_python_function_is_the_planner_and_its_bound_is_one() -> None:
    import automap_models as am

    work = small_work(4, 64, 2, 32)
    cluster = Cluster(1, 4, 1e10, 1e10, 1e12)
    result = am.search_strategies(work, cluster, 8, device=DEVICE, pp=2, zero=1)
    assert result.plan is not None and result.bound is not None
    assert (result.plan.pp, result.plan.zero) == (2, 1)
    assert result.cost == am.estimate(work, cluster, result.plan, device=DEVICE)
    problem = StrategyProblem(work=work, cluster=cluster, device=DEVICE, global_batch=8, fixed={"pp": 2, "zero": 1})
    best = best_of_all(replace(problem, fixed={**problem.fixed, "recompute": "none"}))
    assert best is not None and result.bound.value <= best


def test_the_usual_precision_is_the_faster_one_of_16_bits() -> None:
    rates = {"float32": 1e12, "bfloat16": 2e12, "float16": 8e12}
    old, new = replace(DEVICE, matrix=rates), replace(DEVICE, matrix={**rates, "bfloat16": 8e12})
    assert usual_precision([old]) == usual_precision([old, new]) == "fp16"
    assert usual_precision([new]) == "bf16"
    assert usual_precision([replace(DEVICE, matrix={"float32": 1e12})]) == "fp32"
