"""What every planner of every kind promises, tried on the whole registry.

Small problems of each kind come with their optimum by brute force; a planner that is not made for one of them says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.mesh import MeshAxis
from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.profile import Profile
from automap_models.core.result import Result
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Strategy
from automap_models.cost.placement import placement_cost
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.formats.planning_graphs import parse_placement
from automap_models.planners.base import Deadline, Planner, Progress
from automap_models.planners.registry import PLANNERS, make_planner
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

PLANNERS_OF_ALL_KINDS = [(kind, name) for kind, names in PLANNERS.items() for name in names]
SHORT: dict[tuple[str, str], dict[str, Any]] = {
    ("staged", "online"): {"episodes": 64},
    ("staged", "explore"): {"budget_s": 2.0},
    ("sharding", "agent"): {"episodes": 40},
}
"""Options with which planners that would take seconds on any problem take less."""
FLOOR_S = 8.0
"""What a deadline may be missed by whatever it is, on a slow machine, where the first step that is trained online takes
three seconds; a planner that ignores it takes longer."""


@dataclass(frozen=True)
class PlannerKind:
    """What the tests know about a kind of problem.

    Attributes:
        small: problems that can be solved by brute force.
        large: one that takes any search seconds.
        value: what a plan of a problem is worth; None where it does not fit.
        values: of all plans of a problem; None where there are too many of them.
        best: of such values, the least or the largest.
        valid: whether a plan solves a problem.
    """

    small: Callable[[], list[Any]]
    large: Callable[[], Any]
    value: Callable[[Any, Any], float | None]
    values: Callable[[Any], Iterator[float | None]] | None
    best: Callable[..., float]
    valid: Callable[[Any, Any], bool]


# --- staged ------------------------------------------------------------------------------------------------------


def staged_problem(seed: int, n: int, cluster: Cluster, stages: int) -> StagedProblem:
    C, A, W = np.random.default_rng(seed).uniform(0.1, 1.0, size=(3, n))
    return StagedProblem(Profile.create(C=C, A=A, W=W), cluster, stages, micro_batches=8, granularity=128)


def staged_value(problem: StagedProblem, plan: StagedPlan) -> float | None:
    cost = plan_cost(problem, plan)
    return cost.length_s if cost.feasible else None


def staged_values(problem: StagedProblem) -> Iterator[float | None]:
    for cuts in combinations(range(len(problem.profile) - 1), problem.stages - 1):
        for device_cuts in combinations(range(1, problem.cluster.devices), problem.stages - 1):
            yield staged_value(problem, StagedPlan(cuts, device_cuts, problem.micro_batches, "brute force"))


SMALL_CLUSTER = Cluster(2, 3, intra=100.0, inter=10.0, memory=1e6, name="six")
STAGED = PlannerKind(
    lambda: [staged_problem(stages, 8, SMALL_CLUSTER, stages) for stages in (2, 3, 1)],
    lambda: staged_problem(7, 400, Cluster(8, 8, 100.0, 5.0, 1e6, name="many"), 10),
    staged_value,
    staged_values,
    min,
    lambda problem, plan: plan.check_valid(problem)[0],
)


# --- placement ---------------------------------------------------------------------------------------------------


def placement_problem(seed: int, nodes: int, devices: int) -> PlacementProblem:
    """A chain of operators with a branch here and there."""
    random = np.random.default_rng(seed)
    edges = {(a, a + 1) for a in range(nodes - 1)} | {(a, a + 2) for a in range(nodes - 2) if random.random() < 0.3}
    cost = random.random(nodes)
    document = {
        **{"maxSizePerFPGA": float(nodes), "maxFPGAs": devices, "maxCPUs": 1},
        "nodes": [
            {
                **{"id": i, "supportedOnFpga": 1, "cpuLatency": 10 * t, "fpgaLatency": t, "isBackwardNode": 0},
                **{"size": 1.0, "colorClass": i},
            }
            for i, t in enumerate(random.random(nodes).tolist())
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": float(0.2 * cost[a])} for a, b in sorted(edges)],
    }
    return PlacementProblem.create(parse_placement(json.dumps(document).encode(), where="drawn", model="drawn"))


def placement_value(problem: PlacementProblem, plan: PlacementPlan) -> float | None:
    cost = placement_cost(problem, plan)
    return cost.value_s if cost.feasible else None


def placement_values(problem: PlacementProblem) -> Iterator[float | None]:
    for assignment in product(range(problem.accelerators + problem.cpus), repeat=len(problem.graph)):
        yield placement_value(problem, PlacementPlan("brute force", np.array(assignment)))


PLACEMENT = PlannerKind(
    lambda: [
        *(placement_problem(seed, 6, 2) for seed in range(2)),
        replace(placement_problem(2, 6, 2), objective="step"),
    ],
    lambda: placement_problem(9, 120, 6),
    placement_value,
    placement_values,
    min,
    lambda problem, plan: plan.check_valid(problem)[0],
)


# --- sharding ----------------------------------------------------------------------------------------------------


def sharding_problem(seed: int, classes: int, conflicts: float) -> ShardingProblem:
    """A parameter for each class, whose conflicts are a random graph: the count's optimum is an independent set."""
    random = np.random.default_rng(seed)
    pairs = [pair for pair in combinations(range(classes), 2) if random.random() < conflicts]
    variables = tuple(Variable(f"v{i}", (8,), "f32", 32.0, "parameter") for i in range(classes))
    drawn = ShardingClasses(
        variables, np.arange(classes), np.full(classes, 8), np.array(pairs, dtype=np.int64).reshape(-1, 2)
    )
    return ShardingProblem("drawn", drawn, Cluster(1, 4, 1e9, 1e9, 1e9), (MeshAxis("model", 4),))


def sharding_values(problem: ShardingProblem) -> Iterator[float | None]:
    conflicts = problem.classes.conflicts.tolist()
    for chosen in product((False, True), repeat=len(problem.classes)):
        if not any(chosen[a] and chosen[b] for a, b in conflicts):
            yield float(sum(chosen))


def partitioned(_: ShardingProblem, plan: Any) -> float:
    return float(sum(dim >= 0 for dim in plan.candidates(0).values()))


SHARDING = PlannerKind(
    lambda: [sharding_problem(seed, 7, 0.4) for seed in range(2)],
    lambda: sharding_problem(5, 150, 0.1),
    partitioned,
    sharding_values,
    max,
    lambda problem, plan: plan.check_valid(problem)[0],
)


# --- re-planning -------------------------------------------------------------------------------------------------


def replan_problem(n: int, cluster: Cluster, stages: int) -> ReplanProblem:
    """A job on even stages whose first device has become half as fast."""
    problem = staged_problem(3, n, cluster, stages)
    running = make_planner("uniform").plan(problem)
    cost, job = plan_cost(problem, running), PlacedPlan(running, tuple(range(cluster.devices)))
    slow = [2.0 if device == 0 else 1.0 for device in range(cluster.devices)]
    stage = [
        s for s, (first, last) in enumerate(running.stage_devices(cluster.devices)) for _ in range(first, last + 1)
    ]
    forward, backward = (
        {device: np.array([times[stage[device]] * slow[device]]) for device in range(cluster.devices)}
        for times in (cost.forward_s, cost.backward_s)
    )
    return ReplanProblem(problem, job, Observed("device", forward, backward))


REPLAN = PlannerKind(
    lambda: [replan_problem(8, SMALL_CLUSTER, 2)],
    lambda: replan_problem(400, Cluster(8, 8, 100.0, 5.0, 1e6, name="many"), 8),
    lambda problem, plan: staged_value(problem.staged, plan.plan),
    None,
    min,
    lambda problem, plan: plan.check_valid(problem.staged)[0],
)


# --- strategies --------------------------------------------------------------------------------------------------


def strategy_problem(layers: int, devices: int, batch: int, **fixed: Any) -> StrategyProblem:
    """A small GPT on devices that are too small to keep all its activations."""
    rates = {"float32": 20e12, "bfloat16": 300e12}
    device = Device("device", rates, 20e12, 2e12, step=USUAL)
    work = gpt_work(layers, 64, 2, sequence=32, vocabulary=128)
    cluster = Cluster(1, devices, 1e10, 1e10, 6.1e9)
    return StrategyProblem(work=work, cluster=cluster, device=device, global_batch=batch, fixed=fixed)


@cache
def strategy_pricing(problem: StrategyProblem) -> StrategyPricing:
    return StrategyPricing(problem.work, problem.cluster, problem.device)


def strategy_value(problem: StrategyProblem, strategy: Strategy) -> float | None:
    estimate = strategy_pricing(problem).estimate(strategy)
    return estimate.step_s if problem.fits(estimate) else None


def strategy_values(problem: StrategyProblem) -> Iterator[float | None]:
    """Of problems on two devices with tp, schedule and micro-batch given: cuts, recomputation and ZeRO are left."""
    shape, batch = problem.work.shape, problem.global_batch
    for pp, zero in product((1, 2), (0, 1, 2, 3)):
        for first in range(shape.layers + 1) if pp == 2 else (shape.layers,):
            layers = (first, shape.layers - first)[:pp]
            kinds = [[("none", 0), *product(("selective", "full"), range(1, count + 1))] for count in layers]
            for choices in product(*kinds):
                recompute, blocks = zip(*choices, strict=True)
                fields = {"recompute": recompute, "recompute_blocks": blocks, "layers": layers, "zero": zero}
                yield strategy_value(
                    problem, Strategy(global_batch=batch, pp=pp, dp=2 // pp, **problem.fixed, **fields)
                )


STRATEGY = PlannerKind(
    lambda: [strategy_problem(n, 2, 4, tp=1, micro_batch=1, schedule="1f1b", vp=1, cp=1) for n in (1, 3)],
    lambda: strategy_problem(48, 64, 256),
    strategy_value,
    strategy_values,
    min,
    lambda problem, plan: plan.devices == problem.cluster.devices,
)

KINDS = {"staged": STAGED, "placement": PLACEMENT, "sharding": SHARDING, "strategy": STRATEGY, "replan": REPLAN}


@cache
def small(kind: str) -> list[Any]:
    return KINDS[kind].small()


@cache
def optimum(kind: str, i: int) -> float | None:
    """The best value of any plan of a small problem; None where it is not known."""
    values = KINDS[kind].values
    if values is None:
        return None
    return KINDS[kind].best(value for value in values(small(kind)[i]) if value is not None)


@cache
def planner(kind: str, name: str) -> Planner[Any, Any, Any]:
    """The planner; skips the test where what it stands on is not installed."""
    try:
        instance: Planner[Any, Any, Any] = make_planner(name, kind=kind, **SHORT.get((kind, name), {}))  # type: ignore[call-overload]
        return instance
    except BadInput as missing:
        if "installed" in str(missing):
            pytest.skip(str(missing))
        raise


def solve(kind: str, name: str, problem: Any, **how: Any) -> Result[Any, Any] | None:
    """The planner's result; None where it is not made for such a problem."""
    try:
        return planner(kind, name).solve(problem, **how)
    except BadInput as refusal:
        if "installed" in str(refusal):
            pytest.skip(str(refusal))
        return None


@cache
def solved(kind: str, name: str) -> list[tuple[int, Result[Any, Any]]]:
    """Numbers of the small problems that the planner is made for, and its results."""
    results = [(i, solve(kind, name, problem)) for i, problem in enumerate(small(kind))]
    return [(i, result) for i, result in results if result is not None]


def test_every_kind_is_tried() -> None:
    assert set(KINDS) == set(PLANNERS)


@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_plans_are_valid_fit_and_carry_their_cost(kind: str, name: str) -> None:
    results = solved(kind, name)
    assert any(result.plan is not None for _, result in results)
    for _, result in results:
        if result.plan is None:
            assert result.status in ("infeasible", "stopped") and result.reason is not None
            continue
        assert result.status in ("optimal", "feasible")
        assert KINDS[kind].valid(result.problem, result.plan)
        assert KINDS[kind].value(result.problem, result.plan) is not None
        assert result.cost is not None
        if kind == "staged":
            assert result.cost.length_s == staged_value(result.problem, result.plan)


@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_no_plan_is_better_than_a_bound_or_than_all_plans(kind: str, name: str) -> None:
    best = KINDS[kind].best
    for i, result in solved(kind, name):
        optimal = optimum(kind, i)
        if optimal is None:
            continue
        if result.plan is not None:
            value = KINDS[kind].value(result.problem, result.plan)
            assert value is not None
            assert best(value, optimal) == pytest.approx(optimal, rel=1e-9)
            if result.status == "optimal":
                assert value == pytest.approx(optimal, rel=1e-9)
        if result.bound is not None:
            assert best(result.bound.value, optimal) == pytest.approx(result.bound.value, rel=1e-9)
            if result.bound.proof == "exact":
                assert result.bound.value == pytest.approx(optimal, rel=1e-9)


@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_whoever_watches_is_told(kind: str, name: str) -> None:
    for problem in small(kind):
        news: list[Progress] = []
        if solve(kind, name, problem, watch=news.append) is not None:
            assert news and all(progress.what for progress in news)


@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_unknown_options_are_refused(kind: str, name: str) -> None:
    with pytest.raises(BadInput, match=f"planner {name}: has no option 'patience_of_a_saint'"):
        make_planner(name, kind=kind, patience_of_a_saint=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_a_batch_is_as_good_as_single_calls(kind: str, name: str) -> None:
    alone = solved(kind, name)
    together = planner(kind, name).solve_batch([small(kind)[i] for i, _ in alone])
    for (_, one), other in zip(alone, together, strict=True):
        assert one.status == other.status
        if one.plan is not None:
            values = [KINDS[kind].value(result.problem, result.plan) for result in (one, other)]
            assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("seconds", [0.0, 0.05])
@pytest.mark.parametrize(("kind", "name"), PLANNERS_OF_ALL_KINDS)
def test_deadlines_hold_within_twice_the_time(kind: str, name: str, seconds: float) -> None:
    """In processor time, which other programs of a busy machine do not take."""
    solved(kind, name)  # what is imported and read once counts for nobody's deadline
    problem = large(kind)
    if (kind, name) == ("staged", "data-parallel"):
        problem = replace(problem, stages=1)
    begun_s = time.process_time()
    result = solve(kind, name, problem, deadline=Deadline(seconds, time.process_time))
    assert time.process_time() - begun_s <= 2.0 * seconds + FLOOR_S
    if result is not None and result.plan is not None:
        assert KINDS[kind].valid(result.problem, result.plan)


@cache
def large(kind: str) -> Any:
    return KINDS[kind].large()
